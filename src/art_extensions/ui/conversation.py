"""A logged trajectory as turns to show, and a text as it may be shown.

All text is a model's or a tool's. The pages escape it; `visible` spells out the characters that would hide or
reorder what stands beside them.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from art.process.foreign_files import parse_json
from art.trajectories import History, Trajectory, TrajectoryGroup
from art.types import Unscored, get_messages, is_choice, sample_id, text_of_content
from art.wire.rollout_record import RolloutRecord
from art_extensions.ui.run_files import RunFiles

LONGEST_SHOWN = 20_000
"""Characters of a text on a page; the rest is a link away."""
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Controls, marks of direction, invisible characters, halves of characters."""
_GROUPS_KEPT = 32


def visible(text: object) -> str:
    """Returns the text with each hidden character as its number.

    >>> visible("a\\u202eb")
    'a⟨202e⟩b'
    """
    return _HIDDEN.sub(lambda found: f"⟨{ord(found[0]):x}⟩", str(text))


def shorten(text: str, longest: int = LONGEST_SHOWN) -> tuple[str, int]:
    """Returns the beginning of a text, and how many characters were left out."""
    return (text, 0) if len(text) <= longest else (text[:longest], len(text) - longest)


@dataclass(frozen=True)
class ShownCall:
    """A call of a tool."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ShownTurn:
    """One message of a conversation."""

    history: int
    place: int
    role: str
    name: str
    """The tool's name, where the message is its reply."""
    thought: str
    text: str
    omitted: int
    """Characters that are not in `text`."""
    calls: tuple[ShownCall, ...]
    images: int
    sampled: bool
    sample: str | None
    step: int | None
    """The adapter that sampled it."""
    finish: str | None
    reward: float | None = None
    """What the turn was given."""
    reason: str = ""
    """Why."""
    earned: float | None = None
    """What it and the later ones earn, as the algorithm discounts it."""
    advantage: float | None = None

    @property
    def content(self) -> tuple[object, ...]:
        """Returns the part that is compared between rollouts of a group."""
        return (self.role, self.text, self.thought, self.calls)


def show_turns(trajectory: Trajectory, longest: int = LONGEST_SHOWN) -> list[ShownTurn]:
    """Returns the turns of all histories, in order."""
    histories: list[Trajectory | History] = [trajectory, *trajectory.additional_histories]
    return [turn for number, one in enumerate(histories) for turn in _turns(number, one, longest)]


def with_credit(
    turns: Sequence[ShownTurn], trajectory: Trajectory | None, record: RolloutRecord | None
) -> list[ShownTurn]:
    """Returns the turns with what the trajectory gave them, and what the record of the step says of them."""
    rewards, whys = ({}, {}) if trajectory is None else (trajectory.turn_rewards, trajectory.turn_reasons)
    known = RolloutRecord(rollout="", group=0, place=0, fate="") if record is None else record
    given, earned, advantages = map(
        known.by_sample, (known.turn_rewards, known.turn_returns, known.turn_advantages)
    )
    reasons = {**known.turn_reasons, **whys}
    return [
        replace(
            one,
            reward=rewards.get(one.sample, given.get(one.sample)),
            reason=shorten(visible(reasons.get(one.sample, "")))[0],
            earned=earned.get(one.sample),
            advantage=advantages.get(one.sample),
        )
        if one.sample is not None
        else one
        for one in turns
    ]


def without_credit(turn: ShownTurn) -> ShownTurn:
    """Returns the turn as several rollouts have it, each with a credit of its own."""
    return replace(turn, reward=None, reason="", earned=None, advantage=None)


def _turns(number: int, history: Trajectory | History, longest: int) -> Iterator[ShownTurn]:
    names: dict[str, str] = {}
    items = history.messages_and_choices
    for place, (item, found) in enumerate(zip(items, get_messages(items), strict=True)):
        message: dict[str, Any] = dict(found)
        calls = tuple(_calls(message, names))
        text, omitted = shorten(content_text(message), longest)
        yield ShownTurn(
            history=number,
            place=place,
            role=str(message.get("role") or "unknown"),
            name=names.get(str(message.get("tool_call_id")), str(message.get("name") or "")),
            thought=shorten(str(message.get("reasoning_content") or message.get("reasoning") or ""), longest)[
                0
            ],
            text=visible(text),
            omitted=omitted,
            calls=calls,
            images=_count_images(message.get("content")),
            sampled=is_choice(item),
            sample=sample_id(item) if is_choice(item) else None,
            step=_extra(item, "step"),
            finish=_extra(item, "finish_reason"),
        )


def content_text(message: dict[str, Any]) -> str:
    """Returns the text of a message's content, whatever form that has."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    try:
        return text_of_content(content)
    except (TypeError, AttributeError, KeyError):
        return str(content)


def _calls(message: dict[str, Any], names: dict[str, str]) -> Iterator[ShownCall]:
    found = message.get("tool_calls")
    for call in found if isinstance(found, list | tuple) else ():
        function = (call.get("function") if isinstance(call, dict) else None) or {}
        name = visible(shorten(str(function.get("name") or "?"), 200)[0])
        if isinstance(call, dict) and call.get("id"):
            names[str(call["id"])] = name
        yield ShownCall(name, visible(shorten(_pretty(function.get("arguments")))[0]))


def _pretty(arguments: object) -> str:
    """The arguments of a call, one on each line where they are JSON; as they are where not."""
    try:
        value = parse_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return str(arguments)
    if not isinstance(value, dict):
        return str(arguments)
    lines = (
        f"{name}: {one if isinstance(one, str) else json.dumps(one, ensure_ascii=False, default=str)}"
        for name, one in value.items()
    )
    return "\n".join(lines)


def _count_images(content: object) -> int:
    parts = content if isinstance(content, list) else []
    return sum(isinstance(part, dict) and "image" in str(part.get("type")) for part in parts)


def _extra(item: Any, name: str) -> Any:
    if not is_choice(item):
        return None
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)


def reward_of(trajectory: Trajectory) -> tuple[float | None, str | None]:
    """Returns the reward, or None and why there is none."""
    if isinstance(trajectory.reward, Unscored):
        return None, trajectory.reward.reason
    return trajectory.reward, None


def common_turns(conversations: Sequence[Sequence[ShownTurn]]) -> int:
    """Returns with how many equal turns all of them begin."""
    if not conversations:
        return 0
    same = 0
    for turns in zip(*conversations, strict=False):
        if len({turn.content for turn in turns}) > 1:
            break
        same += 1
    return same


def unusual_turns(conversations: Sequence[Sequence[ShownTurn]], number: int) -> list[bool]:
    """Returns for each turn of one conversation whether most of the others have another one there."""
    unusual = []
    for place, turn in enumerate(conversations[number]):
        there = Counter(one[place].content for one in conversations if place < len(one))
        unusual.append(there[turn.content] < max(there.values()))
    return unusual


class LogReader:
    """The groups that were read last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, str, int], TrajectoryGroup | None] = OrderedDict()
        self._lock = Lock()

    def group(self, run: RunFiles, split: str, step: int, place: int, stamp: str) -> TrajectoryGroup | None:
        """Returns one group of a step's log; None where there are fewer. stamp: changes with its files.

        Raises: TrajectoryLogError when the log is damaged, ConfigurationError without polars.
        """
        key = run.log.path(split, step), stamp, place
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = run.log.group(split, step, place)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _GROUPS_KEPT:
                self._kept.popitem(last=False)
        return found
