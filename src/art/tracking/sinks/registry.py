"""The trackers by the names that `report_metrics` has. A library is loaded when its first run is opened.

A tracker is an extension (`art.extensions`) of the kind `sink`: a class that does what `Sink` says. W&B is
older than that and has a face of its own, `ImmediateSink`.

Rows on their way to a tracker that may be slow, down or wrong: a thread of its own, a bounded queue.

A row that a healthy tracker takes at once has arrived when `put` returns, so a killed program loses at most
the row it was writing. Where a tracker takes longer, `put` stops waiting for it until it has caught up. What
a tracker refuses is told once; the rows are in `history.jsonl` in any case.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from art.errors import EXTRAS, ConfigurationError, did_you_mean, require_extra
from art.extensions import SINK, extension_points, load_extension
from art.process.environment import TRACKED_CHECKPOINTS, TRACKED_TRAJECTORIES, WANDB_API_KEY, variable
from art.tracking.names import STEP_COLUMN
from art.tracking.sinks.sink import ImmediateSink, ReportedRun, Sink, TableRow, finite, sample_rows
from art.wire.models import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from art.wire.nested import deep_merge

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.trajectories import TrajectoryGroup

WANDB = "wandb"
"""It reports in the caller's thread, as programs of earlier releases expect."""
SHOWN_LOCALLY = 4
PATIENCE_S = 5.0
"""How long a row may hold up the training, until the tracker has caught up again."""
OPENING_S = 30.0
"""The same for the first row: the library is loaded, and a server found or a database made."""
MOST_WAITING = 10_000
"""Rows and tables. Beyond that the oldest are dropped."""
TROUBLES = frozenset({"late", "failed"})
"""The kinds of trouble that mostly have one cause; the second one is logged as information."""
CLOSING_S = 10.0
"""How long the end of a program waits for all its trackers."""

_log = logging.getLogger(__name__)


def known_sinks() -> tuple[str, ...]:
    """Returns the names that `report_metrics` may have."""
    return tuple(extension_points(SINK))


def reports_to_wandb(model: AnyModel) -> bool:
    """Returns whether `report_metrics` names it, or is None and WANDB_API_KEY is set."""
    names = model.report_metrics
    asked = variable(WANDB_API_KEY) is not None if names is None else WANDB in names
    return asked and WANDB in known_sinks()


def check_sinks(names: Sequence[str] | None) -> None:
    """Warns, once per process, of an unknown name in `report_metrics`."""
    for name in names or ():
        if name not in known_sinks():
            _warn_unknown(str(name))


@lru_cache(maxsize=1024)
def _warn_unknown(name: str) -> None:
    hint = did_you_mean(name, known_sinks())
    _log.warning(
        "report_metrics has %r: nothing is sent there%s; known: %s. Rows are in history.jsonl as ever.",
        name,
        f" ({hint})" if hint else "",
        ", ".join(known_sinks()) or "none",
    )


