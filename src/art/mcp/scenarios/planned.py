"""A scenario with what is known of it beyond its text: how it may begin to be solved, and how often it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from art.errors import ConfigurationError
from art.mcp.types import GeneratedScenario


@dataclass(frozen=True, kw_only=True)
class PlannedCall:
    """One tool call of a plan."""

    tool: str
    arguments: dict[str, Any]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlannedCall:
        """The inverse of `to_dict`. Raises ConfigurationError for another shape."""
        tool, arguments = data.get("tool"), data.get("arguments", {})
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise ConfigurationError(f"a planned call is {{'tool': name, 'arguments': object}}, not {data!r}")
        return cls(tool=tool, arguments=arguments)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"tool": self.tool, "arguments": self.arguments}


@dataclass
class PlannedScenario(GeneratedScenario):
    """A scenario with the first calls of a solution.

    Example: task "How warm is it in Oslo?", difficulty 1, plan (forecast(place="oslo"),), pass_rate 0.25: the
    untrained model does it in one of four attempts.
    """

    plan: tuple[PlannedCall, ...] = ()
    """Empty where the author gave none."""
    pass_rate: float | None = None
    """Share of the base model's attempts that succeed, 0 to 1; None: not measured."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PlannedScenario:
        """The inverse of `to_dict`; plan and pass_rate may be missing.

        Raises ConfigurationError for a field that is missing or of another kind.
        """
        task, difficulty, plan = data.get("task"), data.get("difficulty"), data.get("plan") or ()
        if not isinstance(task, str) or not task.strip():
            raise ConfigurationError(f"a scenario has a task, a text; this one has {task!r}")
        if not isinstance(plan, Sequence) or not all(isinstance(call, Mapping) for call in plan):
            raise ConfigurationError(f"the plan of {task!r} is not a list of calls: {plan!r}")
        calls = tuple(PlannedCall.from_dict(call) for call in plan)
        return cls(task.strip(), whole(difficulty), calls, data.get("pass_rate"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; what is not known is left out."""
        plain: dict[str, Any] = {"task": self.task, "difficulty": self.difficulty}
        if self.plan:
            plain["plan"] = [call.to_dict() for call in self.plan]
        return plain if self.pass_rate is None else {**plain, "pass_rate": self.pass_rate}

    def measured(self, pass_rate: float) -> PlannedScenario:
        """The same with its measured pass rate."""
        return replace(self, pass_rate=pass_rate)

    @property
    def tools(self) -> frozenset[str]:
        """Names of the tools of its plan."""
        return frozenset(call.tool for call in self.plan)

    @property
    def plan_key(self) -> str | None:
        """Equal for equal plans, whatever the order of their calls and the capitals; None without a plan."""
        return "\n".join(sorted(self.plan_calls)) or None

    @property
    def plan_calls(self) -> frozenset[str]:
        """The different calls of its plan, for comparing."""
        return frozenset(json.dumps(call.to_dict(), sort_keys=True).casefold() for call in self.plan)


def whole(difficulty: Any) -> Any:
    """3 of "3" and 3.0, as some models write it; anything else as it is, for the scenario to refuse."""
    if isinstance(difficulty, float) and difficulty.is_integer():
        return int(difficulty)
    if isinstance(difficulty, str) and difficulty.strip().isdigit():
        return int(difficulty)
    return difficulty


def as_planned(scenario: GeneratedScenario | Mapping[str, Any] | str) -> PlannedScenario:
    """Of any way to say a scenario: an object, a dict with "task", or the task alone (of difficulty 1)."""
    if isinstance(scenario, PlannedScenario):
        return scenario
    if isinstance(scenario, GeneratedScenario):
        return PlannedScenario(scenario.task, scenario.difficulty)
    return PlannedScenario.from_dict(
        {"difficulty": 1, **scenario}
        if isinstance(scenario, Mapping)
        else {"task": scenario, "difficulty": 1}
    )


def scenario_list(data: Any) -> list[Any]:
    """The list in a model's answer or a file: an object with "scenarios", a bare list, or the first value.

    Raises ConfigurationError when there is no list.
    """
    found = data.get("scenarios", next(iter(data.values()))) if isinstance(data, dict) and data else data
    if not isinstance(found, list):
        raise ConfigurationError(f"there is no list of scenarios in {str(data)[:200]!r}")
    return found
