"""One progress bar for everything that takes a while; silent when nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

REFRESH_S = 0.2


class Progress(Protocol):
    """The progress of a gather or a training job."""

    def advance(self, n: int, values: Mapping[str, float]) -> None:
        """`n` more are done; `values` are shown beside the bar."""

    def move_to(self, done: int, total: int, phase: str) -> None:
        """`done` of `total` in this phase."""


class SilentProgress:
    """A progress without output."""

    def advance(self, n: int, values: Mapping[str, float]) -> None:
        pass

    def move_to(self, done: int, total: int, phase: str) -> None:
        pass


class ProgressBar:
    """A bar drawn by `rich`, without its thread: it is drawn when something happened, at most five times a
    second.
    """

    def __init__(self, bar: RichProgress, task: TaskID, description: str) -> None:
        self._bar, self._task, self._description = bar, task, description
        self._drawn = 0.0

    def advance(self, n: int, values: Mapping[str, float]) -> None:
        text = "  ".join(f"{name}={_short(value)}" for name, value in values.items())
        self._bar.update(self._task, advance=n, values=text)
        self._draw()

    def move_to(self, done: int, total: int, phase: str) -> None:
        self._bar.update(
            self._task, completed=done, total=total or None, description=f"{self._description} {phase}"
        )
        self._draw()

    def _draw(self) -> None:
        if time.monotonic() - self._drawn > REFRESH_S:
            self._drawn = time.monotonic()
            self._bar.refresh()


def _short(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def _watched() -> bool:
    """A notebook's stderr is no terminal, and yet a person sits there; `rich` draws its bar as a widget."""
    if "ipykernel" in sys.modules:
        return find_spec("ipywidgets") is not None
    return sys.stderr.isatty()


@contextmanager
def open_progress(description: str | None, total: int | None) -> Iterator[Progress]:
    """A bar on stderr, or in a notebook, that is closed when the block ends. No description, or nobody who
    watches: no bar.
    """
    if description is None or not _watched():
        yield SilentProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # The user's own print stays the user's: streams are not redirected.
    bar = RichProgress(
        *columns,
        TextColumn("{task.fields[values]}"),
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(description, total=total, values="")
        yield ProgressBar(bar, task, description)
        bar.refresh()
