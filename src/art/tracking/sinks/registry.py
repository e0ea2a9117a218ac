"""The trackers by the names that `report_metrics` has, and the way of a row to all that a model wants.

To add a tracker, write one file with a class that does what `Sink` says, and one line in `SINKS`.
`tests/contracts/test_sinks.py` then tests it. W&B is older than this table and keeps its own face
(`art.tracking.sinks.wandb`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from art.errors import did_you_mean, require_extra

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.trajectories import TrajectoryGroup

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """One model's place in a tracker. It is opened by its first row, in the program that logs.

    What a method raises is told once in the log, and stops nothing. Another program may have reported to the
    same place before: a sink goes on there. Rows may come in any order of steps.
    """

    def __init__(self, model: AnyModel) -> None: ...

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Reports the numbers of a row. After the return a killed program loses none of them."""
        ...

    def log_rollouts(self, groups: Sequence[TrajectoryGroup], split: str, step: int) -> None:
        """Shows a few of the rollouts as texts or a table; a tracker without such things does nothing."""
        ...

    def close(self) -> None:
        """Flushes and lets go, within seconds. Called at the end of the program."""
        ...


WANDB = "wandb"
SINKS: Mapping[str, str] = {
    "tensorboard": "art.tracking.sinks.tensorboard:TensorBoardSink",
}
"""Name -> the class. The name is that of the extra to install, too."""
KNOWN = (WANDB, *SINKS)


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


class OpenSinks:
    """The open sinks of one model, opened when they are first needed and closed with the program."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Sink] = {}
        """By tracker and the model's folder."""
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _close_all, self._open)

    def log(
        self, model: AnyModel, row: Mapping[str, Any], groups: Sequence[TrajectoryGroup], split: str
    ) -> None:
        """Reports a row and a few of its rollouts to each tracker that the model's `report_metrics` names.

        Raises MissingExtraError where a tracker is not installed; any other failure is one warning a tracker.
        """
        for name in dict.fromkeys(model.report_metrics or ()):
            if name in SINKS:
                with self._lock:
                    self._log(name, model, row, groups, split)

    def _log(
        self,
        name: str,
        model: AnyModel,
        row: Mapping[str, Any],
        groups: Sequence[TrajectoryGroup],
        split: str,
    ) -> None:
        require_extra(name, f"report_metrics=[{name!r}]")
        try:
            sink = self._sink(name, model)
            sink.log(row, int(row["step"]))
            if groups:
                sink.log_rollouts(groups, split, int(row["step"]))
        except Exception as error:  # noqa: BLE001 - trackers raise anything, and none may end a training
            if name not in self._warned:
                self._warned.add(name)
                _log.warning(
                    "%s failed, the run goes on without it: %s: %s. Said once; history.jsonl has all rows.",
                    name,
                    type(error).__name__,
                    error,
                )

    def _sink(self, name: str, model: AnyModel) -> Sink:
        key = name, str(model._folder())
        if key not in self._open:
            module, _, kind = SINKS[name].partition(":")
            self._open[key] = getattr(import_module(module), kind)(model)
        return self._open[key]


def _close_all(sinks: dict[tuple[str, str], Sink]) -> None:
    for (name, _), sink in sinks.items():
        try:
            sink.close()
        except Exception as error:  # noqa: BLE001 - the others are closed, too
            _log.warning("%s could not be closed: %s", name, error)
    sinks.clear()
