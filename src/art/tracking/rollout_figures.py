"""Figures about the rollouts of a step: how sure the mean reward is, how long replies are, what groups say.

Pure functions. A figure that the data does not determine is left out, never 0.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from numbers import Real
from statistics import fmean, quantiles
from typing import Any

from art.trajectories import Trajectory, TrajectoryGroup, is_choice
from art.types import known_reward, sample_id, sampled_tokens
from art.wire.rollouts import MALFORMED_FIELD

PERCENTILES = (50, 90, 99)
FEWEST_SCENARIOS = 4
"""Fewer may well be alike."""
SAME = 1e-9
"""Rewards that differ by less than this share of the largest are equal."""
NOISE = re.compile(r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|\ufffd")
"""What no reply in words has: a special token of a chat format, or bytes that are no character."""


def rollout_figures(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Returns all figures of this file by their names, without the split."""
    rewards = [scores(group) for group in groups]
    found: dict[str, float | None] = {
        "reward_sem": standard_error(rewards),
        "reward_max": max((one for group in rewards for one in group), default=None),
        "reward_length_correlation": reward_length_correlation(groups),
        **reply_figures([one for group in groups for one in group]),
        **equal_groups(rewards),
        "same_input_rate": same_input_rate(groups),
        "empty_prompt_rate": empty_prompt_rate([one for group in groups for one in group]),
        **turn_figures([one for group in groups for one in group]),
    }
    return {name: value for name, value in found.items() if value is not None}


def scores(group: Iterable[Trajectory]) -> list[float]:
    """The rewards that are known."""
    return [reward for t in group if (reward := known_reward(t)) is not None]


