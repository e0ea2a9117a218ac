"""Scenarios are checked before anything is trained on them: can they be done, are they different, do they
cover the tools?
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from art.errors import ConfigurationError, McpTimeoutError
from art.mcp.scenarios.near_duplicates import SIMILARITY, near_duplicate
from art.mcp.scenarios.planned import PlannedCall, PlannedScenario
from art.mcp.types import MCPTool

if TYPE_CHECKING:
    from art.mcp.sessions.session import Session, Writes

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
    """What is wrong with the calls of a plan, as far as the tools' descriptions say; None: nothing.

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
    """Whether a rollout may call the tool: it only reads, or it was named."""
    return tool.read_only is True or allow_writes is True or tool.name in allow_writes


def argument_problem(call: PlannedCall, schema: Mapping[str, Any]) -> str | None:
    """Why the arguments do not fit the JSON schema; None when they do, or when the schema itself is broken.

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
    """For each tool, in how many plans it is."""
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
