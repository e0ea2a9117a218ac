"""Scenarios are checked before anything is trained on them.

Can they be done, are they different, do they cover the tools? Which tasks say the same in other words is
decided by rules about words. Plans are tried on the real server, which may not survive them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from art.errors import ConfigurationError, McpError, McpTimeoutError
from art_extensions.scenarios.likeness import likeness, spelling_likeness, words
from art_extensions.scenarios.mcp.session import connect
from art_extensions.scenarios.mcp.types import MCPTool, PlannedCall, PlannedScenario

if TYPE_CHECKING:
    from art_extensions.scenarios.mcp.session import Session, Writes


SIMILARITY = 0.95
"""The likeness of the sorted words of two tasks from which on they are one task."""
SAME_WORD = 0.8
"""Likeness of letters from which a word is another form of a word: forecast, forecasts."""
FILLER = frozenset(
    (
        "a an and any are as at be been by can could do does for from get give had has have i in into is "
        "it its just kindly let me my need of on or our please provide show tell that the their them then "
        "there these this those to up us want was we were what what's which will with would you your"
    ).split()
)


def near_duplicate(
    scenario: PlannedScenario, others: Iterable[PlannedScenario], *, similarity: float = SIMILARITY
) -> PlannedScenario | None:
    """The first of the others that is the same task, or None.

    Two tasks are the same when, without filler and forms of one word, they have the same words, or when they
    are alike to `similarity` (0 to 1, by their words) and no name or number sets them apart.
    Plans of which neither has all calls of the other set apart tasks with other words, or in another order.
    """
    return next((other for other in others if same_task(scenario, other, similarity)), None)


def same_task(one: PlannedScenario, two: PlannedScenario, similarity: float) -> bool:
    """The rule of `near_duplicate` for two tasks. Raises ConfigurationError without rapidfuzz."""
    first_calls, second_calls = one.plan_calls, two.plan_calls
    if not (first_calls <= second_calls or second_calls <= first_calls):
        # Other arguments, other task: "from Oslo to Rome" and "from Rome to Oslo". What says the same in the
        # same order is one task, however it is planned.
        return content_words(one.task) == content_words(two.task)
    apart = set_apart(one.task, two.task)
    if not apart:
        return True
    if any(is_name(word, text) for word in apart for text in (one.task, two.task)):
        return False
    return likeness(one.task, two.task) >= similarity


def content_words(text: str) -> list[str]:
    """The words without filler, in their order."""
    return [word for word in words(text) if word not in FILLER]


def set_apart(one: str, two: str) -> set[str]:
    """Words of either task that the other has in no form, without filler."""
    first, second = set(content_words(one)), set(content_words(two))
    only_first, only_second = first - second, second - first
    return {word for word in only_first if not in_another_form(word, only_second)} | {
        word for word in only_second if not in_another_form(word, only_first)
    }


def in_another_form(word: str, others: Iterable[str]) -> bool:
    plain = [other for other in others if word[:3] == other[:3] and word.isalpha() and other.isalpha()]
    return any(spelling_likeness(word, other) >= SAME_WORD for other in plain)


def is_name(word: str, text: str) -> bool:
    """Returns whether the word is a number, or written with a capital inside the text: a name."""
    if any(letter.isdigit() for letter in word):
        return True
    found = re.search(rf"(?<=\w[\s,;]){re.escape(word)}\b", text, re.IGNORECASE)
    return found is not None and found[0][:1].isupper()


Reason = Literal["unknown_tool", "bad_arguments", "writes", "failed_call", "near_duplicate"]


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A scenario that is not used, and why."""

    task: str
    reason: Reason
    detail: str


def check_plan(
    scenario: PlannedScenario, tools: Sequence[MCPTool], *, allow_writes: Writes = ()
) -> Rejection | None:
    """Returns the error in the calls of a plan, by the tools' descriptions; None: no error.

    unknown_tool: there is no such tool. bad_arguments: they do not fit its JSON schema. writes: the tool is
    not known to be read-only (`MCPTool.read_only`) and not in `allow_writes`, so no rollout may call it.
    """
    by_name = {tool.name: tool for tool in tools}
    for call in scenario.plan:
        tool = by_name.get(call.tool)
        if tool is None:
            known = ", ".join(sorted(by_name)) or "no tools"
            return Rejection(
                task=scenario.task, reason="unknown_tool", detail=f"{call.tool!r}; the server has {known}"
            )
        if not may_call(tool, allow_writes):
            return Rejection(
                task=scenario.task, reason="writes", detail=f"{call.tool!r} may change something"
            )
        if (problem := argument_problem(call, tool.parameters)) is not None:
            return Rejection(task=scenario.task, reason="bad_arguments", detail=f"{call.tool}: {problem}")
    return None


def may_call(tool: MCPTool, allow_writes: Writes) -> bool:
    """Returns whether a rollout may call the tool: it only reads, or it was named."""
    return tool.read_only is True or allow_writes is True or tool.name in allow_writes


def argument_problem(call: PlannedCall, schema: Mapping[str, Any]) -> str | None:
    """Returns why the arguments do not fit the JSON schema; None when they do, or when the schema itself is
    broken.

    References of the schema are not looked up elsewhere: nothing is fetched.
    """
    from jsonschema.exceptions import SchemaError, best_match
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
        worst = best_match(kind(schema, registry=Registry()).iter_errors(call.arguments))
    except (SchemaError, Unresolvable):
        return None
    return None if worst is None else str(worst.message)[:300]


