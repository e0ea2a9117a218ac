"""How a run of MCP-RL goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from art.backend import Keyword
from art.errors import ConfigurationError
from art.mcp.scenarios.near_duplicates import SIMILARITY
from art.runs.settings import AboveZero, Count, RunSettings, Share

NANO, NANO_RATE = "art/nano", 3e-3
"""The names of the built-in models begin so; with the rate of large models they would learn nothing."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings(RunSettings):
    """Everything that can be chosen about a run except who takes part: server, models, judge."""

    ENTRY: ClassVar[str] = "mcp.train"
    MAY_CHANGE: ClassVar[frozenset[str]] = RunSettings.MAY_CHANGE | {"deadline", "call_timeout"}

    num_train: Count = 16
    """Scenarios to train on."""
    num_test: Count = 8
    """Scenarios held out, for the comparison of before and after."""
    instructions: str | None = None
    """More for the generator to pay attention to."""
    similarity: Share = SIMILARITY
    """From which likeness (0 to 1) two scenarios are one."""
    learning_rate: AboveZero = 1e-5
    """Of the adapter, at its height. Unless given: 1e-5, and 3e-3 for the built-in art/nano models."""
    difficulty_attempts: Annotated[int, Keyword(least=0)] = 2
    """Rollouts of the base model at each training scenario, which say how hard it is; 0: not measured."""
    rubric: str | None = None
    """What a good rollout is, for a judge given by name. Default: RULER's own."""
    system_prompt: str | None = None
    """Of the agent. Default: the rollout's own."""
    allow_writes: tuple[str, ...] | Literal[True] = ()
    """Tools that may change something and may be called all the same; True: all."""
    max_turns: Count = 10
    """Completions of one rollout."""
    deadline: AboveZero = 300.0
    """Seconds a rollout may take."""
    call_timeout: AboveZero = 60.0
    """Seconds a tool call may take."""
    result_limit: Count = 8000
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
