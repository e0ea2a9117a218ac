"""What a person sees while a program works: lines of the log, bars, and the phases of a start.

a terminal   bars on stderr that move; lines above them
a notebook   one output for each cell: its lines, and below them the bar that moves. No widget is needed
neither      lines alone: a bar in a file is no bar. What takes long says so every now and then
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import Task, TaskID
    from rich.text import Text

REFRESH_S = 0.2
LINE_S = 10.0
"""Seconds between two lines of the log about what nobody watches, and until the first."""

_log = logging.getLogger(__name__)


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


class LoggedProgress:
    """A progress that nobody watches: a line of the log every ten seconds."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._phase = description, ""
        self._done, self._total = 0, total or 0
        self._begun, self._over = time.monotonic(), threading.Event()
        threading.Thread(
            target=self._log_now_and_then, name=f"progress of {description}", daemon=True
        ).start()

    def advance(self, n: int, values: Mapping[str, float]) -> None:
        self._done += n

    def move_to(self, done: int, total: int, phase: str) -> None:
        self._done, self._total, self._phase = done, total, phase

    def end(self) -> None:
        """Says no more."""
        self._over.set()

    def _log_now_and_then(self) -> None:
        while not self._over.wait(LINE_S):
            of = f"/{self._total}" if self._total else ""
            parts = [self._description, self._phase, f"{self._done}{of}" if self._done or of else ""]
            seconds = time.monotonic() - self._begun
            _log.info("%s, %.0f s so far", " ".join(part for part in parts if part), seconds)


class ProgressView(Protocol):
    """The place that shows lines and bars."""

    def write(self, text: str) -> None:
        """Shows lines that stay."""

    def add_bar(self, description: str, total: int | None) -> Progress:
        """Shows a bar; `remove_bar` must follow."""

    def remove_bar(self, bar: Any, *, keep: bool) -> None:
        """Ends a bar. keep: its last state stays to be seen."""


class TerminalView:
    """Bars drawn by `rich`, all in one block, without its thread: a bar is drawn when something happened, at
    most five times a second.
    """

    def __init__(self) -> None:
        self._block: RichProgress | None = None
        self._bars, self._lock = 0, threading.RLock()

    def write(self, text: str) -> None:
        with self._lock:
            if self._block is None:
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
            else:
                self._block.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def add_bar(self, description: str, total: int | None) -> ProgressBar:
        with self._lock:
            if self._block is None:
                self._block = _rich_progress()
                self._block.start()
            self._bars += 1
            task = self._block.add_task(description, total=total, values="")
            return ProgressBar(self._block, task, description)

    def remove_bar(self, bar: ProgressBar, *, keep: bool) -> None:
        with self._lock:
            if not keep:
                bar.block.remove_task(bar.task)
            self._bars -= 1
            bar.block.refresh()
            if not self._bars:
                bar.block.stop()
                self._block = None


