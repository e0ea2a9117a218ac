"""1,000 slow environments over HTTP, held by one client: its memory, with room in the server and without.

The client is a process of its own with one `NemoGymEnvironment`, whose rollouts all run at once. The server
(`slow_environment.py`) takes twenty seconds for each step. In the second case it takes two, and 100 requests
at a time. It answers the others with 503, and the client sends at most 256: all episodes have to end all the
same. The third case is a server of OpenEnv with a session for each, if `.venv-openenv` is installed: most of
its memory is the import of the package.

    python -m bench.serving.environments_held [COUNT]
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.rows import Row, write_rows

ROOT = Path(__file__).parents[2]
OPENENV = ROOT / ".venv-openenv" / "bin" / "python"
COUNT, STEPS = 1000, 3
MEMORY_MIB = 300.0
LIMIT_S = 900.0
DEADLINE_S = 300.0


async def hold(name: str, base_url: str, key: str, count: int, connections: int) -> dict[str, float]:
    """Returns the figures of a client that plays `count` episodes of an environment at once."""
    import art
    from art.environments.adapters.registry import find_environment

    rows = [{"responses_create_params": {"input": f"Play game {number}."}} for number in range(count + 1)]
    own = {"data": rows[:count], "val_data": rows[count:], "connections": connections}
    environment = find_environment(
        name, train=count, deadline_s=DEADLINE_S, **(own if name.startswith("nemo-gym:") else {})
    )
    model = art.Model(
        name="player",
        project="held",
        inference_model_name="player",
        inference_base_url=base_url,
        inference_api_key=key,
    )
    scenarios = environment.scenarios("train")
    await environment.rollout(model, scenarios[0])
    before, begin = peak_mib(), time.monotonic()
    played = await asyncio.gather(
        *(environment.rollout(model, one) for one in scenarios), return_exceptions=True
    )
    seconds = time.monotonic() - begin
    await environment.close()
    right = [one for one in played if isinstance(one, art.Trajectory) and one.reward == STEPS]
    errors = {f"{type(one).__name__}: {one}" for one in played if isinstance(one, BaseException)}
    sys.stderr.writelines(f"{one}\n" for one in sorted(errors)[:5])
    return {"before": before, "peak": peak_mib(), "ended": len(right), "seconds": seconds}


def peak_mib() -> float:
    """Returns the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(count: int, *, capacity: int, connections: int, seconds: float) -> dict[str, Any]:
    """Returns the client's figures, and what the server has seen. Both are processes of their own."""
    world = [str(seconds), str(capacity), str(STEPS)]
    command = [sys.executable, "-m", "bench.serving.slow_environment", *world]
    return held_by_client("nemo-gym:", command, sys.executable, count, connections)


def held_by_client(
    prefix: str, server: Sequence[str], python: str, count: int, connections: int
) -> dict[str, Any]:
    """Returns the client's figures, and what the server has seen if it tells. server: its command."""
    from art_extensions.testing import LlmServer

    with (
        LlmServer(lambda body: "go on") as model,
        subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as running,
    ):
        try:
            assert running.stdout is not None
            address = f"http://127.0.0.1:{int(running.stdout.readline())}"
            given = [f"{prefix}{address}", model.base_url, model.key, str(count), str(connections)]
            done = subprocess.run(
                [python, "-W", "ignore", str(Path(__file__)), "hold", *given],
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                stdout=subprocess.PIPE,
                text=True,
                timeout=LIMIT_S,
                check=True,
            )
            seen = httpx.get(f"{address}/served", timeout=LIMIT_S)
        finally:
            running.kill()
    return {**json.loads(done.stdout.splitlines()[-1]), **(seen.json() if seen.is_success else {})}


def main(count: int) -> None:
    rows: list[Row] = []
    cases = (("room for all", 2 * count, count, 20.0), ("room for 100", 100, 256, 2.0))
    for name, capacity, connections, seconds in cases:
        found = measure(count, capacity=capacity, connections=connections, seconds=seconds)
        title = f"{count:,}, {name}"
        rows += [
            Row(name=f"{title}: episodes that ended", ours=found["ended"], unit="episodes", goal=count),
            Row(name=f"{title}: open at once", ours=found["most_open"], unit="sessions"),
            Row(name=f"{title}: requests refused", ours=found["refused"], unit="requests"),
            Row(name=f"{title}: memory before", ours=found["before"], unit="MiB"),
            Row(
                name=f"{title}: peak memory of the client",
                ours=found["peak"],
                unit="MiB",
                goal=MEMORY_MIB,
                at_most=True,
            ),
        ]
    if OPENENV.exists():
        command = [str(OPENENV), "-W", "ignore", str(Path(__file__).with_name("slow_openenv.py"))]
        server = [*command, "5", str(2 * count), str(STEPS)]
        found = held_by_client("openenv:", server, str(OPENENV), count, count)
        title = f"{count:,}, sessions of OpenEnv"
        rows += [
            Row(name=f"{title}: episodes that ended", ours=found["ended"], unit="episodes", goal=count),
            Row(name=f"{title}: memory before", ours=found["before"], unit="MiB"),
            Row(
                name=f"{title}: peak memory of the client",
                ours=found["peak"],
                unit="MiB",
                goal=MEMORY_MIB,
                at_most=True,
            ),
        ]
    write_rows("environments_held", rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["hold"]:
        where, url, secret, *numbers = sys.argv[2:]
        figures = asyncio.run(hold(where, url, secret, *map(int, numbers)))
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else COUNT)
