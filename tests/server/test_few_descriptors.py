"""A server and a program that run out of descriptors: they refuse, say what to do, and go on."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from starlette.responses import JSONResponse

from serving import serving_in_a_thread
from starting import StartedProgram
from waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_starts")]
MOST = 120
"""Descriptors."""
PLAIN_LOOP = """
import art.server.process as process
found = process.is_installed
process.is_installed = lambda name: name != "uvloop" and found(name)
"""
SERVE = """
import sys
from art.server.__main__ import main
sys.exit(main())
"""
ASK = """
import asyncio, os, resource, sys
from art.client.http.connection import ServerConnection
from art.client.http.openai_client import openai_client
from art.errors import ServerUnreachableError
from pydantic import BaseModel

url = sys.argv[1]
HI = [{"role": "user", "content": "hi"}]

class Health(BaseModel):
    id: str

async def main():
    async def address(): return url, "k3y-of-a-server"
    async def revive(): pass
    client = openai_client(base_url=url + "/v1", api_key="k3y-of-a-server", revive=revive, gone_s=1.0)
    calls = ServerConnection(address, revive, gone_s=1.0)
    async def ask(): return (await client.chat.completions.create(model="m", messages=HI)).id
    async def call(): return (await calls.call("GET", "/health", Health)).id
    assert await ask() == await call() == "c"
    await calls.close()
    await client.close()
    client = openai_client(base_url=url + "/v1", api_key="k3y-of-a-server", revive=revive, gone_s=1.0)
    calls = ServerConnection(address, revive, gone_s=1.0)
    await calls.client()
    await asyncio.to_thread(len, "")  # the thread for names of hosts
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for one in (ask, call):
        try:
            await one()
        except ServerUnreachableError as error:
            print(error)
    for one in held:
        os.close(one)
    print(await ask(), await call())

asyncio.run(main())
"""


MESSAGE = {"role": "assistant", "content": "hello"}
CHOICE = {"index": 0, "finish_reason": "stop", "message": MESSAGE}
REPLY = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [CHOICE]}


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST, MOST))


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=DEADLINE_S) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def is_served(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=DEADLINE_S)
    except urllib.error.HTTPError as error:
        return error.code == 401  # no key was sent
    except OSError:
        return False
    return True


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_server_refuses_and_serves_again(loop: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", (PLAIN_LOOP if loop == "asyncio" else "") + SERVE]
    log = tmp_path / "log"
    with (
        log.open("wb") as file,
        StartedProgram(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, preexec_fn=limit_files
        ) as server,
    ):
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({"data_dir": str(tmp_path), "key": "a-secret-key"}).encode() + b"\n")
        server.stdin.flush()
        port = json.loads(server.stdout.readline())["port"]
        assert is_served(port)
        for _ in range(2):
            with contextlib.ExitStack() as held:
                for _ in range(MOST + 30):
                    held.enter_context(socket.create_connection(("127.0.0.1", port)))
                eventually(lambda: is_healthy(port))  # whoever watches the server is answered
                refused = held.enter_context(socket.create_connection(("127.0.0.1", port)))
                refused.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
                answer = refused.makefile("rb").read()
                assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer
                spent = psutil.Process(server.pid).cpu_times()
                time.sleep(1.5)
                now = psutil.Process(server.pid).cpu_times()
                assert sum(now[:2]) - sum(spent[:2]) < 0.75, "it does not spin"
            eventually(lambda: is_served(port))
        server.stdin.close()
        assert server.wait(DEADLINE_S) == 0
    said = log.read_text()
    assert 1 <= said.count("connections are refused") <= 2 and "ulimit -n 65536" in said
    assert len(said) < 60_000, "what floods the server does not flood its log"


def test_a_program_says_what_to_do_and_goes_on() -> None:
    with serving_in_a_thread(JSONResponse(REPLY)) as url:
        command = [sys.executable, "-c", ASK, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    *errors, end = done.stdout.splitlines()
    assert end == "c c" and len(errors) == 2
    for error in errors:
        assert (
            "This program has no descriptor left. Raise the limit of open files: `ulimit -n 65536`" in error
        )
