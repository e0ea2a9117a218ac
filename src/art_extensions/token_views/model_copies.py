"""`trajectory.model_copy(include_models=[...])`: a trajectory with the calls of some models alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from art.errors import ConfigurationError
from art.exchanges import TrajectoryExchanges
from art.trajectories import FROM_EXCHANGES, Trajectory

TrajectoryT = TypeVar("TrajectoryT", bound=Trajectory)


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
    if derived := sorted({"exchanges", *FROM_EXCHANGES}.intersection(updated)):
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
    empty = {name: Trajectory.model_fields[name].get_default() for name in FROM_EXCHANGES}
    fresh = {"exchanges": TrajectoryExchanges(), "metrics": dict(trajectory.metrics)}
    no_steps = {"initial_policy_version": None, "final_policy_version": None}
    chosen = trajectory.model_copy(update={**empty, **fresh, **no_steps})
    chosen._scope = None
    for call in kept:
        chosen.exchanges.add(call)
    chosen._read_exchanges()
    chosen._note_steps()
    tokens = chosen.exchanges.completion_tokens()
    if "completion_tokens" in chosen.metrics and tokens is not None:
        chosen.metrics["completion_tokens"] = tokens
    return chosen