class Delivery:
    """One run at one tracker. Safe to use from several threads. No method raises what the tracker raised."""

    def __init__(self, name: str, make: Callable[[], Sink], run: ReportedRun, *, most: int = MOST_WAITING):
        self._name, self._make, self._run, self._most = name, make, run, most
        self._sink: Sink | None = None
        self._config: dict[str, Any] = {}
        self._waiting: deque[Callable[[Sink], None]] = deque()
        self._put, self._done, self._failed, self._dropped = 0, 0, 0, 0
        self._late = self._closing = False
        self._warned: set[str] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def configure(self, config: Mapping[str, Any]) -> None:
        """Adds to the run's config, now or when it is opened."""
        with self._changed:
            if not config or (merged := deep_merge(self._config, config)) == self._config:
                return
            self._config = merged
        self.put(methodcaller("config", merged))

    def put(self, call: Callable[[Sink], None], patience_s: float | None = None) -> None:
        """Hands the tracker a call, and waits for it as long as the tracker keeps up."""
        with self._changed:
            if patience_s is None:
                patience_s = OPENING_S if self._sink is None else PATIENCE_S
            if self._closing:
                return
            if len(self._waiting) >= self._most:
                self._waiting.popleft()
                self._done += 1
                self._dropped += 1
                self._warn_once("dropped", f"is {self._most} rows late: the oldest are not sent to it")
            self._waiting.append(call)
            self._put += 1
            mine = self._put
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"art-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            if not self._late and not self._changed.wait_for(lambda: self._done >= mine, patience_s):
                self._late = True
                self._warn_once("late", f"takes over {patience_s:g} s: the run goes on, rows wait")

    def begin_closing(self) -> None:
        """Takes no further rows; what waits is written, and the run ends."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, deadline: float) -> None:
        """Waits for the end of the run, until a moment of `time.monotonic()`."""
        self.begin_closing()
        thread = self._thread
        if thread is None:
            return
        thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            if thread.is_alive() and (left := self._put - self._done):
                _log.warning(
                    "%s: %d rows of %r had not arrived when the program ended; they are in history.jsonl",
                    *(self._name, left, self._run.name),
                )

    @property
    def failed(self) -> int:
        """The number of calls that the tracker refused or that were dropped."""
        with self._changed:
            return self._failed + self._dropped

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    break
                call = self._waiting.popleft()
            error = self._try(call)
            with self._changed:
                self._done += 1
                self._failed += error is not None
                self._late = self._late and bool(self._waiting)
                self._changed.notify_all()
        if self._sink is not None:
            self._try(methodcaller("close"))

    def _try(self, call: Callable[[Sink], None]) -> Exception | None:
        try:
            if self._sink is None:
                sink = self._make()
                with self._changed:
                    config = self._config
                sink.open(self._run, config)
                self._sink = sink
            call(self._sink)
        except Exception as error:  # noqa: BLE001 - trackers raise errors of many kinds; none may end a training
            why = f"{type(error).__name__}: {error}"
            with self._changed:
                self._warn_once("failed", f"failed, the run goes on without it: {why}")
            return error
        return None

    def _warn_once(self, kind: str, what: str) -> None:
        """A tracker that stops is late, then fails: that is one warning, and a line of information."""
        if kind not in self._warned:
            known = kind in TROUBLES and self._warned & TROUBLES
            self._warned.add(kind)
            level = logging.INFO if known else logging.WARNING
            _log.log(level, "%s %s (logged once; all rows are in history.jsonl)", self._name, what)


class Deliveries:
    """The open runs of this process: one for a tracker and a run, however many models report to it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, ReportedRun], Delivery] = {}
        self._lock = threading.Lock()

    def get(self, name: str, run: ReportedRun) -> Delivery:
        """Returns the run's delivery. Raises MissingExtraError where the tracker is not installed."""
        with self._lock:
            if (name, run) not in self._open:
                if name in EXTRAS:
                    require_extra(name, f"report_metrics=[{name!r}]")
                self._open[name, run] = Delivery(name, partial(make_sink, name), run)
            return self._open[name, run]

    def close(self, seconds: float = CLOSING_S) -> None:
        """Ends all runs, side by side, in at most so many seconds."""
        with self._lock:
            found, self._open = list(self._open.values()), {}
        deadline = time.monotonic() + seconds
        for each in found:
            each.begin_closing()
        for each in found:
            each.close(deadline)


@lru_cache(maxsize=1)
def deliveries() -> Deliveries:
    """Returns the runs that are open in this process; they are closed when it ends."""
    opened = Deliveries()
    atexit.register(opened.close)
    return opened


class ShownTables(NamedTuple):
    """Trajectories by the name of their table."""

    everywhere: Mapping[str, Sequence[TableRow]]
    locally: Mapping[str, Sequence[TableRow]]
    split: str = ""
    groups: Sequence[TrajectoryGroup] = ()
    """All of the row, for a tracker that takes rollouts and not tables."""


