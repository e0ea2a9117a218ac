"""What a request costs one gateway, each of two, and the controller alone: `art serve` on one Postgres.

CPU seconds of the processes, which depend little on what else the machine does. Requests are first turns of
one sampled token. Each server gets the same number a second, few enough for two cores: at half of the rate a
wake-up and a commit serve half of the requests, so a request costs more.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import httpx

import art
from art.client.backends.remote_backend import RemoteBackend
from bench.rows import Row, write_rows
from bench.serving.served import cpu_seconds

RATE, SECONDS, GOAL = 150, 20, 1.15
"""Requests a second of each server, for so long."""
WARM_UP_SECONDS = 5


async def ask_all(urls: list[str], key: str, seconds: int) -> int:
    """Ask each address at the rate, whatever it has answered; returns the number of requests."""
    loop = asyncio.get_running_loop()
    begin, count = loop.time(), RATE * seconds * len(urls)

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(begin + number / RATE / len(urls) - loop.time())
        body = {
            "model": "player",
            "messages": [{"role": "user", "content": f"yes or no? {number}"}],
            "max_tokens": 1,
        }
        url = f"{urls[number % len(urls)]}/v1/chat/completions"
        (await http.post(url, json=body, headers={"Authorization": f"Bearer {key}"})).raise_for_status()

    async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
        await asyncio.gather(*(ask(http, number) for number in range(count)))
    return count


async def wait_for_engine(url: str, key: str) -> None:
    """Returns when a gateway samples by itself."""
    async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as http:
        while True:
            health = (await http.get(f"{url}/health", headers={"x-api-key": key})).json()
            if health["gateway"]["engines"].get("art/nano-games"):
                return
            await asyncio.sleep(0.1)


async def measure(servers: object) -> dict[str, float]:
    """CPU milliseconds a request: of the controller, of one gateway, of two."""
    urls, running, key = servers.urls(), servers.running, "key-of-these-tests"
    backend = RemoteBackend(base_url=urls[0], api_key=key)
    with tempfile.TemporaryDirectory() as folder:
        model = art.TrainableModel(name="player", project="bench", base_model="art/nano", base_path=folder)
        await model.register(backend)
        await asyncio.gather(*(wait_for_engine(url, key) for url in urls[1:]))
        found = {}
        pids = [child.pid for child in running]
        for name, asked, counted in (
            ("controller", urls[:1], pids[:1]),
            ("one gateway", urls[1:2], pids[1:]),
            ("two gateways", urls[1:], pids[1:]),
        ):
            await ask_all(asked, key, WARM_UP_SECONDS)
            before = cpu_seconds(*counted)
            requests = await ask_all(asked, key, SECONDS)
            found[name] = (cpu_seconds(*counted) - before) / requests * 1e3
    await backend.close()
    return found


def main() -> int:
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "server"))
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from art_servers import ArtServers
    from homes import Home
    from private_postgres import programs, running_postgres

    if programs() is None:
        sys.exit("no Postgres on this machine: sh tests/install_programs.sh")
    with running_postgres(durable=True) as postgres, tempfile.TemporaryDirectory() as folder:
        servers = ArtServers(Home(Path(folder), postgres.create_database(), postgres))
        try:
            servers.start()
            for _ in range(2):
                servers.start("--role", "gateway", port=0)
            asyncio.run(servers.wait_for("ART serves", 3))
            found = asyncio.run(measure(servers))
        finally:
            servers.stop()
    rows = [Row(name=f"CPU a request: {name}", ours=cost, unit="ms") for name, cost in found.items()]
    ratio = found["two gateways"] / found["one gateway"]
    rows.append(Row(name="two gateways to one", ours=ratio, unit="x", goal=GOAL, at_most=True))
    write_rows("gateways", rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
