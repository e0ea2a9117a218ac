from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import traceback

import pytest

import art
from art.client.remote_backend import RemoteBackend
from art.process.interrupt import ShortCancellation
from waiting import until

PROGRAM = """
import asyncio
import art

async def main():
    try:
        print("begun", flush=True)
        await asyncio.sleep(600)
    finally:
        print("cleaned up", flush=True)

art.run(main())
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_program_in_one_line_after_its_finally_blocks():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGINT)
        stdout, stderr = program.communicate(timeout=240)
    assert (stdout, stderr, program.returncode) == ("cleaned up\n", "stopped by Ctrl-C\n", 130)


def test_run_gives_what_the_coroutine_returns_and_raises():
    async def main(number: int) -> float:
        return 1 / number

    assert art.run(main(2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        art.run(main(0))


async def test_run_in_a_notebook_names_await():
    async def main() -> None:
        pass

    with pytest.raises(RuntimeError, match="await main"):
        art.run(main())


async def test_a_cancelled_call_to_a_server_shows_no_frames_of_the_http_library():
    asked: list[asyncio.StreamWriter] = []

    async def never_answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(writer)

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        model = art.TrainableModel(name="agent", project="p", base_model="art/nano")
        async with RemoteBackend(f"http://{address[0]}:{address[1]}", "k" * 16) as backend:
            for call in (model.register, lambda _: backend.get_step(model)):
                asked.clear()
                task = asyncio.create_task(call(backend))
                await until(lambda: asked)
                task.cancel("as asyncio.run does")
                with pytest.raises(asyncio.CancelledError) as cancelled:
                    await task
                shown = "".join(traceback.format_exception(cancelled.value))
                assert "/art/" in shown and "httpx" not in shown and "anyio" not in shown, shown
        for writer in asked:
            writer.close()


def test_other_errors_keep_their_frames():
    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError) as raised, ShortCancellation():
        fail()
    assert "in fail" in "".join(traceback.format_exception(raised.value))