def _rich_progress() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class CountColumn(MofNCompleteColumn):
        def render(self, task: Task) -> Text:
            """Returns `3/8`; nothing for what is not counted."""
            return super().render(task) if task.total or task.completed else Text("")

    columns = (TextColumn("{task.description}"), BarColumn(), CountColumn(), TimeElapsedColumn())
    # The user's own print stays the user's: streams are not redirected.
    return RichProgress(
        *columns,
        TextColumn("{task.fields[values]}"),
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


class ProgressBar:
    """One bar of a terminal."""

    def __init__(self, block: RichProgress, task: TaskID, description: str) -> None:
        self.block, self.task, self._description = block, task, description
        self._drawn, self._shown = 0.0, description

    def advance(self, n: int, values: Mapping[str, float]) -> None:
        self.block.update(self.task, advance=n, values=_shown_values(values))
        self._draw()

    def move_to(self, done: int, total: int, phase: str) -> None:
        shown = f"{self._description} {phase}".rstrip()
        at_once, self._shown = shown != self._shown, shown
        self.block.update(self.task, completed=done, total=total or None, description=shown)
        self._draw(at_once=at_once)

    def _draw(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._drawn > REFRESH_S:
            self._drawn = time.monotonic()
            self.block.refresh()


def _shown_values(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


MOST_LINES = 200
"""The most lines of one cell's output that are kept; earlier ones are only counted."""
BAR_WIDTH = 30


class NotebookView:
    """The one output of a cell. It is made by the cell's first line or bar, and changed from then on."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._left_out = 0
        self._bars: list[NotebookBar] = []
        self._last = ""
        """The last bar that ended, until another begins."""
        self._output: Any = None
        self._drawn, self._lock = 0.0, threading.RLock()

    def write(self, text: str) -> None:
        with self._lock:
            self._lines += text.splitlines()
            more = max(0, len(self._lines) - MOST_LINES)
            self._left_out += more
            del self._lines[:more]
            self.draw(at_once=True)

    def add_bar(self, description: str, total: int | None) -> NotebookBar:
        with self._lock:
            bar = NotebookBar(self, description, total)
            self._bars.append(bar)
            self._last = ""
            self.draw(at_once=True)
            return bar

    def remove_bar(self, bar: NotebookBar, *, keep: bool) -> None:
        with self._lock:
            self._bars.remove(bar)
            self._last = bar.line() if keep else self._last
            self.draw(at_once=True)

    def draw(self, *, at_once: bool = False) -> None:
        """Shows the output as it is now, unless it was shown a moment ago."""
        with self._lock:
            if not at_once and time.monotonic() - self._drawn < REFRESH_S:
                return
            self._drawn = time.monotonic()
            shown = {"text/plain": self._text()}
            if self._output is not None:
                self._output.update(shown, raw=True)
            elif shown["text/plain"]:
                from IPython.display import display

                self._output = display(shown, raw=True, display_id=True)

    def _text(self) -> str:
        first = [f"({self._left_out} lines before)"] if self._left_out else []
        bars = [bar.line() for bar in self._bars] or ([self._last] if self._last else [])
        return "\n".join([*first, *self._lines, *bars])


class NotebookBar:
    """One bar of a cell's output."""

    def __init__(self, view: NotebookView, description: str, total: int | None) -> None:
        self._view, self._description, self._phase = view, description, ""
        self._done, self._total, self._values = 0, total or 0, ""
        self._begun = time.monotonic()

    def advance(self, n: int, values: Mapping[str, float]) -> None:
        self._done, self._values = self._done + n, _shown_values(values)
        self._view.draw()

    def move_to(self, done: int, total: int, phase: str) -> None:
        at_once = phase != self._phase
        self._done, self._total, self._phase = done, total, phase
        self._view.draw(at_once=at_once)

    def line(self) -> str:
        """Returns the bar as text."""
        filled = round(BAR_WIDTH * min(1.0, self._done / self._total)) if self._total else 0
        bar = "━" * filled + "─" * (BAR_WIDTH - filled) if self._total else ""
        count = f"{self._done}/{self._total}" if self._total else str(self._done) if self._done else ""
        seconds = int(time.monotonic() - self._begun)
        parts = [self._description, self._phase, bar, count, f"{seconds // 60}:{seconds % 60:02d}"]
        return " ".join(part for part in [*parts, self._values] if part)


def _view() -> ProgressView | None:
    """Returns the place that a person watches; None: nobody does."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    if hasattr(shell, "kernel"):
        return _notebook_view(shell.execution_count)
    return _terminal_view() if sys.stderr is not None and sys.stderr.isatty() else None


@lru_cache(maxsize=1)
def _terminal_view() -> TerminalView:
    return TerminalView()


@lru_cache(maxsize=1)
def _notebook_view(cell: int) -> NotebookView:
    """The view of the cell that runs: the next one has an output of its own."""
    return NotebookView()


@contextmanager
def open_progress(description: str | None, total: int | None, *, keep: bool = True) -> Iterator[Progress]:
    """A bar on a terminal or in a notebook, which ends with the block. Nobody who watches: lines of the log
    where it takes long. No description: nothing. keep: its last state stays to be seen.
    """
    view = _view()
    if description is None:
        yield SilentProgress()
        return
    if view is None:
        logged = LoggedProgress(description, total)
        try:
            yield logged
        finally:
            logged.end()
        return
    bar = view.add_bar(description, total)
    try:
        yield bar
    finally:
        view.remove_bar(bar, keep=keep)


@contextmanager
def open_phases(title: str) -> Iterator[Callable[[str], None]]:
    """Shows the phases of a start: a line that changes where somebody watches, else lines of the log.

    The function that it gives is called with each phase as it begins, and with one of them again to move the
    clock. If there was a phase, the end of the block is logged with the seconds that it took.
    """
    begun, phases, watched = time.monotonic(), list[str](), _view() is not None
    with ExitStack() as stack:

        @lru_cache(maxsize=1)
        def open_bar() -> Progress:
            return stack.enter_context(open_progress(f"{title}:", None, keep=False))

        def begin_phase(phase: str) -> None:
            if phase not in phases:
                phases.append(phase)
                if not watched:
                    _log.info("%s: %s", title, phase)
            open_bar().move_to(0, 0, phases[-1])

        yield begin_phase
    if phases:
        _log.info("%s: ready in %.1f s", title, time.monotonic() - begun)


class LogHandler(logging.Handler):
    """Shows the records of this package in a program that has set up no logging of its own.

    It gives way to a program that sets up logging later.
    """

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.setFormatter(logging.Formatter("%(asctime)s art: %(message)s", datefmt="%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a record above the bars."""
        if logging.getLogger().handlers:
            return
        try:
            text, view = self.format(record), _view()
            if view is not None:
                view.write(text)
            elif sys.stderr is not None:
                sys.stderr.write(f"{text}\n")
                sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)


def show_log(level: int = logging.INFO) -> None:
    """Makes the log of this package visible from `level` on, unless the program has set up logging; of ART's
    extensions their warnings.

    A level that the program has given to the logger `art` stays.
    """
    art = logging.getLogger("art")
    if art.handlers or logging.getLogger().handlers:
        return
    for name in ("art", "art_extensions"):
        logging.getLogger(name).addHandler(LogHandler(level))
    if art.level == logging.NOTSET and level < logging.WARNING:
        art.setLevel(level)
