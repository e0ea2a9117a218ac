"""vLLM's own server as a child of the worker: started, read, watched, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Mapping, Sequence

import orjson

TAIL_LINES = 15
STOP_SECONDS = 4.5
"""Below the worker's own grace."""


class VllmProcess:
    """A running server under its guard (`art.process.guard`); made with `await VllmProcess.start(...)`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._copy = asyncio.create_task(self._copy_log())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], folder: str) -> VllmProcess:
        """`environment`: what is added to ours. `folder`: for temporary files, removed when it has ended."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "art.process.guard",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # who kills the worker's group must leave the guard to clean up
        )
        assert process.stdin is not None
        order = {"command": list(command), "environment": dict(environment), "folder": folder}
        process.stdin.write(orjson.dumps(order) + b"\n")
        return cls(process)

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def wait(self) -> str:
        """How it ended, with its last lines."""
        code = await self._process.wait()
        await asyncio.wait({self._copy}, timeout=1.0)  # the last words are in the pipe
        return f"vLLM ended with code {code}; its last lines:\n{self.tail()}"

    def tail(self) -> str:
        return "\n".join(self._tail)

    async def stop(self) -> None:
        """Have the guard end it in order; calling it twice is allowed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):  # the guard goes on without us
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)

    async def _copy_log(self) -> None:
        """Into our own log. Read in pieces: one endless line must not stop the copy."""
        assert self._process.stderr is not None
        rest = ""
        while data := await self._process.stderr.read(65536):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            self._tail.extend(line for line in lines if line.strip())
        if rest:
            self._tail.append(rest)
