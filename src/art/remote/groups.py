"""From trajectories to what the server trains on: names of rollouts, rewards, and ids of samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any

from art.errors import ConfigurationError, TokenMismatchError
from art.trajectories import Trajectory, TrajectoryGroup, is_choice
from art.types import Unscored
from art.wire.headers import SAMPLE_FIELD
from art.wire.jobs import TrainGroup, TrainTrajectory

log = logging.getLogger(__name__)


def train_groups(groups: Iterable[Any]) -> list[TrainGroup]:
    """Groups as the server wants them. None (a judge gave up on a group) is left out with a line in the log.

    Raises TokenMismatchError for a choice that no server of ours sampled, or one that appears twice in a
    trajectory, and ConfigurationError for a reward that is no number.
    """
    taken: set[str] = set()
    wire: list[TrainGroup] = []
    for g, group in enumerate(groups):
        if group is None:
            log.warning("group %d is None and is left out: its judge or rollout gave no group", g)
            continue
        if not isinstance(group, TrajectoryGroup):
            raise TypeError(
                f"group {g} is {group!r}, not a TrajectoryGroup: gather the groups before training"
            )
        trajectories = [
            _train_trajectory(trajectory, _name(trajectory, f"g{g}.t{t}", taken))
            for t, trajectory in enumerate(group)
        ]
        wire.append(TrainGroup(trajectories=trajectories, failed=len(group.exceptions)))
    return wire


def _name(trajectory: Trajectory, fallback: str, taken: set[str]) -> str:
    """The rollout's id; where one rollout gave several trajectories, their place in the batch tells them
    apart.
    """
    name = trajectory.rollout_id or fallback
    if name in taken:
        name = f"{name}.{fallback}"
    taken.add(name)
    return name


def _train_trajectory(trajectory: Trajectory, rollout: str) -> TrainTrajectory:
    unscored = trajectory.reward.reason if isinstance(trajectory.reward, Unscored) else None
    return TrainTrajectory(
        rollout=rollout,
        reward=None if isinstance(trajectory.reward, Unscored) else _number(trajectory.reward, rollout),
        unscored_reason=unscored,
        samples=list(_samples(trajectory, rollout)),
    )


def _number(reward: Any, rollout: str) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ConfigurationError(
            f"rollout {rollout!r}: reward {reward!r} is not a finite number; "
            f"use art.Unscored(reason) if it is unknown"
        )
    return value


def _samples(trajectory: Trajectory, rollout: str) -> Iterator[str]:
    seen: dict[str, str] = {}
    further = [history.messages_and_choices for history in trajectory.additional_histories]
    histories = [trajectory.messages_and_choices, *further]
    for h, history in enumerate(histories):
        for turn, item in enumerate(history):
            if not is_choice(item):
                continue
            place = f"turn {turn}" + (f" of additional history {h - 1}" if h else "")
            sample = _sample_id(item)
            if sample is None:
                raise TokenMismatchError(
                    f"rollout {rollout!r}, {place}: no {SAMPLE_FIELD!r} in this choice: its tokens are lost. "
                    f"Append `completion.choices[0]` as `model.openai_client()` gave it; a reply of another "
                    f"model belongs into the messages as a dict (context, not trained)"
                )
            if sample in seen:
                raise TokenMismatchError(
                    f"rollout {rollout!r}, {place}: sample {sample!r} is already there ({seen[sample]}) and "
                    f"would count twice; keep each choice in one history only"
                )
            seen[sample] = place
            yield sample


def _sample_id(choice: Any) -> str | None:
    found = choice.get(SAMPLE_FIELD) if isinstance(choice, dict) else getattr(choice, SAMPLE_FIELD, None)
    return found if isinstance(found, str) and found else None
