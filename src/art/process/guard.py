"""`python -m art.process.guard`: run a program of others so that nothing of it outlives whoever asked for it.

Programs that start processes of their own leave them behind when they are killed (vLLM its engine and its
workers, with the GPU's memory). The guard is their ancestor, and ends the whole group when its standard input
ends, which it does however its parent ended, and when the program itself does.

    stdin   one line, {"command": [...], "environment": {...}, "folder": "..."}; then nothing
    exit    the program's code; the folder (its temporary files) is gone
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

from pydantic import BaseModel, ConfigDict, Field

from art.process.environment import die_with_parent, inherited_variables

TERM_SECONDS = 3.0
"""The limit in seconds for the program to stop in order after the parent is gone."""
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""The variables of this interpreter that are not passed on: they would give the program ART's packages."""


class GuardOrder(BaseModel):
    """The program that the guard runs."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1)
    environment: dict[str, str] = Field(default_factory=dict)
    """Added to the guard's own. Keys come this way: never on a command line."""
    folder: str | None = None
    """Removed at the end."""


def main() -> int:
    order = GuardOrder.model_validate_json(sys.stdin.buffer.readline())
    environment = {name: value for name, value in inherited_variables().items() if name not in FOREIGN}
    child = subprocess.Popen(
        order.command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.buffer,
        env={**environment, **order.environment},
        process_group=0,
        preexec_fn=die_with_parent,
    )
    threading.Thread(target=_stop_with_parent, args=(child,), daemon=True).start()
    code = child.wait()
    _kill_group(child.pid)
    if order.folder is not None:
        shutil.rmtree(order.folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _stop_with_parent(child: subprocess.Popen[bytes]) -> None:
    # Not through sys.stdin: its lock, held by a thread that waits, would abort the interpreter's end.
    while os.read(sys.stdin.fileno(), 1 << 16):
        pass
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):  # killed below
        child.wait(TERM_SECONDS)
    _kill_group(child.pid)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone already
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
