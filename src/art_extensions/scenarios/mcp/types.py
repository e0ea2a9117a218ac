"""What an MCP server offers and answers, and the scenarios made from it.

A scenario may have a plan, which is how it may begin to be solved, and a pass rate, which is how often it is.
A session asks a `Source`: a server that runs, or a cassette of one that did.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, overload

from art.errors import ConfigurationError
from art.process.foreign_files import parse_json
from art.types import kind_of
from art.wire.quoting import quote_value

DIFFICULTIES = range(1, 6)


@dataclass
class MCPTool:
    """A tool: its name, what it does, and the JSON schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool | None = None
    """Whether calling it changes nothing; None: the server does not say."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MCPTool:
        """The inverse of `to_dict`. Raises KeyError for a missing field."""
        return cls(data["name"], data["description"], data["parameters"], data.get("read_only"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `read_only` only where it is known."""
        plain = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return plain if self.read_only is None else {**plain, "read_only": self.read_only}

    def to_tool_schema(self) -> dict[str, Any]:
        """The tool as OpenAI's `tools=` takes it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass
class MCPResource:
    """A document that a server offers."""

    uri: str
    name: str
    description: str
    mime_type: str | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MCPResource:
        """The inverse of `to_dict`; also takes `mime_type`. Raises KeyError for a missing field."""
        kind = data.get("mimeType", data.get("mime_type"))
        return cls(data["uri"], data["name"], data["description"], kind)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, spelt as the protocol does: `mimeType`, and only where there is one."""
        plain = {"uri": self.uri, "name": self.name, "description": self.description}
        return plain if self.mime_type is None else {**plain, "mimeType": self.mime_type}


