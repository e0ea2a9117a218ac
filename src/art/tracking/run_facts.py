"""What people filter and compare runs by, for every tracker: under the name `art` of a run's config.

art.base_model  art.version  art.project  art.model  art.run_name
art.config.*            the model's own config
art.internal_config.*   the settings that it was registered with, such as a LoRA's rank
art.train.*             the newest training job: its kind and its resolved settings, such as the learning rate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from art.tracking.folders import stored_name
from art.wire.nested import without_keys
from art.wire.training import RATE_BY_SIZE

if TYPE_CHECKING:
    from art.backend import AnyModel
    from art.wire.jobs import SftJobRequest, TrainJobRequest

FACTS = "art"


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


def note_training(model: Any, request: TrainJobRequest | SftJobRequest, metrics: Mapping[str, float]) -> None:
    """Tells the trackers what a job was asked for, with its defaults; of several rates the highest."""
    given = getattr(request, "learning_rates", None) or [request.optimizer.learning_rate]
    rate = max((one for one in given if one is not None), default=metrics.get(RATE_BY_SIZE))
    settings = request.model_dump(mode="json", include={"algorithm", "optimizer", "rate"}, exclude_none=True)
    if (run_log := getattr(model, "_run_log", None)) is not None:  # models of programs' own have none
        run_log.note_training({"job": getattr(request, "VERB", "train"), "learning_rate": rate, **settings})


def _installed_version() -> str | None:
    """Returns None where the library runs from its source, not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to load, and needed by trackers alone

    try:
        return version("agent-reinforcement-trainer")
    except PackageNotFoundError:
        return None
