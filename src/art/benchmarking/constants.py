"""The score of a model that is not trained, as a horizontal line in Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.tracking.names import route

if TYPE_CHECKING:
    from art.model import Model

X_AXIS = "training_step"
"""As in the rows of a model's log."""


def log_constant_metrics_wandb(
    model: Model[Any, Any],
    num_steps: int,
    split_metrics: Mapping[str, Mapping[str, float]],
    logged_run_name: str | None = None,
) -> None:
    """Log the same numbers at each of `num_steps` steps, as a run of its own in the model's project.

    split_metrics: `{"val": {"reward": 0.62}}` becomes `val/reward`. logged_run_name: the run's name and id,
    by default the model's name.

    Raises: ConfigurationError when wandb is not installed or there is nothing to log.
    """
    row = {
        route(name, split): float(value)
        for split, metrics in split_metrics.items()
        for name, value in metrics.items()
    }
    if num_steps < 1 or not row:
        raise ConfigurationError(f"nothing to log: {num_steps=}, {split_metrics=}")
    if find_spec("wandb") is None:
        raise ConfigurationError("Weights & Biases is not installed: `pip install wandb`")
    name = logged_run_name or model.name
    run = import_module("wandb").init(
        entity=model.entity, project=model.project, name=name, id=name, resume="allow", reinit="create_new"
    )
    try:
        run.define_metric(X_AXIS)
        for metric in row:
            run.define_metric(metric, step_metric=X_AXIS)
        for step in range(num_steps):
            run.log({X_AXIS: step, **row})
    finally:
        run.finish()
