"""Rows of the log as runs of Weights & Biases. The library is loaded when the first run is opened.

`OpenRuns` holds the runs that are open in this process. `chart_lines` says what the charts of a run show;
they are drawn anew as the run grows.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from art.errors import ConfigurationError, install_command, is_installed
from art.tracking.names import SECTIONS, SPLITS, STEP_COLUMN
from art.tracking.run_facts import FACTS
from art.tracking.sinks.sink import TableRow, safe_name
from art_extensions.sinks.tags import LONGEST_TAG, run_tags

if TYPE_CHECKING:
    from pathlib import Path

    from art.backend import AnyModel


_NOT_IN_AN_ID = re.compile(r"[/\\#?%:]")
_NOT_IN_AN_ARTIFACT = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_ARTIFACT = 100


class RunKey(NamedTuple):
    """The identity of a run. `run_id` None: the name."""

    entity: str | None
    project: str
    name: str
    run_id: str | None


History = Callable[[], Iterable[Mapping[str, Any]]]
"""All rows of a model's log so far, this one included."""
Line = dict[int, float]
"""Training step -> value."""

BAND = 2.0
"""Standard errors around the mean reward: about 95 %."""
FAULTS = ("truncated_rate", "malformed_call_rate", "exception_rate", "unscored_rate")
EACH_UNTIL = 10
MOST_POINTS = 400
"""The most points of a line. Of a longer run, every second step or fewer are drawn, and the newest."""
_SHEET, _ROLLOUTS, _STARTED = "data/sheet/", "_rollouts", "data/sheet/started_rollouts"


def chart_lines(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Line]]:
    """Returns the lines of the charts that the rows have numbers for: chart -> name of a line -> its points.

    `charts/<split>_reward`: the mean, and two standard errors above and below it. `charts/<split>_faults`:
    shares of rollouts and replies with which something is wrong. `charts/fates`: the balance sheet, as shares
    of the rollouts of the step.
    """
    charts: dict[str, dict[str, Line]] = {}
    for row in rows:
        step = row.get(STEP_COLUMN)
        if not isinstance(step, int):
            continue
        for chart, lines in _points(row).items():
            for name, value in lines.items():
                charts.setdefault(chart, {}).setdefault(name, {})[step] = value
    if fates := charts.get(FATES):
        steps = {step for line in fates.values() for step in line}
        charts[FATES] = {
            name: {step: line.get(step, 0.0) for step in steps}
            for name, line in fates.items()
            if any(line.values())
        }
    return charts


FATES = "charts/fates"


