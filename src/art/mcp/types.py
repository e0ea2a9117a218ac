"""What an MCP server offers, and the scenarios made from it."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from art.errors import ConfigurationError

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
    """Of plain values of either kind. Raises KeyError for a missing field."""
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
        whole = isinstance(self.difficulty, int) and not isinstance(self.difficulty, bool)
        if not whole or self.difficulty not in DIFFICULTIES:
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
        """Of plain values, as `to_dicts` gives them."""
        return cls([GeneratedScenario.from_dict(item) for item in data])

    @classmethod
    def from_json(cls, json_str: str) -> GeneratedScenarioCollection:
        """Of a model's answer: an object with "scenarios", a bare list, or an object whose first value it is.

        Raises ConfigurationError when there is no list.
        """
        data = json.loads(json_str)
        if isinstance(data, dict) and data:
            data = data.get("scenarios", next(iter(data.values())))
        if not isinstance(data, list):
            raise ConfigurationError(f"there is no list of scenarios in {json_str[:200]!r}")
        return cls.from_dicts(data)

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
        """How many scenarios each difficulty has."""
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
