"""`art chat`: with the server that runs in the folder, on a terminal, and with a server for the time."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

import art
from art.process.running_server import find_server
from starting import StartedProgram
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="it opens a pseudo-terminal")]

ART = str(Path(sys.executable).with_name("art"))
GREEDY = ("--temperature", "0", "--max-tokens", "8")
DEADLINE_S = 240


def chat(*words: str, text: str = "", **variables: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [ART, "chat", *words],
        input=text,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[art.LocalBackend]:
    """Serves games/player in `tmp_path / "data"`."""
    async with art.LocalBackend(path=tmp_path / "data") as running:
        await running.register(art.TrainableModel(name="player", project="games", base_model="art/nano"))
        yield running


def talk_on_a_terminal(data_dir: Path, *messages: str) -> str:
    """Types each message at the prompt of a real terminal. Returns the screen."""
    terminal, inside = pty.openpty()
    command = [ART, "chat", "games/player", *GREEDY, "--data-dir", str(data_dir)]
    screen = b""
    with StartedProgram(command, stdin=inside, stdout=inside, stderr=inside) as program:
        os.close(inside)
        try:
            for number, message in enumerate(messages, 1):
                while screen.count(b"you> ") < number:
                    screen += os.read(terminal, 4096)
                os.write(terminal, message.encode() + b"\n")
            while piece := os.read(terminal, 4096):
                screen += piece
        except OSError:
            pass_on = program.wait(DEADLINE_S)  # Linux ends the terminal of a program that ended so
            assert pass_on == 0, screen
        finally:
            os.close(terminal)
            program.kill()
    return screen.decode()


async def test_a_model_of_the_folder_answers_through_the_server_that_runs(
    backend: art.LocalBackend, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    server = find_server(data_dir / "server")
    assert server is not None
    url, key = await backend._address()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:
        reply = await client.chat.completions.create(
            model="player", messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=8
        )
    expected = reply.choices[0].message.content
    where = ("--data-dir", str(data_dir))
    assert await asyncio.to_thread(chat, "games/player", "--once", "hello", *GREEDY, *where) == (
        0,
        f"{expected}\n",
        "",
    )
    code, out, _ = await asyncio.to_thread(chat, "player@0", *GREEDY, *where, text="hello\n")
    assert (code, out) == (0, f"{expected}\n")
    assert find_server(data_dir / "server") == server

    code, out, said = await asyncio.to_thread(chat, "nobody", "--once", "x", "--url", url, ART_API_KEY=key)
    assert code == 1 and not out
    assert re.search(
        r"'nobody' is not served here; served: .*'player'.*`art serve --model PROJECT/NAME`", said
    )
    code, _, said = await asyncio.to_thread(chat, "games/plaier", "--once", "x", *where)
    assert code == 1 and "did you mean 'games/player'?" in said
    code, _, said = await asyncio.to_thread(chat, "games/player", *where)
    assert code == 2 and "there is no text to send" in said

    screen = await asyncio.to_thread(
        talk_on_a_terminal, data_dir, "hello", "/reset", "/help", "hello", "/exit"
    )
    assert screen.count(f"hello\r\n{expected}") == 2 and screen.count("/exit or Ctrl-D ends it") == 2


def test_a_base_model_is_served_for_the_time_of_the_conversation(tmp_path: Path) -> None:
    code, out, said = chat("art/nano", *GREEDY, "--data-dir", str(tmp_path / "data"), text="hello")
    assert code == 0 and out.strip() and "starting a server for art/nano" in said
    assert not (tmp_path / "data").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, said = chat(str(empty), "--once", "x", "--data-dir", str(tmp_path / "data"))
    assert code == 2 and not out and f"{empty} cannot be served: " in said
    code, out, said = chat("art/nono", "--once", "x", "--data-dir", str(tmp_path / "data"))
    assert code == 2 and not out and "art/nono" in said


def test_a_terminated_conversation_leaves_neither_files_nor_a_server(tmp_path: Path) -> None:
    command = [ART, "chat", "art/nano", "--once", "hello", "--data-dir", str(tmp_path / "data")]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    with StartedProgram(command, stdin=subprocess.DEVNULL, env=environment) as program:
        eventually(lambda: list(scratch.glob("art-chat-*/server/address.json")))
        program.terminate()
        assert program.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert not list(scratch.glob("art-chat-*"))
