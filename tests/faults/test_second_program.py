"""Two programs on one folder: the second one uses the first one's server, and goes on when that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import art
from art.errors import ConfigurationError
from art.process.running_server import find_server
from starting import StartedProgram
from waiting import eventually, gone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="the lock of a folder is the kernel's"),
]

FIRST = """
import asyncio, sys
import art

OPTIONS = {"trainer": {"options": {"threads": 1}}}

async def main():
    async with art.LocalBackend(path=sys.argv[1], server_options=OPTIONS) as backend:
        await backend.register(art.TrainableModel(name="first", project="games", base_model=sys.argv[2]))
        print(backend._server.pid, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def first(tmp_path: Path, base: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "first.py").write_text(FIRST)
    command = [sys.executable, str(tmp_path / "first.py"), str(tmp_path / "art"), str(base)]
    with StartedProgram(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield program
        program.kill()


async def answer(model: art.TrainableModel) -> str:
    reply = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[{"role": "user", "content": "hello"}], max_tokens=4
    )
    return str(reply.choices[0].model_extra["sample_id"])  # type: ignore[index]


async def test_the_second_attaches_and_outlives_the_first(
    tmp_path: Path, base: Path, first: subprocess.Popen[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert first.stdout is not None
    server = int(first.stdout.readline())
    folder = tmp_path / "art"
    address = folder / "server" / "address.json"
    assert address.stat().st_mode & 0o777 == 0o600
    model = art.TrainableModel(name="second", project="games", base_model=str(base))
    with pytest.raises(ConfigurationError, match=rf"process {server} serves .* with other server_options"):
        async with art.LocalBackend(path=folder, server_options={"engine": {"replicas": 2}}) as other:
            await other.register(model)

    caplog.set_level("INFO", logger="art")
    async with art.LocalBackend(path=folder) as backend:
        await model.register(backend)
        assert backend._server.pid == server and f"process {server} serves {folder}" in caplog.text
        url, sample = model.inference_base_url, await answer(model)
        first.send_signal(signal.SIGKILL)
        eventually(lambda: gone(server))

        # The successor has its place, its key, its ledger and the models of this program.
        assert await model.get_step() == 0
        assert backend._server.pid not in (None, server) and model.inference_base_url == url
        assert await answer(model) != sample
        successor = backend._server.pid
        assert find_server(folder / "server").pid == successor  # type: ignore[union-attr]
    assert gone(successor) and not address.exists()


async def test_the_second_leaves_the_server_to_the_first(
    tmp_path: Path, base: Path, first: subprocess.Popen[str]
) -> None:
    assert first.stdout is not None
    server = int(first.stdout.readline())
    model = art.TrainableModel(name="second", project="games", base_model=str(base))
    async with art.LocalBackend(path=tmp_path / "art") as backend:
        await model.register(backend)
        assert backend._server.pid == server
    assert not gone(server)
    first.communicate("")
    assert gone(server)
