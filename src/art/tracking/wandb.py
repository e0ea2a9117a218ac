"""Rows of the log as a run of Weights & Biases. The library is loaded when the first run is opened."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from art.environment import WANDB_API_KEY, variable
from art.errors import ConfigurationError
from art.tracking.names import SECTIONS, SPLITS
from art.tracking.state import merge

if TYPE_CHECKING:
    from art.backend import AnyModel

SINKS = ("wandb",)
X_AXIS = "training_step"

_LOGGER = logging.getLogger(__name__)
_NOT_IN_AN_ID = re.compile(r"[/\\#?%:]")

RunKey = tuple[str | None, str, str]
"""Entity, project, run id: where W&B keeps a run."""


def check_sinks(names: list[str] | None) -> None:
    """Raises ConfigurationError for a name of `report_metrics` that nothing answers to."""
    for name in names or ():
        if name not in SINKS:
            raise ConfigurationError(f"report_metrics has {name!r}; known: {', '.join(SINKS)}")


def run_key(model: AnyModel) -> RunKey:
    """The run of a model: `run_id` or the name. W&B tells runs with one id apart by entity and project."""
    told = model.run_id or model.name
    safe = _NOT_IN_AN_ID.sub("-", told)
    if safe != told:  # two names must not become one run
        safe = f"{safe}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
    return model.entity, model.project, safe


class WandbSink:
    """The open runs of a model and its copies, and the config that waits for one.

    A model reports when its `report_metrics` has "wandb", or is None and WANDB_API_KEY is set. In the second
    case W&B was not asked for by name: its failure is told once, and the training goes on without it.
    """

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}
        self._runs: dict[RunKey, _Run] = {}
        self._given_up = False

    def __deepcopy__(self, memo: dict[int, Any]) -> WandbSink:
        copied = WandbSink()
        copied._config, copied._runs, copied._given_up = dict(self._config), self._runs, self._given_up
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_runs": {}}  # a run belongs to its process

    def wanted(self, model: AnyModel) -> bool:
        """Whether the model's rows are to be reported."""
        if model.report_metrics is None:
            return variable(WANDB_API_KEY) is not None and not self._given_up
        return "wandb" in model.report_metrics

    def open(self, model: AnyModel) -> None:
        """Start the model's run now, if it reports at all."""
        if self.wanted(model):
            self._attempt(model, None)

    def log(self, model: AnyModel, row: Mapping[str, Any]) -> None:
        """Report a row; its x axis is `training_step`, so that rows may come out of order."""
        if self.wanted(model):
            self._attempt(model, row)

    def update_config(self, model: AnyModel, config: Mapping[str, Any]) -> None:
        """Add to the run's config; kept until there is a run. A value that was set cannot be changed."""
        if not isinstance(config, Mapping):
            raise TypeError(f"the W&B config must be a dict, got {type(config).__name__}: {config!r}")
        _check_immutable(self._config, config, ())
        self._config = merge(self._config, config)
        run = self._runs.get(run_key(model))
        if run is not None:
            run.configure(self._config)

    def _attempt(self, model: AnyModel, row: Mapping[str, Any] | None) -> None:
        asked = model.report_metrics is not None
        if find_spec("wandb") is None:
            text = "Weights & Biases is not installed: `pip install wandb`"
            if asked:
                raise ConfigurationError(f"report_metrics={model.report_metrics!r}, but {text}")
            self._give_up(f"WANDB_API_KEY is set, but {text}, or report_metrics=[] on the model")
            return
        failure: type[Exception] = import_module("wandb").Error
        try:
            run = self._open(model)
            if row is not None:
                run.log(row)
        except failure as error:
            if asked:
                raise
            self._give_up(f"Weights & Biases failed, the run goes on without it: {error}")

    def _give_up(self, why: str) -> None:
        self._given_up = True
        _LOGGER.warning(why)

    def _open(self, model: AnyModel) -> _Run:
        key = run_key(model)
        if key not in self._runs:
            entity, project, run_id = key
            started = import_module("wandb").init(
                entity=entity,
                project=project,
                name=model.name,
                id=run_id,
                config=self._config,
                resume="allow",
                reinit="create_new",
            )
            self._runs[key] = _Run(started)
        return self._runs[key]


class _Run:
    """A run of W&B and the axes it knows."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._defined: set[str] = set()
        for axis in (X_AXIS, "time/wall_clock_sec"):
            run.define_metric(axis)
        for section in sorted(SECTIONS | SPLITS | {"discarded"}):
            self._define(f"{section}/*")

    def _define(self, name: str) -> None:
        if name not in self._defined:
            self._defined.add(name)
            self._run.define_metric(name, step_metric=X_AXIS)

    def log(self, row: Mapping[str, Any]) -> None:
        for name in row:
            section, _, rest = name.partition("/")
            if section == "costs" and "/" in rest:
                self._define(name)
            elif rest:
                self._define(f"{section}/*")
        self._run.log({name: value for name, value in row.items() if name not in ("step", "recorded_at")})

    def configure(self, config: Mapping[str, Any]) -> None:
        self._run.config.update(dict(config), allow_val_change=True)


def _check_immutable(old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...]) -> None:
    for key, value in new.items():
        if key not in old:
            continue
        here, set_before = (*path, str(key)), old[key]
        if isinstance(set_before, Mapping) and isinstance(value, Mapping):
            _check_immutable(set_before, value, here)
        elif set_before != value:
            name = ".".join(here)
            raise ConfigurationError(f"W&B config is immutable once set. Conflicting value for '{name}'.")
