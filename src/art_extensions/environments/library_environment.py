"""The part that the adapters of libraries share: their options, the splits, and how the model is asked."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from art.environments.adapters.environment import (
    CALL_S,
    EnvironmentThread,
    RolloutConversation,
    check_sizes,
    check_split,
    scenario_seed,
)
from art.errors import EnvironmentFailedError
from art.types import text_of_content

if TYPE_CHECKING:
    from art.environments.tasks import Message
    from art.model import Model

MOST_CHARACTERS = 200_000
"""Limit of an observation as text: more is a picture or a file, which no message shows."""


@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    """The options of an environment that adapters of libraries share."""

    seed: int = 0
    """The seed that selects the scenarios, or the order of a dataset's rows."""
    train: int = 1000
    """The most scenarios of the split "train"."""
    val: int = 100
    """The most scenarios of the split "val"."""
    system_prompt: str | None = None
    """The system message; None: none is sent."""
    request: Mapping[str, Any] | None = None
    """Further arguments of each request to the model."""
    deadline_s: float = CALL_S
    """The deadline of each call of the environment's code, in seconds."""


def takes_options(
    *, leave_out: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for an adapter's `__init__(self, name, options, /, *, ...)`: callers give the fields of
    `options` as keywords, and `inspect.signature` shows each with its default.

    leave_out: fields that are no keywords of this adapter. defaults: values of fields that differ here.
    """
    unset = AdapterOptions(**defaults)
    named = [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=getattr(unset, one.name), annotation=one.type
        )
        for one in fields(AdapterOptions)
        if one.name not in leave_out
    ]

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def with_keywords(self: Any, name: str, /, **given: Any) -> None:
            shared = {one.name: given.pop(one.name) for one in named if one.name in given}
            init(self, name, replace(unset, **shared), **given)

        own = inspect.signature(init)
        adapter, name, _, *rest = own.parameters.values()
        signature = own.replace(parameters=[adapter, name, *named, *rest])
        with_keywords.__signature__ = signature  # type: ignore[attr-defined]
        return with_keywords

    return decorate


class LibraryEnvironment:
    """The common part of the adapters of libraries: the splits, and how the model is asked."""

    def __init__(self, name: str, options: AdapterOptions) -> None:
        """Raises ConfigurationError unless both splits have a scenario."""
        check_sizes(name, options.train, options.val)
        self.name = name
        self._seed, self._sizes = options.seed, {"train": options.train, "val": options.val}
        prompt = options.system_prompt
        self._opening = [] if prompt is None else [{"role": "system", "content": prompt}]
        self._request = dict(options.request or {})
        self._deadline_s = options.deadline_s

    async def close(self) -> None:
        """Does nothing: each rollout ends what it has started."""

    def _scenario_seeds(self, split: str) -> list[int]:
        """Returns a seed for each scenario of a split. Raises ConfigurationError for another split."""
        check_split(self.name, split)
        return [scenario_seed(self._seed, split, index) for index in range(self._sizes[split])]

    def _thread(self) -> EnvironmentThread:
        """Returns the thread of one rollout's world."""
        return EnvironmentThread(self.name, deadline_s=self._deadline_s)

    def _conversation(
        self,
        model: Model,
        *messages: Message,
        seed: int | None,
        temperature: float,
        max_tokens: int | None,
        tools: Sequence[Any] = (),
        calling: Mapping[str, Any] = MappingProxyType({}),
        own_system: bool = False,
    ) -> RolloutConversation:
        """Returns a conversation that begins with the system message and these messages. tools: what the
        model is offered, in OpenAI's form. calling: what the scenario says of calls, such as `tool_choice`;
        `request` goes before it. own_system: the scenario's system message stands for the option's.
        """
        offered = {"tools": [*tools]} if tools else {}
        conversation = RolloutConversation(
            model,
            [*(() if own_system else self._opening), *messages],
            seed=seed,
            temperature=temperature,
            max_tokens=max_tokens,
            request={**(calling if tools else {}), **self._request, **offered},
        )
        conversation.trajectory.tools = [*tools] or None
        return conversation


def finite_reward(name: str, reward: object) -> float:
    """Returns a reward that the server of an environment sent. Raises EnvironmentFailedError for what is no
    finite number.
    """
    try:
        number = float(reward) if isinstance(reward, int | float) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFailedError(f"environment {name!r}: its reward is {reward!r:.60}, no number")
    return number


def text_in(info: Mapping[str, Any], name: str) -> str | None:
    """Returns a text of an environment's `info` about a turn, its "reason" or "state"; None: it has none."""
    found = info.get(name)
    return found if isinstance(found, str) else None


def newest_calls(conversation: RolloutConversation) -> Sequence[Any]:
    """Returns the calls of tools in the newest reply, each with `id` and `function`."""
    choice: Any = conversation.trajectory.messages_and_choices[-1]
    return choice.message.tool_calls or ()


def text_of_turns(messages: Sequence[Any]) -> str:
    """Returns a conversation for people, a paragraph for each message, with its calls of tools."""
    paragraphs = []
    for one in messages:
        calls = [call["function"] for call in one.get("tool_calls") or ()]
        lines = [
            text_of_content(one.get("content")),
            *(f"{call['name']}({call['arguments']})" for call in calls),
        ]
        paragraphs.append(f"{one['role']}: " + "\n".join(line for line in lines if line))
    return "\n\n".join(paragraphs)
