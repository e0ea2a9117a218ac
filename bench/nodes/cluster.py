"""A cluster of this machine: rollouts on 1 to 8 nodes of a real Ray, and the death of an engine's node.

    python -m bench cluster

Each node has a loopback address of its own, and an engine's worker that sleeps in place of computing
(`scaling.py` has the same without Ray). Then one of two nodes dies under requests. Measured: from the end
of its worker's process to the pool sending it nothing more, and to a successor that serves on another node.
Last, the same of the only engine of a real server: one of `art/nano-games` with a trained adapter, from the
end of its process to the reply to a request that was sent then.
The other rows of a cluster: `shelf`, `scale`, `scaling`, `ranks`, `postgres`, `gateways`, `kills`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import psutil
from openai.types.chat import ChatCompletionUserMessageParam

import art
from art.server.cluster_settings import ClusterSettings
from art_extensions.cluster.launcher import ClusterLauncher
from bench.nodes.ray_nodes import HEAD, RayNodes, ray_nodes
from bench.nodes.scaling import COUNTS, ROLLOUTS, Gateway, ask, measure, running_gateway
from bench.rows import Row, write_rows

SOON, DEADLINE = 0.005, 120.0
QUESTION: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "yes or no?"}]
LEFT_SECONDS, SERVES_SECONDS = 1.0, 30.0


@contextlib.asynccontextmanager
async def connected(nodes: RayNodes, folder: Path) -> AsyncIterator[ClusterLauncher]:
    """A launcher whose workers take a whole node each."""
    settings = ClusterSettings(
        address=nodes.address,
        host=HEAD,
        shelf=str(folder / "{node}"),
        engine={"cpus": 2},  # type: ignore[arg-type]
    )
    launcher = await ClusterLauncher.start(settings, folder, folder)
    try:
        yield launcher
    finally:
        await launcher.close()


async def until(true: Callable[[], bool]) -> float:
    """Returns when it became true, in seconds of the clock. Raises TimeoutError."""
    async with asyncio.timeout(DEADLINE):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(SOON)
    return time.monotonic()


def is_dead(pid: int) -> bool:
    """Returns whether a process has ended, also where nobody has taken note of it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def die_under_load(gateway: Gateway, launcher: ClusterLauncher, nodes: RayNodes) -> list[Row]:
    """Kills the node of the first engine while all places are taken."""
    replica = gateway.engines.pool.replicas[0]
    worker, starts = next(one for one in launcher.workers if one.spec.name.endswith("-0")), replica.starts
    load = asyncio.create_task(ask(gateway, 2 * ROLLOUTS, 60, 1))
    await until(lambda: replica.open >= ROLLOUTS // 2)
    killing = asyncio.create_task(asyncio.to_thread(nodes.kill, worker.node))
    died, left, serves = await asyncio.gather(
        until(lambda: is_dead(worker.pid)),
        until(lambda: not replica.up),
        until(lambda: replica.up and replica.starts > starts),
    )
    await killing
    done = await load
    return [
        Row(
            name="a dead node's requests leave it",
            ours=max(0.0, left - died),
            unit="s",
            goal=LEFT_SECONDS,
            at_most=True,
        ),
        Row(name="another node serves", ours=serves - died, unit="s", goal=SERVES_SECONDS, at_most=True),
        Row(name="requests that failed", ours=done["failed"], unit="", goal=0, at_most=True),
    ]


async def real_engine_dies(nodes: RayNodes, folder: Path) -> Row:
    """A request waits for the engine that is started on another node, and gets the trained step."""
    for _ in range(2):
        await asyncio.to_thread(nodes.add, real_engine=1)
    cluster = {
        "address": nodes.address,
        "host": HEAD,
        "shelf": str(folder / "{node}"),
        "engine": {"resources": {"real_engine": 1}},
    }
    model = art.TrainableModel(name="player", project="bench", base_model="art/nano-games")
    options = {"engine": {"options": {"threads": 1}}, "trainer": {"options": {"threads": 1}}}
    async with art.LocalBackend(path=folder / "data", cluster=cluster, server_options=options) as backend:
        await model.register(backend)
        await model.train([art.TrajectoryGroup([await answer(model, reward) for reward in (0.0, 1.0)])])
        assert model.inference_base_url is not None
        url = model.inference_base_url.removesuffix("/v1")
        headers = {"Authorization": f"Bearer {model.inference_api_key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
            workers = (await http.get("/health")).json()["cluster"]["workers"]
        engine = next(one for one in workers if one["name"].startswith("engine"))
        killing = asyncio.create_task(asyncio.to_thread(nodes.kill, engine["node"]))
        died = await until(lambda: is_dead(engine["pid"]))
        reply = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=QUESTION, max_tokens=4, timeout=DEADLINE
        )
        serves = time.monotonic()
        await killing
    step = (reply.choices[0].model_extra or {})["step"]
    if step != 1:
        raise SystemExit(f"the reply is of step {step}")
    return Row(name="the only real engine serves again, on another node, with its adapter",
               ours=serves - died, unit="s", goal=SERVES_SECONDS, at_most=True)  # fmt: skip


async def answer(model: art.TrainableModel, reward: float) -> art.Trajectory:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=QUESTION, max_tokens=4
    )
    return art.Trajectory(messages_and_choices=[*QUESTION, completion.choices[0]], reward=reward)


async def run() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="art-cluster-") as temporary:
        folder = Path(temporary)
        with ray_nodes(folder) as nodes:
            os.environ.update(nodes.environment)  # the token, for this program and its placer
            for _ in range(max(COUNTS)):
                await asyncio.to_thread(nodes.add)
            async with connected(nodes, folder / "scaling") as launcher:
                rows = await measure(COUNTS, launcher.launch)
            async with (
                connected(nodes, folder / "death") as launcher,
                running_gateway(2, folder / "gateway", launcher.launch) as gateway,
            ):
                rows += await die_under_load(gateway, launcher, nodes)
            return [*rows, await real_engine_dies(nodes, folder / "real")]


if __name__ == "__main__":
    write_rows("cluster", asyncio.run(run()))
