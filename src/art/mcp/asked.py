"""The models that a run of MCP-RL asks, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.mcp.generate_scenarios import SOURCE
from art.runs.costs import Costs, spent
from art.runs.generator import generator_channel
from art.runs.judges import Candidate, Judges, judges_of

if TYPE_CHECKING:
    from art.llm.budget import Budget
    from art.llm.cache import AnswerCache
    from art.llm.channel import Channel


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The models that a run asks: those that judge, one that generates."""

    judges: Judges
    generator: Channel | ConfigurationError
    """Why its model cannot be asked, where it cannot: it may not be needed."""

    def costs(self) -> Costs:
        """What they were asked in this process, by role."""
        writing = {} if isinstance(self.generator, ConfigurationError) else {"generator": self.generator}
        return {role: spent(channel) for role, channel in {**writing, **self.judges.channels()}.items()}


def generator_of(
    generator: Any, params: Mapping[str, Any] | None, *, cache: AnswerCache, budget: Budget | None
) -> Channel | ConfigurationError:
    """The way to the model that writes scenarios, or why there is none."""
    try:
        return generator_channel(generator, source=SOURCE, params=params, cache=cache, budget=budget)
    except ConfigurationError as error:
        return error


def judges_by(judge: Candidate, referee: Candidate | None, rubric: str | None) -> Judges:
    """Raises ConfigurationError for a rubric that no judge would go by."""
    from art.rewards.reward import Reward

    if rubric is not None and isinstance(judge.judge, Reward):
        raise ConfigurationError(
            f"rubric={rubric!r} is for a judge by name; give it to {judge.judge.name!r} itself"
        )
    return judges_of(judge, referee, rubric)
