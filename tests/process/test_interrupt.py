from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
import sys
import traceback

import pytest

import art
from art.client.backends.remote_backend import RemoteBackend
from art.errors import ConfigurationError
from art.process.interrupt import ShortCancellation
from starting import StartedProgram
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
    with StartedProgram(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
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


def test_an_error_of_ours_is_one_line_with_the_place_and_ends_the_program(capsys, caplog):
    async def main() -> None:
        raise ConfigurationError("base_model 'x' is unknown")

    with caplog.at_level(logging.DEBUG, "art"), pytest.raises(SystemExit) as ended:
        art.run(main())
    told = capsys.readouterr().err
    assert ended.value.code == 1 and isinstance(ended.value.__cause__, ConfigurationError)
    assert re.fullmatch(r"test_interrupt\.py:\d+: ConfigurationError: base_model 'x' is unknown\n", told)
    assert "Traceback" in caplog.text


async def test_run_in_a_notebook_names_await():
    async def main() -> None:
        pass

    with pytest.raises(RuntimeError, match="await main"):
        art.run(main())


async def test_a_cancelled_call_to_a_server_shows_no_frames_of_the_http_library():
    asked: list[asyncio.StreamWriter] = []

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()  # until then the library is connecting, and cancels by words of its own
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
                for writer in asked:  # Python 3.12 waits for them at the end of the server
                    writer.close()


def test_other_errors_keep_their_frames():
    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError) as raised, ShortCancellation():
        fail()
    assert "in fail" in "".join(traceback.format_exception(raised.value))
