"""The lines of `art.utils.logging`, which programs of older releases print about themselves."""

from __future__ import annotations

import sys
import time


class _C:
    """The escape codes of a terminal's colours."""

    RESET = "\033[0m"
    BOLD = "\033[1m"
    DIM = "\033[2m"
    ITAL = "\033[3m"
    RED = "\033[31m"
    GREEN = "\033[32m"
    YELLOW = "\033[33m"
    BLUE = "\033[34m"
    MAGENTA = "\033[35m"
    CYAN = "\033[36m"
    GRAY = "\033[90m"


def _ts() -> str:
    """The time of day, for lines of a program's own: 14:03:59."""
    return time.strftime("%H:%M:%S")


def info(message: str) -> None:
    """Logs a progress message."""
    _line("INFO", _C.BLUE, message)


def step(message: str) -> None:
    """The next part of the work begins."""
    _line("STEP", _C.CYAN, message)


def ok(message: str) -> None:
    """Logs a success."""
    _line("OK", _C.GREEN, message)


def warn(message: str) -> None:
    """Logs a warning."""
    _line("WARN", _C.YELLOW, message)


def err(message: str) -> None:
    """Logs an error."""
    _line("ERR", _C.RED, message)


def dim(message: str) -> None:
    """A detail, without a label."""
    sys.stdout.write(f"{_C.DIM}{message}{_C.RESET}\n")


def _line(label: str, colour: str, message: str) -> None:
    sys.stdout.write(f"{colour}[{label}]{_C.RESET} {message}\n")
