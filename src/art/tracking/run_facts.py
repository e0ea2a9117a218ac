"""What people filter and compare runs by, for every tracker: under the name `art` of a run's config.

art.base_model  art.version  art.project  art.model  art.run_name
art.config.*            the model's own config
art.internal_config.*   the settings that it was registered with, such as a LoRA's rank
art.train.*             the settings of the newest training job, resolved: learning rate, algorithm, ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from art.tracking.folders import stored_name
from art.wire.nested import without_keys

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.wire.jobs import TrainJobRequest

FACTS = "art"
_SETTINGS = {"algorithm", "optimizer", "rate", "learning_rates", "batch_size"}


def run_facts(model: AnyModel, training: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of a run, without keys. training: of its newest job; empty before there is one."""
    from pydantic_core import to_jsonable_python

    facts = {
        "version": _installed_version(),
        "project": model.project,
        "model": stored_name(model),
        "run_name": model.run_name,
        "base_model": getattr(model, "base_model", None),
        "config": to_jsonable_python(model.config, fallback=repr, serialize_unknown=True),
        "internal_config": to_jsonable_python(getattr(model, "_internal_config", None), fallback=repr),
        "train": training,
    }
    return {FACTS: without_keys({name: value for name, value in facts.items() if value})}


def training_settings(request: TrainJobRequest) -> dict[str, Any]:
    """Returns what a training job was asked for, with the defaults of what was not given."""
    settings = request.model_dump(mode="json", include=_SETTINGS, exclude_none=True)
    return {"learning_rate": request.optimizer.learning_rate, **settings}


def _installed_version() -> str | None:
    """Returns None where the library runs from its source, not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to load, and needed by trackers alone

    try:
        return version("agent-reinforcement-trainer")
    except PackageNotFoundError:
        return None
