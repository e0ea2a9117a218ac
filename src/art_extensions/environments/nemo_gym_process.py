"""The process of a resource server: NeMo-Gym needs Python 3.12 and many libraries, and has both apart."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from art.environments.adapters.environment import CALL_S
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError, did_you_mean

WORKER = Path(__file__).with_name("nemo_gym_worker.py")
START_S = 300.0
"""The deadline of a server's start, which imports the package, in seconds."""
SHOWN = 1000
"""Characters of what a server that did not start has written."""
INSTALL = (
    "NeMo-Gym needs Python 3.12. Install it with `python3.12 -m venv gym && gym/bin/pip install nemo-gym`, "
    'and give python="gym/bin/python"'
)


def worker_command(python: str, *arguments: str) -> list[str]:
    """Returns the command of the worker in an interpreter."""
    # With -P the folder of the worker is not searched, where a file has the name of the package.
    return [python, "-P", "-W", "ignore", str(WORKER), *arguments]


def find_interpreter(full: str, python: str | None) -> str:
    """Returns the interpreter that has the package. full: what asks, for the error. Raises
    ConfigurationError where it is missing.
    """
    if python is None and find_spec("nemo_gym") is not None:
        python = sys.executable
    if python is None or not Path(python).is_file():
        found = "no interpreter is named" if python is None else f"{python!r} is no file"
        raise ConfigurationError(f"{full}: {found}. {INSTALL}")
    return python


def find_servers(full: str, python: str) -> dict[str, Path]:
    """Returns the folders of the package's resource servers by their names. Raises ConfigurationError."""
    command = worker_command(python, "find")
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    if done.returncode:
        raise ConfigurationError(f"{full}: {python}: {done.stderr[-SHOWN:].strip()}. {INSTALL}")
    return {name: Path(folder) for name, folder in json.loads(done.stdout).items()}


def list_servers(full: str, python: str | None) -> dict[str, str]:
    """Returns the names of the resource servers, each with what it needs to be an environment here. Raises
    ConfigurationError.
    """
    needed = "" if python is None else "python=, as here"
    return dict.fromkeys(find_servers(full, find_interpreter(full, python)), needed)


class ResourceServer:
    """A server by its name, which starts when the first rollout asks for it, and again if it has died."""

    def __init__(self, full: str, name: str, python: str | None, settings: Mapping[str, Any]) -> None:
        """full: the environment's name. Raises ConfigurationError where the interpreter, the package or the
        server is missing.
        """
        self._full, self._name, self._python = full, name, find_interpreter(full, python)
        self._settings = json.dumps(dict(settings))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._address = ""
        self.folder = self._find()
        """The server's folder in the package."""

    def _find(self) -> Path:
        folders = find_servers(self._full, self._python)
        if self._name not in folders:
            hint = did_you_mean(self._name, folders)
            raise ConfigurationError(
                f"{self._full}: NeMo-Gym has no such resource server: {f'{hint} ' if hint else ''}known: "
                f"{', '.join(folders)}"
            )
        return folders[self._name]

    async def start(self) -> str:
        """Returns the address of the server, which runs. Raises EnvironmentFailedError with what it wrote,
        EnvironmentTimeoutError.
        """
        if self._process is not None and self._process.poll() is None and self._address:
            return self._address
        try:
            async with asyncio.timeout(START_S):
                return await asyncio.to_thread(self._start)
        except TimeoutError as error:
            self.stop()
            raise EnvironmentTimeoutError(
                f"environment {self._full!r}: its server did not start within {START_S:g} s"
            ) from error

    def _start(self) -> str:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return self._address
            with tempfile.TemporaryFile("w+") as written:
                process = self._process = subprocess.Popen(
                    worker_command(self._python, "serve", self._name, self._settings),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=written,
                    text=True,
                )
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line:
                    process.wait()
                    written.seek(0)
                    raise EnvironmentFailedError(
                        f"environment {self._full!r}: its server did not start: "
                        f"{written.read()[-SHOWN:].strip()}"
                    )
            self._address = f"http://127.0.0.1:{json.loads(line)['port']}"
            return self._address

    def stop(self) -> None:
        """Ends the server, if it runs."""
        process, self._address = self._process, ""
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
