"""The trackers by the names that `report_metrics` has. A library is loaded when its first run is opened.

To add a tracker, write one file with a class that does what `Sink` says, and one line in `SINKS`; the tests
ask for its reader. W&B is older than this table and keeps its own face (`art.tracking.sinks.wandb`).
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib import import_module
from operator import methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from art.errors import ConfigurationError, did_you_mean, require_extra
from art.process.environment import TRACKED_TRAJECTORIES, variable
from art.tracking.sinks.delivery import CLOSING_S, Delivery
from art.tracking.sinks.sink import ReportedRun, Sink, TableRow, finite, sample_rows

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.trajectories import TrajectoryGroup

WANDB = "wandb"
"""It reports by itself, in the caller's thread, as programs of earlier releases expect."""
SINKS: Mapping[str, str] = MappingProxyType(
    {
        "otel": "art.tracking.sinks.otel:OTelSink",
        "tensorboard": "art.tracking.sinks.tensorboard:TensorBoardSink",
        "trackio": "art.tracking.sinks.trackio:TrackioSink",
        "mlflow": "art.tracking.sinks.mlflow:MlflowSink",
    }
)
"""Name -> the class. The name is that of the extra to install, too."""
KNOWN = (WANDB, *SINKS)
LOCAL = frozenset({"tensorboard", "trackio"})
"""Trackers that send nothing anywhere: they are shown a few trajectories without being asked to."""
TRACES = frozenset({"otel"})
"""Trackers that take every rollout, as `rollouts(split, step, groups)`."""
SHOWN_LOCALLY = 4

_log = logging.getLogger(__name__)


def check_sinks(names: Sequence[str] | None) -> None:
    """Warns, once per process, of an unknown name in `report_metrics`."""
    for name in names or ():
        if name not in KNOWN:
            _warn_unknown(str(name))


@lru_cache(maxsize=1024)
def _warn_unknown(name: str) -> None:
    hint = did_you_mean(name, KNOWN)
    _log.warning(
        "report_metrics has %r: nothing is sent there%s; known: %s. Rows are in history.jsonl as ever.",
        name,
        f" ({hint})" if hint else "",
        ", ".join(KNOWN),
    )


class Deliveries:
    """The open runs of this process: one for a tracker and a run, however many models report to it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, ReportedRun], Delivery] = {}
        self._lock = threading.Lock()

    def get(self, name: str, run: ReportedRun) -> Delivery:
        """Returns the run's delivery. Raises MissingExtraError where the tracker is not installed."""
        with self._lock:
            if (name, run) not in self._open:
                require_extra(name, f"report_metrics=[{name!r}]")
                self._open[name, run] = Delivery(name, partial(_make, name), run)
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
    step = int(row["training_step"])
    for name, each in _wanted(model).items():
        each.configure(config)
        each.put(methodcaller("log", step, finite(row)))
        for table, rows in (shown.locally if name in LOCAL else shown.everywhere).items():
            each.put(methodcaller("table", table, step, rows))
        if shown.groups and name in TRACES:
            each.put(methodcaller("rollouts", shown.split, step, shown.groups))


def configure(model: AnyModel, config: Mapping[str, Any]) -> None:
    """Adds to the config of the model's runs, and opens those that are not open."""
    for each in _wanted(model).values():
        each.configure(config)


def tables_of(groups: Sequence[TrajectoryGroup] | None, split: str) -> ShownTables:
    """Returns the trajectories that trackers are shown: as many a row as ART_TRACKED_TRAJECTORIES says.

    Unset: a few where they stay on this machine, none elsewhere.
    """
    told = variable(TRACKED_TRAJECTORIES)
    if told is not None and not told.isdecimal():
        raise ConfigurationError(f"{TRACKED_TRAJECTORIES} is {told!r}: a whole number is needed, 0 for none")
    rows = sample_rows(groups or (), SHOWN_LOCALLY if told is None else int(told))
    tables = {f"{split}/trajectories": rows} if rows else {}
    return ShownTables(
        everywhere={} if told is None else tables, locally=tables, split=split, groups=groups or ()
    )


def _wanted(model: AnyModel) -> dict[str, Delivery]:
    names = dict.fromkeys(name for name in model.report_metrics or () if name in SINKS)
    if not names:
        return {}
    name, folder = model.run_name or model.name, model._folder().absolute()
    run = ReportedRun(
        entity=model.entity, project=model.project, name=name, run_id=model.run_id, folder=folder
    )
    return {each: deliveries().get(each, run) for each in names}


def _make(name: str) -> Sink:
    module, _, kind = SINKS[name].partition(":")
    sink: Sink = getattr(import_module(module), kind)()
    return sink
