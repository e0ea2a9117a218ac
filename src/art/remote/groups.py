"""From trajectories to what the server trains on: names of rollouts, rewards, and ids of samples."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from art.errors import ConfigurationError, RolloutsFailedError, TokenMismatchError
from art.remote.plain import plain_messages, plain_tools
from art.trajectories import History, Trajectory, TrajectoryGroup, is_choice
from art.turns import sample_id
from art.types import Unscored
from art.wire.headers import SAMPLE_FIELD
from art.wire.jobs import JUDGE_PREFIX, GivenHistory, TrainGroup, TrainTrajectory

log = logging.getLogger(__name__)


def train_groups(
    groups: Iterable[Any], *, given: bool = False, after: Sequence[TrainGroup] = ()
) -> list[TrainGroup]:
    """Groups as the server wants them. None (a judge gave up on a group) is left out with a line in the log.

    given: what assistants say in dicts, and in choices without a sample, is trained as well. after: groups
    before these in the same job; no rollout gets a name of theirs.

    Raises TokenMismatchError for a choice that no server of ours sampled, or one that appears twice in a
    trajectory, and ConfigurationError for a reward that is no number.
    """
    taken = {trajectory.rollout for group in after for trajectory in group.trajectories}
    wire: list[TrainGroup] = []
    for g, group in enumerate(groups, len(after)):
        if group is None:
            log.warning("group %d is None and is left out: its judge or rollout gave no group", g)
            continue
        if not isinstance(group, TrajectoryGroup):
            raise TypeError(
                f"group {g} is a {type(group).__name__}, not a TrajectoryGroup: gather rollouts with "
                "art.gather_trajectory_groups, or put trajectories into art.TrajectoryGroup([...])"
            )
        trajectories = [
            _train_trajectory(trajectory, _name(trajectory, f"g{g}.t{t}", taken), given=given)
            for t, trajectory in enumerate(group)
        ]
        wire.append(
            TrainGroup(trajectories=trajectories, failed=len(group.exceptions), judge=_judge_figures(group))
        )
    return wire


def check_any_trajectory(groups: Iterable[Any]) -> None:
    """Raises RolloutsFailedError where there are failed rollouts and none that gave a trajectory: nothing was
    learned, and the next step would fail likewise.
    """
    given = [group for group in groups if isinstance(group, TrajectoryGroup)]
    failures = [failure for group in given for failure in group.exceptions]
    if not failures or any(group.trajectories for group in given):
        return
    first = failures[0]
    raise RolloutsFailedError(
        f"each of the {len(failures)} rollouts failed: there is nothing to train, and no step is made. The "
        f"first one's {first.type}: {first.message}\n{first.traceback}".rstrip()
    )


def _judge_figures(group: TrajectoryGroup) -> dict[str, float]:
    """What the group's metrics say of its judge; the step's record keeps it."""
    found = {
        name: float(value)
        for name, value in group.metrics.items()
        if name.startswith(JUDGE_PREFIX) and value is not None
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _name(trajectory: Trajectory, fallback: str, taken: set[str]) -> str:
    """The rollout's id; where one rollout gave several trajectories, their place in the batch tells them
    apart.
    """
    name = trajectory.rollout_id or fallback
    if name in taken:
        name = f"{name}.{fallback}"
    taken.add(name)
    return name


def _train_trajectory(trajectory: Trajectory, rollout: str, *, given: bool) -> TrainTrajectory:
    unscored = trajectory.reward.reason if isinstance(trajectory.reward, Unscored) else None
    samples = list(_samples(trajectory, rollout, given=given))
    return TrainTrajectory(
        rollout=rollout,
        reward=None if isinstance(trajectory.reward, Unscored) else _number(trajectory.reward, rollout),
        unscored_reason=unscored,
        samples=[one.sample for one in samples],
        given=_given(trajectory, rollout, samples) if given else [],
    )


def _given(trajectory: Trajectory, rollout: str, samples: list[_Sampled]) -> list[GivenHistory]:
    """All histories with their messages, if anything that the assistant says in them was not sampled."""
    told: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    histories = [
        GivenHistory(
            messages=plain_messages(f"rollout {rollout!r}", history.messages_and_choices),
            tools=plain_tools(f"rollout {rollout!r}", history.tools),
            samples={one.turn: one.sample for one in samples if one.history == number},
        )
        for number, history in enumerate(told)
    ]
    said = sum(message.get("role") == "assistant" for one in histories for message in one.messages)
    return histories if said > len(samples) else []


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


class _Sampled(NamedTuple):
    """A choice that names its sample, and where it is."""

    history: int
    turn: int
    sample: str


def _samples(trajectory: Trajectory, rollout: str, *, given: bool) -> Iterator[_Sampled]:
    seen: dict[str, str] = {}
    further = [history.messages_and_choices for history in trajectory.additional_histories]
    histories = [trajectory.messages_and_choices, *further]
    for h, history in enumerate(histories):
        for turn, item in enumerate(history):
            if not is_choice(item):
                continue
            place = f"turn {turn}" + (f" of additional history {h - 1}" if h else "")
            sample = sample_id(item)
            if sample is None:
                if given:
                    continue
                raise TokenMismatchError(
                    f"rollout {rollout!r}, {place}: no {SAMPLE_FIELD!r} in this choice: its tokens are lost. "
                    f"Append `completion.choices[0]` as `model.openai_client()` gave it; a reply of another "
                    f"model belongs into the messages as a dict (context, not trained), or is trained with "
                    f"allow_training_without_logprobs=True"
                )
            if sample in seen:
                raise TokenMismatchError(
                    f"rollout {rollout!r}, {place}: sample {sample!r} is already there ({seen[sample]}) and "
                    f"would count twice; keep each choice in one history, and where it is context, a dict"
                )
            seen[sample] = place
            yield _Sampled(h, turn, sample)
