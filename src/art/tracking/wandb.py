"""Rows of the log as a run of Weights & Biases. The library is loaded when the first run is opened."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from art.environment import WANDB_API_KEY, variable
from art.errors import ConfigurationError
from art.hidden_key import without_keys
from art.nested import deep_merge
from art.tracking.wandb_runs import RunKey, open_runs

if TYPE_CHECKING:
    from art.backend import AnyModel

SINKS = ("wandb",)
UNASKED_PATIENCE_S = 15.0
"""Of a run that was not asked for by name: without a network, W&B itself tries for 100 s and more."""

_LOGGER = logging.getLogger(__name__)


def check_sinks(names: list[str] | None) -> None:
    """Tell, once in a process, of a name of `report_metrics` that nothing answers to."""
    for name in names or ():
        if name not in SINKS:
            _tell_unknown(str(name))


@lru_cache(maxsize=1024)
def _tell_unknown(name: str) -> None:
    _LOGGER.warning(
        "report_metrics has %r: nothing is sent there; known: %s. Rows are in history.jsonl as ever.",
        name,
        ", ".join(SINKS),
    )


class WandbSink:
    """Reports a model's rows, and keeps the config until there is a run.

    A model reports when its `report_metrics` has "wandb", or is None and WANDB_API_KEY is set. In the second
    case W&B was not asked for by name: its failure is told once, and the training goes on without it.
    """

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}
        self._given_up = False

    def wanted(self, model: AnyModel) -> bool:
        """Whether the model's rows are to be reported."""
        if model.report_metrics is None:
            return variable(WANDB_API_KEY) is not None and not self._given_up
        return "wandb" in model.report_metrics

    def open(self, model: AnyModel) -> Any:
        """Start the model's run now, if it reports at all. Returns W&B's run, or None."""
        return self._tell(model, None)

    def log(self, model: AnyModel, row: Mapping[str, Any]) -> None:
        """Report a row; its x axis is `training_step`, so that rows may come out of order."""
        self._tell(model, row)

    def update_config(self, model: AnyModel, config: Mapping[str, Any]) -> None:
        """Add to the run's config, without keys. A value that was set cannot be changed."""
        if not isinstance(config, Mapping):
            raise TypeError(f"the W&B config must be a dict, got {type(config).__name__}: {config!r}")
        config = without_keys(config)
        _check_immutable(self._config, config, ())
        self._config = deep_merge(self._config, config)
        if self.wanted(model):
            open_runs().configure(_key(model), self._config)

    def _tell(self, model: AnyModel, row: Mapping[str, Any] | None) -> Any:
        if not self.wanted(model):
            return None
        asked = model.report_metrics is not None
        if find_spec("wandb") is None:
            text = "Weights & Biases is not installed: `pip install wandb`"
            if asked:
                raise ConfigurationError(f"report_metrics={model.report_metrics!r}, but {text}")
            self._give_up(f"WANDB_API_KEY is set, but {text}, or give the model report_metrics=[]")
            return None
        patience = None if asked else UNASKED_PATIENCE_S
        try:
            if row is None:
                return open_runs().open(_key(model), self._config, patience)
            open_runs().log(_key(model), self._config, row, patience)
        except Exception as error:  # W&B raises errors of many kinds; none may end a training unasked
            if asked:
                raise
            self._give_up(
                f"Weights & Biases failed, the run goes on without it: {type(error).__name__}: {error} "
                "(report_metrics=[] does not try at all, ['wandb'] insists)"
            )
        return None

    def _give_up(self, why: str) -> None:
        self._given_up = True
        _LOGGER.warning(why)


def _key(model: AnyModel) -> RunKey:
    name = model.run_name or model.name
    return RunKey(entity=model.entity, project=model.project, name=name, run_id=model.run_id)


def _check_immutable(old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...]) -> None:
    for key, value in new.items():
        if key not in old:
            continue
        here, before = (*path, str(key)), old[key]
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            _check_immutable(before, value, here)
        elif before != value:
            name = ".".join(here)
            raise ConfigurationError(f"W&B config is immutable once set. Conflicting value for '{name}'.")