def _points(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for split in sorted(SPLITS):
        mean, error = row.get(f"{split}/reward"), row.get(f"{split}/reward_sem")
        if mean is not None:
            found[f"charts/{split}_reward"] = {"mean": mean} | (
                {}
                if error is None
                else {
                    f"mean + {BAND:g} standard errors": mean + BAND * error,
                    f"mean - {BAND:g} standard errors": mean - BAND * error,
                }
            )
        faults = {name: row[f"{split}/{name}"] for name in FAULTS if f"{split}/{name}" in row}
        if faults:
            found[f"charts/{split}_faults"] = faults
    if started := row.get(_STARTED):
        found[FATES] = {
            name.removeprefix(_SHEET).removesuffix(_ROLLOUTS): value / started
            for name, value in row.items()
            if name.startswith(_SHEET) and name.endswith(_ROLLOUTS) and name != _STARTED
        }
    return found


def thinned(steps: Iterable[int]) -> list[int]:
    """Returns the steps that are drawn: at most `MOST_POINTS` of them, and the newest."""
    known = sorted(steps)
    return sorted({*known[:: -(-len(known) // MOST_POINTS)], known[-1]})


def _drawn(chart: str, lines: Mapping[str, Line]) -> Any:
    """W&B's own chart of lines, which it keeps with a table of its points."""
    drawn_steps = thinned({step for line in lines.values() for step in line})
    points = {name: [step for step in drawn_steps if step in line] for name, line in lines.items()}
    return import_module("wandb").plot.line_series(
        xs=list(points.values()),
        ys=[[lines[name][step] for step in known] for name, known in points.items()],
        keys=list(points),
        title=chart.removeprefix("charts/").replace("_", " "),
        xname="training step",
        split_table=True,
    )


class OpenRuns:
    """One run for a key, however many models report to it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, _Run] = {}
        self._lock = threading.Lock()
        self._at_exit = False

    def open(self, key: RunKey, config: Mapping[str, Any], patience_s: float | None = None) -> Any:
        """W&B's run, started if it is not open. patience_s: how long that may take; None: as it does."""
        with self._lock:
            return self._get(key, config, patience_s).run

    def log(
        self,
        key: RunKey,
        config: Mapping[str, Any],
        row: Mapping[str, Any],
        patience_s: float | None = None,
        history: History | None = None,
    ) -> None:
        """Logs a row to the run. A run that the program has ended is continued. history: for its charts."""
        self._act(key, config, patience_s, lambda run: run.log(row, history))

    def keep_files(
        self,
        key: RunKey,
        config: Mapping[str, Any],
        step: int,
        files: Sequence[Path],
        patience_s: float | None = None,
    ) -> None:
        """Logs the adapter of a step to the run. A run that the program has ended is continued."""
        self._act(key, config, patience_s, lambda run: run.keep_files(key, config, step, files))

    def _act(
        self,
        key: RunKey,
        config: Mapping[str, Any],
        patience_s: float | None,
        act: Callable[[_Run], None],
    ) -> None:
        with self._lock:
            run = self._get(key, config, patience_s)
            try:
                act(run)
            except import_module("wandb").UsageError:
                del self._runs[key]
                act(self._get(key, config, patience_s))

    def finish_charts(self) -> None:
        """Draws the charts of all runs that have rows since they were drawn last. Waits for no other call."""
        if not self._lock.acquire(blocking=False):
            return  # W&B is still looking for its server: there is nothing to draw on
        try:
            for key, run in self._runs.items():
                try:
                    run.draw_last()
                except Exception as error:  # noqa: BLE001 - a run that the program has ended, among others
                    _log.debug("the last charts of %s were not drawn: %s", key.name, error)
        finally:
            self._lock.release()

    def configure(self, key: RunKey, config: Mapping[str, Any]) -> None:
        """Adds to the config of an open run; a run that is not open gets it at its start."""
        with self._lock:
            if key in self._runs:
                self._runs[key].run.config.update(dict(config), allow_val_change=True)

    def _get(self, key: RunKey, config: Mapping[str, Any], patience_s: float | None) -> _Run:
        if key not in self._runs:
            wandb = import_module("wandb")
            settings = {} if patience_s is None else {"init_timeout": patience_s}
            started = wandb.init(
                entity=key.entity,
                project=key.project,
                name=key.name,
                id=self._free_id(key),
                config=dict(config),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(**settings),
            )
            base = dict(config.get(FACTS) or {}).get("base_model")
            if tags := [*([base[-LONGEST_TAG:]] if base else []), *run_tags(config)]:
                started.tags = tuple(dict.fromkeys((*(started.tags or ()), *tags)))
            if not self._at_exit:  # after W&B's own, so that it runs before
                self._at_exit = bool(atexit.register(self.finish_charts))
            self._runs[key] = _Run(started)
        return self._runs[key]

    def _free_id(self, key: RunKey) -> str:
        """The run's id, which lets a later process resume it.

        W&B tells runs with one id apart by entity and project, but opens only one of them at a time in a
        process: the second gets an id that also says where it belongs.
        """
        name = key.run_id or key.name
        safe = _NOT_IN_AN_ID.sub("-", name)
        if safe != name:  # two names must not become one run
            safe = f"{safe}-{_digest(name)}"
        if any(run.run.id == safe for run in self._runs.values()):
            return f"{safe}-{_digest(f'{key.entity}/{key.project}/{key.name}')}"
        return safe


@lru_cache(maxsize=1)
def open_runs() -> OpenRuns:
    """Returns the open runs of this process: W&B's own service is one per process, too."""
    return OpenRuns()


class _Run:
    """A run and the axes it knows."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self._defined: set[str] = set()
        self._rows = self._drawn_at = 0
        self._history: History | None = None
        self._charted = True
        for axis in (STEP_COLUMN, "time/wall_clock_sec"):
            run.define_metric(axis)
        for section in sorted(SECTIONS | SPLITS | {"discarded"}):
            self._define(f"{section}/*")

    def _define(self, name: str) -> None:
        if name not in self._defined:
            self._defined.add(name)
            self.run.define_metric(name, step_metric=STEP_COLUMN)

    def log(self, row: Mapping[str, Any], history: History | None = None) -> None:
        """W&B's own step only counts calls: rows may come in any order of training steps.

        The charts come with each of the first rows, then whenever there are a tenth more: all points are sent
        each time.
        """
        for name in row:
            section, _, rest = name.partition("/")
            if section == "costs" and "/" in rest:
                self._define(name)
            elif rest:
                self._define(f"{section}/*")
        values = {name: value for name, value in row.items() if name not in ("step", "recorded_at")}
        if history is not None and _points(row):
            self._rows, self._history = self._rows + 1, history
            if self._rows <= EACH_UNTIL or self._rows >= 1.1 * self._drawn_at:
                values |= self._charts(history)
        self.run.log(values)

    def keep_files(self, key: RunKey, config: Mapping[str, Any], step: int, files: Sequence[Path]) -> None:
        """W&B copies the files before it returns, and uploads the copies: a step may be deleted meanwhile."""
        name = f"{safe_name(key.run_id or key.name, _NOT_IN_AN_ARTIFACT, _LONGEST_ARTIFACT)}-adapter"
        facts = {"step": step, "config": json.loads(json.dumps(dict(config), default=str))}
        adapter = import_module("wandb").Artifact(name, type="model", metadata=facts)
        for file in files:
            adapter.add_file(str(file))
        self.run.log_artifact(adapter, aliases=["latest", f"step{step}"])

    def draw_last(self) -> None:
        """Draws the charts if there are rows that they lack."""
        if self._history is not None and self._rows > self._drawn_at:
            self.run.log(self._charts(self._history))

    def _charts(self, history: History) -> dict[str, Any]:
        self._drawn_at = self._rows
        try:
            return {chart: _drawn(chart, lines) for chart, lines in chart_lines(history()).items()}
        except (AttributeError, OSError, TypeError, ValueError) as error:
            # The row itself is worth more than its picture.
            if self._charted:
                _log.warning("the charts of W&B are not drawn: %s: %s", type(error).__name__, error)
            self._charted = False
            return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


UNASKED_PATIENCE_S = 15.0
"""The seconds W&B may take to start a run not asked for by name; by default it tries for 100 s and more."""

_log = logging.getLogger("art.tracking.sinks.wandb")
"""Below `art`, so that `show_log` shows its lines."""


class WandbSink:
    """Reports a model's rows in the caller's thread, as programs of earlier releases expect.

    Where W&B was not asked for by name (`report_metrics` None, and WANDB_API_KEY is set), its failure is told
    once, and the training goes on without it.
    """

    def __init__(self) -> None:
        self.given_up = False

    def open(self, model: AnyModel, config: Mapping[str, Any]) -> Any:
        """Returns W&B's run, started if it is not open; None where W&B failed."""
        return self._try(model, lambda patience_s: open_runs().open(_key(model), config, patience_s))

    def configure(self, model: AnyModel, config: Mapping[str, Any]) -> None:
        """Adds to the run's config, if the run is open."""
        open_runs().configure(_key(model), config)

    def log(
        self,
        model: AnyModel,
        config: Mapping[str, Any],
        row: Mapping[str, Any],
        tables: Mapping[str, Sequence[TableRow]],
        history: History,
    ) -> None:
        """Reports a row, tables and charts; the x axis is `training_step`: rows may come out of order."""

        def report(patience_s: float | None) -> None:
            shown = {name: _table(rows) for name, rows in tables.items()}
            open_runs().log(_key(model), config, {**row, **shown}, patience_s, history)

        self._try(model, report)

    def checkpoint(
        self, model: AnyModel, config: Mapping[str, Any], step: int, files: Sequence[Path]
    ) -> None:
        """Keeps the adapter of a step as a version of an artifact of the type `model`."""
        key = _key(model)
        self._try(model, lambda patience_s: open_runs().keep_files(key, config, step, files, patience_s))

    def _try(self, model: AnyModel, act: Callable[[float | None], Any]) -> Any:
        asked = model.report_metrics is not None
        if not is_installed("wandb"):
            text = f"Weights & Biases is not installed: {install_command('wandb')}"
            if asked:
                raise ConfigurationError(f"report_metrics={model.report_metrics!r}, but {text}")
            self._give_up(f"WANDB_API_KEY is set, but {text}, or give the model report_metrics=[]")
            return None
        patience = None if asked else UNASKED_PATIENCE_S
        try:
            return act(patience)
        except Exception as error:  # W&B raises errors of many kinds; none may end a training unasked
            if asked:
                raise
            self._give_up(
                f"Weights & Biases failed, the run goes on without it: {type(error).__name__}: {error} "
                "(report_metrics=[] does not try at all, ['wandb'] insists)"
            )
        return None

    def _give_up(self, why: str) -> None:
        self.given_up = True
        _log.warning(why)


def _table(rows: Sequence[TableRow]) -> Any:
    data = [[row.group, row.place, row.reward, row.text] for row in rows]
    return import_module("wandb").Table(columns=["group", "place", "reward", "text"], data=data)


def _key(model: AnyModel) -> RunKey:
    name = model.run_name or model.name
    return RunKey(entity=model.entity, project=model.project, name=name, run_id=model.run_id)
