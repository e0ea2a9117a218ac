"""A model that writes scenarios: asked in portions, asked again for what is missing or malformed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError, LlmAnswerError
from art.mcp.scenarios.planned import PlannedScenario, scenario_list
from art.mcp.scenarios.prompt import SCHEMA_NAME, answer_schema, generation_prompt
from art.mcp.types import MCPDocument, MCPTool

if TYPE_CHECKING:
    from art.llm.channel import Channel

logger = logging.getLogger(__name__)

PORTION = 24
"""Scenarios in one answer: what fits into `MAX_TOKENS`."""
MAX_TOKENS = 8000
SHOWN = 100
"""How many existing tasks a prompt names."""


@dataclass(frozen=True, kw_only=True)
class ScenarioWriter:
    """Writes scenarios for tools and resources through a channel."""

    channel: Channel
    tools: Sequence[MCPTool]
    resources: Sequence[MCPDocument] = ()
    instructions: str | None = None
    plans: bool = False
    """Whether each scenario comes with the first calls of a solution."""

    async def write(
        self, count: int, *, existing: Sequence[str] = (), neglected: Sequence[str] = (), salt: str = ""
    ) -> list[PlannedScenario]:
        """At most `count` new scenarios; fewer where answers were short or malformed.

        A portion whose answer cannot be read, also after it was repaired, is asked for in halves: an answer
        that was cut off at its limit comes whole then. Raises LlmAnswerError when even a single scenario
        cannot be had, and what the channel raises.
        """
        written: list[PlannedScenario] = []
        portions = [min(PORTION, count - begin) for begin in range(0, count, PORTION)]
        while portions:
            size = portions.pop(0)
            known = [*existing, *(scenario.task for scenario in written)]
            try:
                written += (await self._ask(size, known, neglected, salt))[:size]
            except LlmAnswerError as error:
                if size == 1:
                    if written:
                        break
                    raise
                logger.warning("%s scenarios in one answer failed; asking for halves: %s", size, error)
                portions[:0] = [size - size // 2, size // 2]
        return written

    async def _ask(
        self, count: int, known: Sequence[str], neglected: Sequence[str], salt: str
    ) -> list[PlannedScenario]:
        from art.llm.request import Request  # here: servers in this package start without it

        prompt = generation_prompt(
            self.tools,
            self.resources,
            count,
            instructions=self.instructions,
            plans=self.plans,
            avoid=known[-SHOWN:],
            neglected=neglected,
        )
        request = Request(
            messages=({"role": "user", "content": prompt},),
            schema=answer_schema(count, plans=self.plans),
            schema_name=SCHEMA_NAME,
            max_tokens=MAX_TOKENS,
            salt=salt,
        )
        return await self.channel.ask_json(request, read_scenarios)


def read_scenarios(answer: Any) -> list[PlannedScenario]:
    """The well-formed scenarios of an answer; the others are left out, and asked for again by the caller.

    Raises ValueError, which says what is wrong, when none is well-formed.
    """
    read, complaints = [], []
    for item in scenario_list(answer):
        try:
            if not isinstance(item, dict):
                raise ConfigurationError(f"a scenario is an object with task and difficulty, not {item!r}")
            read.append(PlannedScenario.from_dict(item))
        except ConfigurationError as error:
            complaints.append(str(error))
    if not read:
        raise ValueError("; ".join(complaints[:3]) or "the list of scenarios is empty")
    return read
