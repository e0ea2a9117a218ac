"""A run's steps: in the files that `art ui` and `art explain` read, beside its checkpoints, and at the
trackers that `art tinker --report` names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from art.errors import EXTRAS, ConfigurationError, did_you_mean, require_extra
from art.tracking.folders import ModelPaths
from art.tracking.model_files import append_history_row
from art.tracking.names import history_row
from art.tracking.sinks.registry import CLOSING_S, WANDB, Delivery, known_sinks, make_sink
from art.tracking.sinks.sink import ReportedRun, finite
from art.wire.gradients import MadeStep
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.art_server import PROJECT
from art_extensions.tinker.forward_backward import ForwardBackwardCall
from art_extensions.tinker.run_folders import RunFolders
from art_extensions.tinker.step_rollouts import StepRollouts
from art_extensions.tinker.store import QueuedRequest, Run, TinkerStore, now

_log = logging.getLogger(__name__)

NAMES = {
    "loss:sum": "loss/train",
    "forwarded_tokens:sum": "data/forwarded_tokens",
    "loss_tokens:sum": "data/step_trainer_tokens",
}
"""Metrics of a batch -> those of a step, which are their sums."""
BATCHES = "train/batches"
"""The number of a step's batches. By a name of this split `art explain` knows a step of training."""


def check_reports(names: Sequence[str]) -> None:
    """Raises ConfigurationError for a name that is no tracker's, MissingExtraError for a missing library."""
    known = [name for name in known_sinks() if name != WANDB]
    for name in names:
        if name == WANDB:
            raise ConfigurationError(
                "--report wandb is not supported: the program reports to W&B itself, as the recipes of "
                "tinker-cookbook do with wandb_project"
            )
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigurationError(
                f"--report {name}: there is no such tracker{hint and f', {hint}'}; known: {', '.join(known)}"
            )
        if name in EXTRAS:
            require_extra(name, f"art tinker --report {name}")


CallOf = Callable[[QueuedRequest], ForwardBackwardCall]


class RunRecords:
    """Writes the steps of all runs down. call_of: the checked call of a stored request. reports: the names of
    trackers, which are told of the operator's runs.
    """

    def __init__(
        self,
        store: TinkerStore,
        call_of: CallOf,
        folders: RunFolders,
        reports: Sequence[str] = (),
    ) -> None:
        self._rollouts, self._reports = StepRollouts(store, call_of), tuple(reports)
        self._folders = folders
        self._deliveries: dict[str, tuple[ReportedRun, list[Delivery]]] = {}
        """The open runs at trackers, by the run's id."""

    async def record(self, run: Run, made: MadeStep, seq: int, batches: Sequence[QueuedRequest]) -> None:
        """Records a step that the request of this number made of batches, where its folder is on this
        machine.

        A step that is made a second time has two rows, of which readers take the newer one. A full disk costs
        the row and not the step, and so does a tracker that fails.
        """
        folder = await self._folders.find(run, made)
        if folder is None:
            return
        metrics = step_metrics(made, [one.result or b"" for one in batches])
        row = history_row(metrics, step=made.step, wall_clock=now() - run.created_at)
        await asyncio.to_thread(_append, ModelPaths(folder).history, row)
        if self._reports and made.checkpoint_path is not None:  # the operator's own
            await asyncio.to_thread(self._report, run, folder, made.step, row)
        await self._rollouts.record(run, folder, made.step, seq, batches)

    def forget(self, run_id: str) -> None:
        """Ends a run, at its trackers too: what waits there is still written."""
        self._rollouts.forget(run_id)
        self._folders.forget(run_id)
        self._end(run_id)

    def close(self) -> None:
        """Ends all runs at their trackers, in some seconds at most."""
        left = [one for run_id in list(self._deliveries) for one in self._end(run_id)]
        deadline = time.monotonic() + CLOSING_S
        for one in left:
            one.close(deadline)

    def _report(self, run: Run, folder: Path, step: int, row: Mapping[str, Any]) -> None:
        reported = ReportedRun(entity=None, project=PROJECT, name=run.name, run_id=None, folder=folder)
        known, opened = self._deliveries.get(run.run_id, (reported, []))
        if known != reported:  # it has loaded other weights, and goes on as another model
            self._end(run.run_id)
            opened = []
        if not opened:
            opened = [Delivery(name, partial(make_sink, name), reported) for name in self._reports]
            self._deliveries[run.run_id] = reported, opened
            for one in opened:
                one.configure({"base_model": run.base_model, "lora": dict(run.lora), **run.metadata})
        for one in opened:
            one.put(methodcaller("log", step, finite(row)))

    def _end(self, run_id: str) -> list[Delivery]:
        """The run's deliveries, which take no further rows."""
        _, opened = self._deliveries.pop(run_id, (None, []))
        for one in opened:
            one.begin_closing()
        return opened


MakeRecords = Callable[[TinkerStore, CallOf], RunRecords]


def step_metrics(made: MadeStep, results: Sequence[bytes]) -> dict[str, float]:
    """The metrics of a step that was made of batches with these results."""
    metrics = Counter({BATCHES: float(len(results)), **made.metrics})
    for result in results:
        found = messages.ForwardBackwardOutput.FromString(result).metrics
        for theirs, ours in NAMES.items():
            metrics[ours] += found.get(theirs, 0.0)
    return dict(metrics)


def _append(history: Path, row: dict[str, Any]) -> None:
    try:
        append_history_row(history, row)
    except OSError as error:
        _log.warning("a step is not in %s: %s", history, error)
