"""Preferences as data: pairs of trajectories with one prompt, labelled replies, and the rows of both.

    {"prompt": ..., "chosen": ..., "rejected": ...}         texts, or lists of messages (TRL's)
    {"chosen": [...], "rejected": [...]}                    whole conversations; the prompt is what they share
    {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}        OpenAI's
    {"prompt": ..., "completion": ..., "label": true}       a reply with a label (TRL's)

The prompt of a pair is all that its two conversations begin with alike. What an assistant says there is
context; what one says behind it is compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art.client.requests.train_request import plain_messages, plain_tools
from art.client.sft.sft_rows import row_trajectory
from art.errors import ConfigurationError
from art.process.foreign_files import open_foreign, parse_json, read_lines, too_long
from art.trajectories import Trajectory, TrajectoryGroup, is_choice
from art.types import Unscored, kind_of, sample_id
from art.wire.jobs import SftConversation

Row = Mapping[str, Any]
_PAIR_FORMS = '{"prompt": ..., "chosen": ..., "rejected": ...}'
_LABEL_FORM = '{"prompt": ..., "completion": ..., "label": true or false}'


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferencePair:
    """Two trajectories that begin alike, of which one is better."""

    chosen: Trajectory
    rejected: Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledReply:
    """A trajectory whose last reply is desirable, or is not."""

    trajectory: Trajectory
    desirable: bool


def preference_pairs(items: Iterable[PreferencePair | Row]) -> list[PreferencePair]:
    """Returns pairs and rows as pairs. Raises ConfigurationError for a row of no known format, TypeError."""
    return [_pair(f"pair {number}", item) for number, item in enumerate(_listed(items))]


def labelled_replies(items: Iterable[LabelledReply | Row]) -> list[LabelledReply]:
    """Returns labelled replies and rows as replies. Raises ConfigurationError, TypeError."""
    return [_labelled(f"example {number}", item) for number, item in enumerate(_listed(items))]


def read_pairs(path: str | Path) -> list[PreferencePair]:
    """Reads pairs from a file of JSON lines. Raises ConfigurationError, which names the line."""
    return [_pair(where, row) for where, row in _rows(Path(path))]


def read_labelled(path: str | Path) -> list[LabelledReply]:
    """Reads labelled replies from a file of JSON lines. Raises ConfigurationError, which names the line."""
    return [_labelled(where, row) for where, row in _rows(Path(path))]


def pairs_of_groups(
    groups: Iterable[TrajectoryGroup], *, least_difference: float = 0.0
) -> list[PreferencePair]:
    """Returns one pair of each group: its best trajectory against its worst, by reward.

    Trajectories without a score are left out. A group gives no pair where fewer than two are left, or where
    the rewards differ by `least_difference` or less. Raises ConfigurationError for a difference below 0.

    >>> from art.trajectories import Trajectory, TrajectoryGroup
    >>> said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    >>> group = TrajectoryGroup(
    ...     [Trajectory(messages_and_choices=said, reward=reward) for reward in (0.5, 1.0, 0.0)]
    ... )
    >>> [(pair.chosen.reward, pair.rejected.reward) for pair in pairs_of_groups([group])]
    [(1.0, 0.0)]
    """
    if not (math.isfinite(least_difference) and least_difference >= 0):
        raise ConfigurationError(f"least_difference is {least_difference!r}; it is a number from 0 on")
    pairs = []
    for group in groups:
        scored = [(one.reward, one) for one in group.trajectories if not isinstance(one.reward, Unscored)]
        if not scored:
            continue
        best, worst = max(scored, key=lambda it: it[0]), min(scored, key=lambda it: it[0])
        if best[0] - worst[0] > least_difference:
            pairs.append(PreferencePair(chosen=best[1], rejected=worst[1]))
    return pairs


def pair_conversations(number: int, pair: PreferencePair) -> tuple[SftConversation, SftConversation]:
    """The chosen and the rejected conversation of a pair; the assistant's messages in what they share have
    weight 0.

    Raises ConfigurationError, which names the pair, where they are equal, share no prompt, are offered
    different tools, have additional histories, or where no assistant speaks behind the prompt.
    """
    name = f"pair {number}"
    sides = [_conversation(f"{name}, {side}", getattr(pair, side)) for side in ("chosen", "rejected")]
    chosen, rejected = sides
    if chosen.tools != rejected.tools:
        raise ConfigurationError(f"{name}: chosen and rejected are offered different tools")
    shared = shared_messages(chosen.messages, rejected.messages)
    if shared == len(chosen.messages) == len(rejected.messages):
        raise ConfigurationError(f"{name}: chosen and rejected are equal, so there is nothing to prefer")
    for side in sides:
        behind = side.messages[shared:]
        if behind and behind[0]["role"] != "assistant":
            raise ConfigurationError(
                f"{name}: chosen and rejected have different prompts: their message {shared} is of role "
                f"{behind[0]['role']!r}. A pair begins alike, up to what the assistant says"
            )
        if not shared:
            raise ConfigurationError(f"{side.name} has no prompt: no message before the assistant's")
        _refuse_silence(side.name, behind)
        _make_context(side.messages[:shared])
    return chosen, rejected


def reply_conversation(number: int, reply: LabelledReply) -> SftConversation:
    """The conversation of a labelled reply. What an assistant says before the last other message is context,
    unless the row said so already.

    Raises ConfigurationError, which names the example.
    """
    conversation = _conversation(f"example {number}", reply.trajectory)
    messages = conversation.messages
    others = [at for at, one in enumerate(messages) if one["role"] in ("user", "system", "developer")]
    prompt = others[-1] + 1 if others else 0
    if not prompt:
        raise ConfigurationError(f"{conversation.name} has no prompt: no message before the assistant's")
    _make_context(messages[:prompt])
    _refuse_silence(conversation.name, messages[prompt:])
    return conversation


def shared_messages(one: Sequence[Row], other: Sequence[Row]) -> int:
    """Returns how many messages two conversations begin with alike.

    >>> shared_messages([{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Hi"}])
    1
    """
    count = 0
    for left, right in zip(one, other, strict=False):
        if _without_weight(left) != _without_weight(right):
            break
        count += 1
    return count


def _without_weight(message: Row) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "weight"}


def _make_context(messages: Sequence[dict[str, Any]]) -> None:
    for message in messages:
        if message["role"] == "assistant":
            message["weight"] = 0


def _refuse_silence(name: str, messages: Sequence[Row]) -> None:
    said = [one for one in messages if one["role"] == "assistant" and one.get("weight", 1)]
    if not any(one.get("content") or one.get("tool_calls") for one in said):
        raise ConfigurationError(f"{name} is empty: the assistant says nothing behind the prompt")


def _conversation(name: str, trajectory: Trajectory) -> SftConversation:
    if trajectory.additional_histories:
        raise ConfigurationError(
            f"{name} has additional histories, and a preference compares two conversations: make a "
            "trajectory of the history that was judged"
        )
    items = trajectory.messages_and_choices
    messages = plain_messages(name, items)
    if wrong := [one for one in messages if "role" not in one]:
        raise ConfigurationError(f"{name} has a message without a role: {wrong[0]!r}")
    if not messages:
        raise ConfigurationError(f"{name} is empty: it has no messages")
    samples = {at: found for at, one in enumerate(items) if is_choice(one) and (found := sample_id(one))}
    tools = plain_tools(name, trajectory.tools)
    return SftConversation(name=name, messages=messages, tools=tools, samples=samples)


def _listed(items: Any) -> list[Any]:
    if isinstance(items, str | Path):
        raise ConfigurationError(f"{str(items)!r} is a path: read it with read_pairs or read_labelled")
    if isinstance(items, Mapping):
        raise ConfigurationError("a dict is one row: give a list of rows, [{...}, {...}]")
    return list(items)


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    with open_foreign(path) as lines:
        for number, line in read_lines(lines):
            where = f"{path}, line {number}"
            try:
                if line is None:
                    raise too_long()
                if not line.strip():
                    continue
                yield where, parse_json(line)
            except ValueError as error:
                raise ConfigurationError(f"{where} is not valid JSON: {error}") from error


def _pair(where: str, item: Any) -> PreferencePair:
    if isinstance(item, PreferencePair):
        return item
    row = _row(where, item, "a PreferencePair")
    if isinstance(row.get("input"), Mapping):  # OpenAI's
        given = row["input"]
        names = {"chosen": "preferred_output", "rejected": "non_preferred_output"}
        prompt, tools = given.get("messages"), given.get("tools")
        sides = {side: row.get(key) for side, key in names.items()}
    else:
        prompt, tools = row.get("prompt"), row.get("tools")
        sides = {side: row.get(side) for side in ("chosen", "rejected")}
    if missing := [side for side, value in sides.items() if value is None]:
        keys = ", ".join(map(repr, row)) or "(none)"
        raise ConfigurationError(f"{where} has no {missing[0]!r}; its keys: {keys}. A row is {_PAIR_FORMS}")
    if prompt is None:
        if any(isinstance(value, str) for value in sides.values()):
            raise ConfigurationError(
                f"{where} has texts and no 'prompt': give the prompt apart, or lists of messages, which "
                "begin alike"
            )
        rows = {side: {"messages": value, "tools": tools} for side, value in sides.items()}
    else:
        rows = {
            side: {"prompt": prompt, "completion": value, "tools": tools} for side, value in sides.items()
        }
    made = {side: row_trajectory(f"{where}, {side}", one) for side, one in rows.items()}
    return PreferencePair(chosen=made["chosen"], rejected=made["rejected"])


def _labelled(where: str, item: Any) -> LabelledReply:
    if isinstance(item, LabelledReply):
        return item
    row = dict(_row(where, item, "a LabelledReply"))
    label = row.pop("label", None)
    if not isinstance(label, bool):
        raise ConfigurationError(
            f"{where} has the label {json.dumps(label, default=str)}; a row is {_LABEL_FORM}"
        )
    return LabelledReply(trajectory=row_trajectory(where, row), desirable=label)


def _row(where: str, item: Any, kind: str) -> Row:
    if not isinstance(item, Mapping):
        raise TypeError(f"{where} is {kind_of(item)}, not {kind} and not a row (a dict)")
    return {str(key): value for key, value in item.items() if value is not None}
