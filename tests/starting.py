"""Programs that a test starts and that do not outlive it."""

from __future__ import annotations

import contextlib
import subprocess
from types import TracebackType
from typing import AnyStr

import psutil


class StartedProgram(subprocess.Popen[AnyStr]):
    """`with StartedProgram(command, ...) as program:`, as with `subprocess.Popen`.

    Where the block fails, the program and its children are killed: Popen's own end waits for them, and a test
    that has failed waits for a child that sleeps ten minutes.
    """

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None:
            self.kill_tree()
        super().__exit__(exc_type, value, traceback)

    def kill_tree(self) -> None:
        """Kills the program and all that it has started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self.kill()