def report(model: AnyModel, row: Mapping[str, Any], config: Mapping[str, Any], shown: ShownTables) -> None:
    """Reports a row of the history, and tables by name, to the trackers that the model names besides W&B.

    Raises MissingExtraError where one is not installed; what a tracker raises ends nothing.
    """
    step = int(row[STEP_COLUMN])
    for each in _wanted(model):
        each.configure(config)
        each.put(methodcaller("log", step, finite(row)))
        if shown.locally or shown.groups:
            each.put(partial(_show_rollouts, step=step, shown=shown))


def _show_rollouts(sink: Sink, *, step: int, shown: ShownTables) -> None:
    is_local = getattr(sink, "is_local", False)
    for table, rows in (shown.locally if is_local else shown.everywhere).items():
        sink.table(table, step, rows)
    if shown.groups and hasattr(sink, "rollouts"):
        sink.rollouts(shown.split, step, shown.groups)


def checkpoints_wanted() -> bool:
    """Returns whether ART_TRACKED_CHECKPOINTS asks for the adapters of steps. Raises ConfigurationError."""
    setting = variable(TRACKED_CHECKPOINTS)
    if setting not in (None, "0", "1"):
        raise ConfigurationError(f"{TRACKED_CHECKPOINTS} is {setting!r}: use 1, or 0")
    return setting == "1"


def report_checkpoint(
    model: AnyModel, config: Mapping[str, Any], step: int, folder: Path, wandb: ImmediateSink | None
) -> None:
    """Gives the adapter of a step to the trackers that keep files, where its checkpoint is on this machine.
    folder: the checkpoint's.
    """
    files = [folder / name for name in (ADAPTER_CONFIG_FILE, ADAPTER_FILE)]
    if all(file.is_file() for file in files):
        for each in _wanted(model):
            each.put(partial(_keep_files, step=step, files=files))
        if wandb is not None:
            wandb.checkpoint(model, config, step, files)


def _keep_files(sink: Sink, *, step: int, files: Sequence[Path]) -> None:
    if hasattr(sink, "checkpoint"):
        sink.checkpoint(step, files)


def configure(model: AnyModel, config: Mapping[str, Any]) -> None:
    """Adds to the config of the model's runs, and opens those that are not open."""
    for each in _wanted(model):
        each.configure(config)


def tables_of(groups: Sequence[TrajectoryGroup] | None, split: str) -> ShownTables:
    """Returns the trajectories that trackers are shown: as many a row as ART_TRACKED_TRAJECTORIES says.

    Unset: a few where they stay on this machine, none elsewhere.
    """
    value = variable(TRACKED_TRAJECTORIES)
    if value is not None and not value.isdecimal():
        raise ConfigurationError(f"{TRACKED_TRAJECTORIES} is {value!r}: a whole number is needed, 0 for none")
    rows = sample_rows(groups or (), SHOWN_LOCALLY if value is None else int(value))
    tables = {f"{split}/trajectories": rows} if rows else {}
    return ShownTables(
        everywhere={} if value is None else tables, locally=tables, split=split, groups=groups or ()
    )


def _wanted(model: AnyModel) -> list[Delivery]:
    known = {*known_sinks()} - {WANDB}
    names = dict.fromkeys(name for name in model.report_metrics or () if name in known)
    if not names:
        return []
    name, folder = model.run_name or model.name, model._folder().absolute()
    run = ReportedRun(
        entity=model.entity, project=model.project, name=name, run_id=model.run_id, folder=folder
    )
    return [deliveries().get(each, run) for each in names]


def make_sink(name: str) -> Sink:
    """Returns a new sink of a tracker, whose library is loaded. Raises: ConfigurationError."""
    sink: Sink = load_extension(SINK, name)()
    return sink