def has_signal(group: TrajectoryGroup, parts: Iterable[str] = ()) -> bool:
    """Returns whether its rewards differ, by more than rounding. Unscored rollouts say nothing.

    parts: metrics, of which one must differ in place of the rewards.
    """
    known = [one.metrics for one in group if known_reward(one) is not None]
    compared = [[float(one[name]) for one in known if _is_finite(one.get(name))] for name in parts]
    return any(
        len(values) > 1 and max(values) - min(values) > SAME * max(map(abs, values))
        for values in compared or [scores(group)]
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def range_of_scores(scores: Iterable[float]) -> tuple[float, float]:
    """Returns the range that all scores keep, and so their mean: 0 to 1, -1 to 1, or no limits.

    >>> range_of_scores([0.0, 0.5]), range_of_scores([-1.0, 0.5]), range_of_scores([3.0])
    ((0.0, 1.0), (-1.0, 1.0), (-inf, inf))
    """
    known = list(scores)
    for low, high in ((0.0, 1.0), (-1.0, 1.0)):
        if all(low <= score <= high for score in known):
            return low, high
    return -math.inf, math.inf


def standard_error(rewards: Sequence[Sequence[float]]) -> float | None:
    """The standard error of the mean over all rewards; rewards of one group may depend on each other.

    With the mean R of all N rewards and e_g = sum over group g of (reward - R), it is
    sqrt(G / (G - 1) * sum of e_g^2) / N: the estimator for clusters of unequal size (Liang and Zeger 1986;
    Miller, "Adding error bars to evals", arXiv:2411.00640). None with fewer than two groups.

    >>> standard_error([[1.0, 1.0], [0.0, 0.0]])
    0.5
    """
    return error_of_sums([(math.fsum(group), len(group)) for group in rewards])


def error_of_sums(groups: Iterable[tuple[float, int]]) -> float | None:
    """`standard_error` of groups of which the sum and the number of their rewards are known."""
    known = [(total, count) for total, count in groups if count]
    if len(known) < 2:
        return None
    rewards = sum(count for _, count in known)
    mean = math.fsum(total for total, _ in known) / rewards
    spread = math.fsum((total - count * mean) ** 2 for total, count in known)
    return math.sqrt(spread * len(known) / (len(known) - 1)) / rewards


def reward_length_correlation(groups: Iterable[TrajectoryGroup]) -> float | None:
    """Pearson's correlation of reward and sampled tokens within groups: both less their group's mean, pooled.

    None where no group has two lengths and two rewards.
    """
    pairs: list[tuple[float, float]] = []
    for group in groups:
        known = [
            (reward, float(sum(lengths)))
            for one in group
            if (reward := known_reward(one)) is not None and (lengths := [*_lengths(one)])
        ]
        if known:
            reward, length = fmean(pair[0] for pair in known), fmean(pair[1] for pair in known)
            pairs += [(one - reward, other - length) for one, other in known]
    spread_r = math.fsum(reward * reward for reward, _ in pairs)
    spread_l = math.fsum(length * length for _, length in pairs)
    if min(spread_r, spread_l) < 1e-12:  # rounding residues of equal values
        return None
    return math.fsum(reward * length for reward, length in pairs) / math.sqrt(spread_r * spread_l)


def reply_figures(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Returns percentiles and the mean of the tokens of a reply, the share of rollouts whose last reply was
    cut at its limit of tokens, and three shares of replies: with a tool call that cannot be read, with noise
    in the text, and equal to the most frequent reply.
    """
    choices: list[list[Any]] = [
        [item for item in one.messages_and_choices if is_choice(item)] for one in trajectories
    ]
    replies = [choice for said in choices for choice in said]
    lasts = [said[-1] for said in choices if said]
    tokens = sorted(float(length) for one in trajectories for length in _lengths(one))
    malformed = [bool(getattr(reply, MALFORMED_FIELD, 0)) for reply in replies]
    texts = [said_text(reply) for reply in replies]
    return {
        **{f"completion_tokens_p{percent}": percentile(tokens, percent) for percent in PERCENTILES},
        "completion_tokens_max": tokens[-1] if tokens else None,
        "completion_tokens_mean": fmean(tokens) if tokens else None,
        "truncated_rate": fmean(last.finish_reason == "length" for last in lasts) if lasts else None,
        "malformed_call_rate": fmean(malformed) if malformed else None,
        "noise_rate": fmean(NOISE.search(text) is not None for text in texts) if texts else None,
        "same_reply_rate": Counter(texts).most_common(1)[0][1] / len(texts) if texts else None,
    }


def said_text(reply: Any) -> str:
    """Returns the text of a choice and its tool calls, without what differs from request to request."""
    message = _field(reply, "message")
    functions = [_field(call, "function") for call in _field(message, "tool_calls") or []]
    calls = [f"{_field(one, 'name')} {_field(one, 'arguments')}" for one in functions if one]
    return "\n".join([str(_field(message, "content") or ""), *calls])


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Returns the percentile of rising values, interpolated between two; None of no values.

    >>> percentile([1.0, 2.0, 3.0], 50), percentile([1.0, 2.0], 90), percentile([7.0], 99)
    (2.0, 1.9, 7.0)
    """
    if len(ordered) < 2:
        return ordered[0] if ordered else None
    return quantiles(ordered, n=100, method="inclusive")[percent - 1]


def equal_groups(rewards: Iterable[Sequence[float]]) -> dict[str, float | None]:
    """Returns the shares of the groups of two and more whose rewards are all the step's highest, or lowest.

    Where the whole step has one reward, it is the highest if it is above 0, else the lowest.

    >>> equal_groups([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    {'all_good_groups': 0.25, 'all_bad_groups': 0.5}
    """
    groups = [group for group in rewards if len(group) > 1]
    if not groups:
        return {"all_good_groups": None, "all_bad_groups": None}
    highest, lowest = max(map(max, groups)), min(map(min, groups))
    good = sum(min(group) == highest and (highest != lowest or highest > 0) for group in groups)
    bad = sum(max(group) == lowest and (highest != lowest or highest <= 0) for group in groups)
    return {"all_good_groups": good / len(groups), "all_bad_groups": bad / len(groups)}


def same_input_rate(groups: Iterable[TrajectoryGroup]) -> float | None:
    """The share of the groups whose first rollout shows the model the messages that most of them show: all of
    the conversation that is not the model's own. None with fewer than four scenarios, by
    `metadata["scenario_id"]` where groups have one.
    """
    inputs: list[str] = []
    scenarios: set[object] = set()
    for place, group in enumerate(groups):
        first = next((one for one in group if one.messages_and_choices), None)
        if first is None:
            continue
        given = [item for item in first.messages_and_choices if not _is_own(item)]
        inputs.append(json.dumps(given, default=str))
        facts = {**group.metadata, **first.metadata}
        scenarios.add(str(facts.get("scenario_id", f"group {place}")))
    if len(scenarios) < FEWEST_SCENARIOS:
        return None
    return Counter(inputs).most_common(1)[0][1] / len(inputs)


def empty_prompt_rate(trajectories: Iterable[Trajectory]) -> float | None:
    """The share of the rollouts whose last message before the first reply has no content."""
    found = []
    for one in trajectories:
        asked = list(takewhile(lambda item: not _is_own(item), one.messages_and_choices))
        if asked and len(asked) < len(one.messages_and_choices):
            content = _field(asked[-1], "content")
            found.append(not (content.strip() if isinstance(content, str) else content))
    return fmean(found) if found else None


def turn_figures(trajectories: Iterable[Trajectory]) -> dict[str, float | None]:
    """Figures of the rollouts of which turns were rewarded: their share, the mean reward of a turn, how many
    gave 0 to all turns, and the largest part that one of several turns has in what all earn, by size.
    """
    scored = [one for one in trajectories if known_reward(one) is not None]
    rewarded = [one for one in scored if one.turn_rewards]
    if not rewarded:
        return {}
    turns = [_turn_count(one) for one in rewarded]
    sizes = [[*map(abs, one.turn_rewards.values())] for one in rewarded]
    several = [size for size, k in zip(sizes, turns, strict=True) if k > 1 and any(size)]
    parts = [max(size) / math.fsum(size) for size in several]
    return {
        "turn_rewarded_rate": len(rewarded) / len(scored),
        "turn_reward_mean": math.fsum(r for one in rewarded for r in one.turn_rewards.values()) / sum(turns),
        "turn_reward_zero_rate": fmean(not any(size) for size in sizes),
        "turn_reward_top_share": fmean(parts) if parts else None,
    }


def _turn_count(trajectory: Trajectory) -> int:
    histories: list[Any] = [trajectory, *trajectory.additional_histories]
    said = (item for history in histories for item in history.messages_and_choices if is_choice(item))
    return max(len(trajectory.turn_rewards), sum(sample_id(item) is not None for item in said))


def _is_own(item: Any) -> bool:
    """Returns whether the model said it."""
    return is_choice(item) or _field(item, "role") == "assistant"


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _lengths(trajectory: Trajectory) -> Iterator[int]:
    """The sampled tokens of each of its replies, where they are known."""
    said: list[Any] = [item for item in trajectory.messages_and_choices if is_choice(item)]
    return (tokens for choice in said if (tokens := sampled_tokens(choice)) is not None)