@dataclass
class MCPResourceTemplate:
    """Documents that a server makes on demand, such as `notes://{day}`: an address to fill in (RFC 6570)."""

    uri_template: str
    name: str
    description: str
    mime_type: str | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MCPResourceTemplate:
        """The inverse of `to_dict`. Raises KeyError for a missing field."""
        return cls(data["uriTemplate"], data["name"], data["description"], data.get("mimeType"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, spelt as the protocol does: `uriTemplate`, and `mimeType` only where there is one."""
        plain = {"uriTemplate": self.uri_template, "name": self.name, "description": self.description}
        return plain if self.mime_type is None else {**plain, "mimeType": self.mime_type}


MCPDocument = MCPResource | MCPResourceTemplate


def document_of(data: Mapping[str, Any]) -> MCPDocument:
    """Builds a document from plain values of either kind. Raises KeyError for a missing field."""
    kind = MCPResourceTemplate if "uriTemplate" in data else MCPResource
    return kind.from_dict(data)


@dataclass
class MCPPrompt:
    """A prompt template that a server offers; `arguments`: what it must or may be given."""

    name: str
    description: str
    arguments: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MCPPrompt:
        """The inverse of `to_dict`. Raises KeyError for a missing field."""
        return cls(data["name"], data["description"], list(data.get("arguments", ())))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "description": self.description, "arguments": self.arguments}


@dataclass
class GeneratedScenario:
    """A task for an agent with a server's tools; difficulty 1 (a call or two) to 5."""

    task: str
    difficulty: int

    def __post_init__(self) -> None:
        is_integer = isinstance(self.difficulty, int) and not isinstance(self.difficulty, bool)
        if not is_integer or self.difficulty not in DIFFICULTIES:
            raise ConfigurationError(
                f"Difficulty must be an integer between 1 and 5, not {self.difficulty!r} ({self.task!r})"
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GeneratedScenario:
        """The inverse of `to_dict`. Raises KeyError for a missing field."""
        return cls(data["task"], data["difficulty"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"task": self.task, "difficulty": self.difficulty}

    def preview(self, max_length: int = 120) -> str:
        """The task, cut after `max_length` characters."""
        return self.task if len(self.task) <= max_length else self.task[:max_length].strip() + "…"


class GeneratedScenarioCollection:
    """Scenarios in an order, to shuffle, split and count."""

    def __init__(self, scenarios: Sequence[GeneratedScenario]) -> None:
        self.scenarios = list(scenarios)

    @classmethod
    def from_dicts(cls, data: Sequence[Mapping[str, Any]]) -> GeneratedScenarioCollection:
        """Builds a collection from plain values, as `to_dicts` returns them."""
        return cls([GeneratedScenario.from_dict(item) for item in data])

    @classmethod
    def from_json(cls, json_str: str) -> GeneratedScenarioCollection:
        """Builds a collection from a model's answer: an object with "scenarios", a bare list, or an object
        whose first value is the list.

        Raises ConfigurationError when there is no list, or an item is no scenario.
        """
        try:
            data = parse_json(json_str)
            if isinstance(data, dict) and data:
                data = data.get("scenarios", next(iter(data.values())))
            if not isinstance(data, list):
                raise TypeError(f"it is {kind_of(data)}")
            return cls.from_dicts(data)
        except ConfigurationError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"there is no list of scenarios in {json_str[:200]!r} ({error})"
            ) from error

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [scenario.to_dict() for scenario in self.scenarios]

    def to_json(self, indent: int | None = None) -> str:
        """A JSON object with "scenarios"."""
        return json.dumps({"scenarios": self.to_dicts()}, indent=indent)

    def __len__(self) -> int:
        return len(self.scenarios)

    def __iter__(self) -> Iterator[GeneratedScenario]:
        return iter(self.scenarios)

    @overload
    def __getitem__(self, index: int) -> GeneratedScenario: ...

    @overload
    def __getitem__(self, index: slice) -> list[GeneratedScenario]: ...

    def __getitem__(self, index: int | slice) -> GeneratedScenario | list[GeneratedScenario]:
        return self.scenarios[index]

    def shuffle(self) -> GeneratedScenarioCollection:
        """The same scenarios in a random order (of `random`'s shared generator, so `random.seed` decides)."""
        return GeneratedScenarioCollection(random.sample(self.scenarios, len(self.scenarios)))

    def split(self, train_size: int) -> tuple[GeneratedScenarioCollection, GeneratedScenarioCollection]:
        """The first `train_size` scenarios and the others. Raises ConfigurationError when there are fewer."""
        if train_size > len(self.scenarios):
            raise ConfigurationError(
                f"split({train_size=}): there are only {len(self.scenarios)} scenarios; ask for fewer"
            )
        train, others = self.scenarios[:train_size], self.scenarios[train_size:]
        return GeneratedScenarioCollection(train), GeneratedScenarioCollection(others)

    def filter_by_difficulty(
        self, min_difficulty: int = 1, max_difficulty: int = 5
    ) -> GeneratedScenarioCollection:
        """The scenarios within these difficulties, both included."""
        within = range(min_difficulty, max_difficulty + 1)
        return GeneratedScenarioCollection([s for s in self.scenarios if s.difficulty in within])

    def get_difficulty_distribution(self) -> Counter[int]:
        """Returns how many scenarios each difficulty has."""
        return Counter(scenario.difficulty for scenario in self.scenarios)

    def preview(self, n: int = 5, max_task_length: int = 120) -> list[str]:
        """The first `n` scenarios, a line each."""
        first = self.scenarios[:n]
        return [
            f"{place}. {scenario.preview(max_task_length)} (difficulty {scenario.difficulty}/5)"
            for place, scenario in enumerate(first, 1)
        ]

    def print_difficulty_distribution(self) -> None:
        """Show how many scenarios each difficulty has on the terminal."""
        counts = self.get_difficulty_distribution()
        lines = (f"  {level}/5: {counts[level]:3d}  {'█' * counts[level]}" for level in DIFFICULTIES)
        sys.stdout.write("".join(f"{line}\n" for line in lines))

    def get_summary(self) -> dict[str, Any]:
        """total_scenarios, difficulty_distribution, avg_difficulty, avg_task_length (characters)."""
        count = len(self.scenarios) or 1
        return {
            "total_scenarios": len(self.scenarios),
            "difficulty_distribution": dict(self.get_difficulty_distribution()),
            "avg_difficulty": sum(scenario.difficulty for scenario in self.scenarios) / count,
            "avg_task_length": sum(len(scenario.task) for scenario in self.scenarios) / count,
        }


complete_task_tool = MCPTool(
    name="complete_task",
    description="Complete a task",
    parameters={
        "type": "object",
        "properties": {"summary": {"type": "string", "description": "Summary of accomplishments"}},
        "required": ["summary"],
    },
)
"""The agent calls it when it is done."""


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
            raise ConfigurationError(f"a scenario has a task, a text; this one has {quote_value(task)}")
        if not isinstance(plan, Sequence) or not all(isinstance(call, Mapping) for call in plan):
            raise ConfigurationError(
                f"the plan of {quote_value(task)} is not a list of calls: {quote_value(plan)}"
            )
        calls = tuple(PlannedCall.from_dict(call) for call in plan)
        return cls(task.strip(), whole_number(difficulty), calls, data.get("pass_rate"))

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


def whole_number(difficulty: Any) -> Any:
    """Returns 3 for "3" and 3.0, as some models write it; other values are returned unchanged, and the
    scenario rejects them.
    """
    if isinstance(difficulty, float) and difficulty.is_integer():
        return int(difficulty)
    if isinstance(difficulty, str) and difficulty.strip().isdigit():
        return int(difficulty)
    return difficulty


def as_planned(scenario: GeneratedScenario | Mapping[str, Any] | str) -> PlannedScenario:
    """Builds a planned scenario from an object, a dict with "task", or the task alone (of difficulty 1)."""
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


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """The answer of a tool."""

    text: str
    """What a model reads: the text parts, with placeholders for images and sounds."""
    is_error: bool = False
    """The tool says that it failed."""
    truncated: bool = False
    """The text was longer than the limit."""

    def limited(self, limit: int | None) -> ToolResult:
        """Returns the result with about `limit` characters at most: the head, the number of missing
        characters, and the tail.
        """
        if limit is None or len(self.text) <= limit:
            return self
        tail = limit // 5
        head = limit - tail
        missing = len(self.text) - limit
        end = self.text[-tail:] if tail else ""
        text = f"{self.text[:head]}\n[... {missing} characters are left out ...]\n{end}"
        return ToolResult(text=text, is_error=self.is_error, truncated=True)


def tool_result(answer: Any) -> ToolResult:
    """Converts the SDK's `CallToolResult`. Structured content is used if there is no text."""
    text = content_text(answer.content)
    if not answer.content and answer.structured_content is not None:
        text = json.dumps(answer.structured_content, ensure_ascii=False)
    return ToolResult(text=text, is_error=bool(answer.is_error))


def content_text(blocks: Iterable[Any]) -> str:
    """The blocks of an answer, one below the other."""
    return "\n".join(_block_text(block) for block in blocks)


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return f"[{block.type}: {block.mime_type}, {_byte_count(block.data)} bytes]"
    if block.type == "resource":
        return resource_text(block.resource)
    return f"[{block.type}: {getattr(block, 'uri', '')}]"


def resource_text(contents: Any) -> str:
    """One part of a resource: its text, or what kind of bytes it has."""
    if (text := getattr(contents, "text", None)) is not None:
        return str(text)
    return f"[{contents.mime_type or 'application/octet-stream'}: {_byte_count(contents.blob)} bytes]"


def _byte_count(base64: str) -> int:
    return len(base64.rstrip("=")) * 3 // 4


@dataclass(frozen=True, kw_only=True)
class ServerOffer:
    """The tools, resources and prompts of a server."""

    tools: list[MCPTool]
    resources: list[MCPResource]
    templates: list[MCPResourceTemplate]
    prompts: list[MCPPrompt]


class SessionSource(Protocol):
    """Answers requests in place of a session. Raises McpError when it cannot."""

    label: str

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def tools(self) -> list[MCPTool]: ...

    async def inspect(self) -> ServerOffer: ...

    async def read_resource(self, uri: str, *, timeout: float) -> str: ...

    async def call(self, tool: MCPTool, arguments: Mapping[str, Any], *, timeout: float) -> ToolResult: ...
