"""`trajectory.model_copy(include_models=[...])`: a trajectory with the calls of some models alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from art.errors import ConfigurationError
from art.exchanges import TrajectoryExchanges
from art.recording.recorder import Recorder
from art.trajectories import Trajectory
from art.types import sampled_step

TrajectoryT = TypeVar("TrajectoryT", bound=Trajectory)


def fields_of_no_calls() -> dict[str, Any]:
    """Returns the fields that follow from the calls, as they are without any."""
    return {"messages_and_choices": [], "tools": None, "additional_histories": []}


def copy_of_models(
    trajectory: TrajectoryT,
    include_models: Collection[str] | None,
    exclude_models: Collection[str] | None,
    updated: Collection[str] = (),
) -> TrajectoryT:
    """Returns a copy with the recorded calls of the models, and the conversations that follow from them.

    include_models, exclude_models: None for no choice. updated: the fields that the same call sets. The
    copy's metric `completion_tokens` counts the calls that are left. Raises ConfigurationError where no call
    is recorded, where none is left, and for fields that follow from the calls.
    """
    calls = trajectory.exchanges.in_order()
    asked = f"model_copy({include_models=}, {exclude_models=})"
    if isinstance(include_models, str) or isinstance(exclude_models, str):
        raise ConfigurationError(f"{asked}: give a list of names")
    if derived := sorted({"exchanges", *fields_of_no_calls()}.intersection(updated)):
        raise ConfigurationError(f"{asked}: {', '.join(derived)} of `update` follow from the calls")
    if not calls:
        raise ConfigurationError(
            f"{asked}: this trajectory has no recorded calls to choose from (`with art.Trajectory()` "
            "records them)"
        )
    kept = [
        call
        for call in calls
        if call.model not in (exclude_models or ())
        and (include_models is None or call.model in include_models)
    ]
    if not kept:
        models = ", ".join(dict.fromkeys(call.model for call in calls))
        raise ConfigurationError(f"{asked} leaves no call; the calls are of {models}")
    fresh = {"exchanges": TrajectoryExchanges(), "metrics": dict(trajectory.metrics)}
    chosen = trajectory.model_copy(update={**fields_of_no_calls(), **fresh})
    chosen._scope = None
    recorder = Recorder(chosen, with_exchanges=True)
    for call in kept:
        chosen.exchanges.add(call)
        recorder.add_conversations(call)
    steps = [step for choice in chosen._choices_said() if (step := sampled_step(choice)) is not None]
    chosen.initial_policy_version = min(steps, default=None)
    chosen.final_policy_version = max(steps, default=None)
    counts = [count for call in kept if (count := call.completion_tokens()) is not None]
    if "completion_tokens" in chosen.metrics and counts:
        chosen.metrics["completion_tokens"] = sum(counts)
    return chosen
