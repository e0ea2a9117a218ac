"""How a run of MCP-RL goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from art.errors import ConfigurationError
from art.mcp.scenarios.near_duplicates import SIMILARITY
from art.runs.settings import RunSettings

NANO, NANO_RATE = "art/nano", 3e-3
"""The names of the built-in models begin so; with the rate of large models they would learn nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(RunSettings):
    """Everything that can be chosen about a run except who takes part: server, models, judge."""

    ENTRY: ClassVar[str] = "mcp.train"
    AT_LEAST: ClassVar[Mapping[str, int]] = {
        **RunSettings.AT_LEAST,
        **{"max_turns": 1, "result_limit": 1, "difficulty_attempts": 0},
    }
    POSITIVE: ClassVar[tuple[str, ...]] = (*RunSettings.POSITIVE, "deadline", "call_timeout")
    MAY_CHANGE: ClassVar[frozenset[str]] = RunSettings.MAY_CHANGE | {"deadline", "call_timeout"}

    num_train: int = 16
    """Scenarios to train on."""
    num_test: int = 8
    """Scenarios held out, for the comparison of before and after."""
    instructions: str | None = None
    """More for the generator to pay attention to."""
    similarity: float = SIMILARITY
    difficulty_attempts: int = 2
    """Attempts of the base model at each training scenario, which say how hard it is; 0: not measured."""
    rubric: str | None = None
    """What the judge goes by; None: RULER's own. Only for a judge given by name."""
    system_prompt: str | None = None
    """Of the agent; None: the rollout's own."""
    allow_writes: tuple[str, ...] | Literal[True] = ()
    """Tools that may change something and may be called all the same; True: all."""
    max_turns: int = 10
    deadline: float = 300.0
    """Seconds a rollout may take."""
    call_timeout: float = 60.0
    """Seconds a tool call may take."""
    result_limit: int = 8000
    """Characters of a tool's result that the agent sees."""

    def __post_init__(self) -> None:
        if isinstance(self.allow_writes, str):
            raise ConfigurationError(f"allow_writes={self.allow_writes!r}: give a list of tools, or True")
        super().__post_init__()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Of keywords. Raises ConfigurationError for an unknown one, with the known."""
        writes = options.get("allow_writes")
        # A list in JSON, and as most people write it.
        return super().of({**options, "allow_writes": tuple(writes)} if isinstance(writes, list) else options)

    @classmethod
    def about(cls, base_model: str, options: Mapping[str, Any]) -> Self:
        """`of`, with the learning rate of the base model where none (or None) is given."""
        known = {name: value for name, value in options.items() if (name, value) != ("learning_rate", None)}
        return cls.of({"learning_rate": NANO_RATE, **known} if base_model.startswith(NANO) else known)
