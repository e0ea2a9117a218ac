"""Ctrl-C and errors of ART: a program ends in one line; what was cancelled shows the program's own lines.

`asyncio.run` turns Ctrl-C into a cancellation, and shows where it struck: deep in an HTTP library, in dozens
of frames that say nothing about the program. `run` ends without a traceback. For programs that call
`asyncio.run`, `ShortCancellation` leaves those frames out at the edge of this package.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from art.errors import ARTError

T = TypeVar("T")
_log = logging.getLogger(__name__)

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended, as shells have it: 128 and the signal's number."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a program's main coroutine like `asyncio.run`; Ctrl-C and errors of ART end the program with one
    line.

        if __name__ == "__main__":
            art.run(main())

    Ctrl-C cancels the coroutine, so `finally` and `async with` blocks run, and servers that the program
    started end with it. The exit status is then 130. A second Ctrl-C does not wait for those blocks.

    An `ARTError` is a line on stderr with the place in the program, and the exit status is 1. Its traceback
    is in the log at level DEBUG. Raises RuntimeError where an event loop runs already, as in a notebook, and
    what else the coroutine raises.
    """
    if _is_in_event_loop():
        main.close()
        raise RuntimeError("art.run() starts an event loop, and one runs already: write `await main()`")
    try:
        return asyncio.run(main)
    except KeyboardInterrupt:
        start = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C on the last line
        sys.stderr.write(f"{start}stopped by Ctrl-C\n")
        raise SystemExit(INTERRUPTED) from None
    except ARTError as error:
        _log.debug("the program ended by an error", exc_info=error)
        sys.stderr.write(f"{_own_place(error)}{type(error).__name__}: {error}\n")
        raise SystemExit(1) from error


def _own_place(error: BaseException) -> str:
    """Returns "train.py:42: ", the last line of the program itself that led to an error."""
    others = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith((*others, "<frozen"))]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class ShortCancellation:
    """`with ShortCancellation():` leaves the frames of the block, and of the libraries below it, out of the
    traceback of a cancellation.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        if isinstance(error, asyncio.CancelledError):
            error.__traceback__ = error.__context__ = error.__cause__ = None
