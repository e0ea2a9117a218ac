"""The log of one model: trajectories, rows of the history, sums over the run, and who else is told."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.extensions import SINK, WATCH, load_extension, load_extensions
from art.tracking.averages import Summary, summarize
from art.tracking.folders import ModelPaths, lock_folder
from art.tracking.metrics_builder import MetricsBuilder
from art.tracking.model_files import append_history_row, read_history, read_sums, write_sums
from art.tracking.names import SPLITS, check_name, check_split, history_row, is_managed, number, route
from art.tracking.run_config import RunConfig
from art.tracking.run_facts import run_facts
from art.tracking.sinks.registry import (
    WANDB,
    checkpoints_wanted,
    configure,
    report,
    report_checkpoint,
    reports_to_wandb,
    tables_of,
)

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.tracking.sinks.sink import ImmediateSink
    from art.trajectories import TrajectoryGroup

COST_CONTEXTS = {"train": "train", "val": "eval", "test": "eval"}
"""What the costs of a split belong to."""


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """The content of one call of `model.log`. groups None: numbers only."""

    groups: list[TrajectoryGroup] | None
    split: str
    metrics: Mapping[str, float]
    step: int
    stored: bool = False
    """The groups are in the step's file already: only their row is missing."""


class RunLog:
    """Writes entries, one at a time. A copy of a model has a log of its own.

    The sums over the run belong to the model's folder: a model that gets another name or `base_path` goes on
    with the sums found there.
    """

    def __init__(self) -> None:
        self.config = RunConfig()
        self._wandb: ImmediateSink | None = None
        self._training: dict[str, Any] = {}
        """Settings of the newest training job."""
        self._builder = MetricsBuilder("train")
        self._watches: list[Any] | None = None
        self._contexts: set[str] = set()
        self._folder: Path | None = None
        self._sums: dict[str, Any] = {}
        """The state of the metrics builder in the folder's file when the file was last read or written."""
        self._started = self._since = time.monotonic()
        self._trained_step: int | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> RunLog:
        """Copies the log; sums and waiting values stay with the original."""
        copied = RunLog()
        copied._training, copied._builder = dict(self._training), self._builder.copy_settings()
        copied.config, copied._wandb = copy.deepcopy((self.config, self._wandb), memo)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def open_trackers(self, model: AnyModel) -> None:
        """Opens the model's runs at its trackers before there is a row. Blocking."""
        self._note_facts(model)
        self.wandb_run(model)
        configure(model, self.config.values)

    def wandb_run(self, model: AnyModel) -> Any:
        """Returns W&B's run of the model, started if it is not open; None where the model does not report."""
        wandb = self._wandb_of(model)
        return None if wandb is None else wandb.open(model, self.config.values)

    def _wandb_of(self, model: AnyModel) -> ImmediateSink | None:
        if not reports_to_wandb(model):
            return None
        if self._wandb is None:
            self._wandb = load_extension(SINK, WANDB)()
        unasked = model.report_metrics is None
        return None if unasked and self._wandb.given_up else self._wandb

    def note_training(self, settings: Mapping[str, Any]) -> None:
        """Tells the trackers what a training job was asked for, with the next row."""
        self._training = dict(settings)

    def _note_facts(self, model: AnyModel) -> None:
        wandb = self._wandb_of(model)
        if model.report_metrics or wandb is not None:
            if self.config.set_facts(run_facts(model, self._training)) and wandb is not None:
                wandb.configure(model, self.config.values)

    def update_config(self, model: AnyModel, config: Mapping[str, Any]) -> None:
        """Adds to the config of the model's runs at all its trackers."""
        self._note_facts(model)
        self.config.add(config)
        if (wandb := self._wandb_of(model)) is not None:
            wandb.configure(model, self.config.values)
        configure(model, self.config.values)

    def builder(self, folder: Path, cost_context: str | None) -> MetricsBuilder:
        """The builder whose amounts the next row takes up. Each cost context waits for a row of its own
        splits: "train" for train, "eval" for val and test, others and None for whichever comes first.
        """
        if folder != self._folder:
            self._go_on(folder, read_sums(folder))
        if cost_context is None:
            return self._builder
        builder = self._builder.for_cost_context(cost_context, buffer_scope=cost_context)
        self._contexts.add(cost_context)
        return builder

    def ready(self) -> None:
        """The model can be sampled from now on: the time of the first step begins."""
        if self._trained_step is None:
            self._since = time.monotonic()

    def write(self, model: AnyModel, entry: LogEntry) -> None:
        """Write trajectories, row and sums, then report. What is refused is refused before anything is
        written. Blocking; safe from several threads and processes.
        """
        check_split(entry.split)
        folder = model._folder()
        shown, keep = tables_of(entry.groups, entry.split), checkpoints_wanted()
        with self._lock:
            summary = Summary() if entry.groups is None else summarize(entry.groups, entry.split)
            averages, amounts = _numbers(entry, summary)
            if entry.split in SPLITS:
                self._builder.totals.check(amounts)
            if entry.groups is not None and not entry.stored:
                from art.tracking.trajectory_log import log_groups

                log_groups(ModelPaths(folder).trajectories / entry.split, entry.step, entry.groups)
            with lock_folder(folder):
                if entry.split in SPLITS:
                    self._go_on(folder, read_sums(folder))
                    amounts = self._add_up(model, entry, amounts, summary.scenarios)
                    self._sums = self._builder.state_dict()
                    write_sums(folder, self._sums)
                if entry.groups is None and not (entry.metrics or amounts):
                    return
                given_sums = {name: value for name, value in averages.items() if "/cum/" in name}
                row = self._row(entry, {**averages, **amounts, **given_sums})
                append_history_row(ModelPaths(folder).history, row)
            if self._watches is None:
                self._watches = [make_watch() for make_watch in load_extensions(WATCH).values()]
            for watch in self._watches:
                watch.see(folder, row)
        self._note_facts(model)
        if (wandb := self._wandb_of(model)) is not None:
            history = partial(read_history, ModelPaths(folder).history)
            wandb.log(model, self.config.values, row, shown.everywhere, history)
        report(model, row, self.config.values, shown)
        if keep and entry.split == "train":
            saved, wandb = ModelPaths(folder).checkpoints / f"{entry.step:04d}", self._wandb_of(model)
            report_checkpoint(model, self.config.values, entry.step, saved, wandb)

    def _go_on(self, folder: Path, found: dict[str, Any]) -> None:
        """Go on from the sums in the file, if it is another file or another program has added to it."""
        if folder != self._folder or found != self._sums:
            self._builder.load_state_dict(found)
            self._folder, self._sums = folder, found

    def _row(self, entry: LogEntry, metrics: Mapping[str, float]) -> dict[str, Any]:
        routed = {route(name, entry.split): value for name, value in metrics.items()}
        return history_row(routed, step=entry.step, wall_clock=time.monotonic() - self._started)

    def _add_up(
        self, model: AnyModel, entry: LogEntry, amounts: dict[str, float], scenarios: frozenset[str]
    ) -> dict[str, float]:
        """The amounts of this entry and those that waited for it, with sums over the run."""
        context = COST_CONTEXTS[entry.split]
        further = self._contexts - (set(COST_CONTEXTS.values()) - {context})
        if entry.split == "train" and model._backend is not None:
            present = {*amounts, *self._builder.waiting(*further)}
            spent = self._spent(model, entry.step)
            amounts = amounts | {name: value for name, value in spent.items() if name not in present}
        self._builder.add_metrics(amounts, scenarios)
        return self._builder.take_metrics(*further)

    def _spent(self, model: AnyModel, step: int) -> dict[str, float]:
        """Seconds since the row of the training step before, once for each new step, and what they cost."""
        if self._trained_step is not None and step <= self._trained_step:
            return {}
        since, self._since, self._trained_step = self._since, time.monotonic(), step
        seconds = self._since - since
        usd_per_hour = getattr(model._backend, "gpu_cost_per_hour_usd", None)
        if usd_per_hour is None:
            return {"time/step_wall_s": seconds}
        return {"time/step_wall_s": seconds, "costs/gpu": usd_per_hour * gpus(model) * seconds / 3600.0}


def gpus(model: AnyModel) -> int:
    """Returns how many GPUs its `_internal_config` names; one if it names none."""
    config = getattr(model, "_internal_config", None) or {}
    named = {*config.get("trainer_gpu_ids", ()), *config.get("inference_gpu_ids", ())}
    return len(named) or 1


def _numbers(entry: LogEntry, summary: Summary) -> tuple[dict[str, float], dict[str, float]]:
    """Averages, and amounts that add up over the run; without the split in their names."""
    given = {name: number(name, value) for name, value in entry.metrics.items()}
    for name in given:
        check_name(name)
    plain = {name: value for name, value in given.items() if not is_managed(name)}
    finite = {name: value for name, value in given.items() if is_managed(name) and math.isfinite(value)}
    amounts = {**summary.counts, **finite}  # a count that is given is not counted again
    for name, value in summary.sums.items():
        amounts[name] = amounts.get(name, 0.0) + value
    return {**summary.averages, **plain}, amounts
