"""A real server of OpenEnv for tests, in an environment of Python that has the library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starting import StartedProgram

TESTS = Path(__file__).parent
PYTHON = TESTS.parent / ".venv-verifiers" / "bin" / "python"
PROGRAM = TESTS / "extensions" / "environments" / "programs" / "openenv_worlds.py"


@contextmanager
def openenv_server(python: Path = PYTHON) -> Iterator[str]:
    """Yields the address under which the environments of openenv_worlds.py are.

    python: that of the environment with the library; 0.3 by default.
    """
    variables = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    with StartedProgram(
        [str(python), "-W", "ignore", str(PROGRAM)], env=variables, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()