async def try_plan(
    scenario: PlannedScenario, session: Session, tools: Sequence[MCPTool], *, timeout: float = 30.0
) -> Rejection | None:
    """Make the plan's calls of tools that only read; None when each gave a result.

    Calls of tools that may write, and what comes after them, are not made. timeout: seconds a call may take.
    Raises McpError when the server is gone.
    """
    read_only = {tool.name for tool in tools if tool.read_only is True}
    for call in scenario.plan:
        if call.tool not in read_only:
            return None
        try:
            result = await session.call(call.tool, call.arguments, timeout=timeout)
        except McpTimeoutError as error:
            return Rejection(task=scenario.task, reason="failed_call", detail=f"{call.tool}: {error}")
        if result.is_error:
            detail = f"{call.tool}: {result.text[:300]}"
            return Rejection(task=scenario.task, reason="failed_call", detail=detail)
    return None


def check_new(
    scenario: PlannedScenario, others: Sequence[PlannedScenario], *, similarity: float = SIMILARITY
) -> Rejection | None:
    """near_duplicate: one of the others is the same task (`same_task`); None when it is new."""
    twin = near_duplicate(scenario, others, similarity=similarity)
    if twin is None:
        return None
    return Rejection(task=scenario.task, reason="near_duplicate", detail=f"of {twin.task!r}")


def tool_counts(scenarios: Sequence[PlannedScenario], tools: Sequence[MCPTool]) -> dict[str, int]:
    """Returns the number of plans that contain each tool."""
    counts = Counter(name for scenario in scenarios for name in scenario.tools)
    return {tool.name: counts[tool.name] for tool in tools}


def select_spread(scenarios: Sequence[PlannedScenario], count: int) -> list[PlannedScenario]:
    """`count` of the scenarios, spread over tools and difficulties: each next one is least covered."""
    left, chosen = list(scenarios), list[PlannedScenario]()
    tools: Counter[str] = Counter()
    levels: Counter[int] = Counter()
    while left and len(chosen) < count:
        best = min(
            left, key=lambda one: (min((tools[t] for t in one.tools), default=0), levels[one.difficulty])
        )
        left.remove(best)
        chosen.append(best)
        tools.update(best.tools)
        levels[best.difficulty] += 1
    return chosen


def split_apart(
    scenarios: Sequence[PlannedScenario], num_test: int, *, seed: int = 0
) -> tuple[list[PlannedScenario], list[PlannedScenario]]:
    """Training and test scenarios without overlap: those with the same plan stay on one side.

    num_test: at most so many for the test, unless the smallest family of one plan is larger. The draw is
    seeded; each set of tools has nearly the same share on both sides; one scenario is left for training.

    Raises ConfigurationError when there are not two different scenarios.
    """
    families: dict[str, list[PlannedScenario]] = {}
    for scenario in scenarios:
        families.setdefault(scenario.plan_key or f"task {scenario.task}", []).append(scenario)
    if len(families) < 2:
        raise ConfigurationError(
            f"{len(scenarios)} scenarios with {len(families)} different plans cannot be split; generate more"
        )
    order = list(families.values())
    random.Random(f"split/{seed}").shuffle(order)
    test, train = list[list[PlannedScenario]](), list[list[PlannedScenario]]()
    for family in in_proportion(order, num_test / len(scenarios)):
        fits = sum(map(len, test)) + len(family) <= num_test
        (test if fits else train).append(family)
    if not test:
        test.append(train.pop(train.index(min(train, key=len))))
    if not train:
        train.append(test.pop())
    return [one for family in train for one in family], [one for family in test for one in family]


def in_proportion(families: Sequence[list[PlannedScenario]], share: float) -> Iterator[list[PlannedScenario]]:
    """The families, each next one with the tools that are most behind their `share` of scenarios."""
    kinds: dict[frozenset[str], list[list[PlannedScenario]]] = {}
    for family in families:
        kinds.setdefault(frozenset(family[0].tools), []).append(family)
    behind = {tools: share * sum(map(len, members)) for tools, members in kinds.items()}
    while kinds:
        tools = max(kinds, key=behind.__getitem__)
        family = kinds[tools].pop()
        behind[tools] -= len(family)
        if not kinds[tools]:
            del kinds[tools]
        yield family


class PlanProbe:
    """Makes the calls of plans that only read, in a session that is opened again when the server died.

    `async with PlanProbe(server, tools) as probe`. server: as `art.mcp.connect` takes it.
    call_timeout: seconds.
    """

    def __init__(self, server: Any, tools: Sequence[MCPTool], *, call_timeout: float = 30.0) -> None:
        self._server, self._tools, self._call_timeout = server, tools, call_timeout
        self._stack = AsyncExitStack()
        self._session: Session | None = None

    async def __aenter__(self) -> PlanProbe:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def rejection(self, scenario: PlannedScenario) -> Rejection | None:
        """failed_call, with what the server said; None when all that was called gave results, or nothing was.

        A server that dies of a call has failed it, and is started again. Raises McpError when it cannot be.
        """
        if not scenario.plan:
            return None
        session = await self._open()
        try:
            return await try_plan(scenario, session, self._tools, timeout=self._call_timeout)
        except McpError as error:
            await self._stack.aclose()
            self._session = None
            return Rejection(task=scenario.task, reason="failed_call", detail=str(error)[:300])

    async def _open(self) -> Session:
        if self._session is None:
            self._stack = AsyncExitStack()
            self._session = await self._stack.enter_async_context(connect(self._server))
        return self._session
