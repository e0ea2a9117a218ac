"""Scenarios for the tools of an MCP server, written by a model.

The model is asked in portions, and asked again for what is missing or malformed.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from art.errors import ConfigurationError, LlmAnswerError
from art_extensions.scenarios.generator import DEFAULT_GENERATOR
from art_extensions.scenarios.mcp.types import (
    DIFFICULTIES,
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPDocument,
    MCPTool,
    PlannedScenario,
    document_of,
    scenario_list,
)

if TYPE_CHECKING:
    from art.rewards.llm.channel import Channel
    from art.rewards.llm.request import Llm


SCHEMA_NAME = "scenario_list"
NO_RESOURCES = "No resources available"

REQUIREMENTS = """\
1. Each task can be accomplished with the tools and resources above, and with nothing else.
2. They vary in complexity: some take one or two tool calls, others many that build on each other.
3. They cover different use cases, and speak as a user would: they never name a tool.
4. They are realistic and specific: what somebody who has these tools at hand would really ask for.
5. difficulty says how hard the task is: 1 (a call or two), 2, 3, 4 or 5 (many calls, thought between them).
6. The task should always include generating a summary of the work done and a thorough analysis and report \
of the results."""

PLAN_REQUIREMENT = """
7. plan lists the first tool calls of a solution, with concrete arguments: only calls whose arguments follow \
from the task alone, at least one. Each will be checked against the tool's parameters, and made where it \
only reads."""

EXAMPLE = {"task": "...", "difficulty": 2}
PLANNED_EXAMPLE = {**EXAMPLE, "plan": [{"tool": "...", "arguments": {}}]}


def generation_prompt(
    tools: Sequence[MCPTool],
    resources: Sequence[MCPDocument],
    count: int,
    *,
    instructions: str | None = None,
    plans: bool = False,
    avoid: Sequence[str] = (),
    neglected: Sequence[str] = (),
) -> str:
    """The one user message.

    plans: also ask for the first tool calls of each solution. avoid: tasks that there are. neglected: names
    of tools that no task has needed so far.
    """
    offered = json.dumps([resource.to_dict() for resource in resources], indent=2, ensure_ascii=False)
    parts = [
        f"You are an expert at creating realistic scenarios for AI agents. Write {count} scenarios for an "
        "agent that has these tools and resources of an MCP server:",
        "Tools:\n" + json.dumps([tool_description(tool) for tool in tools], indent=2, ensure_ascii=False),
        "Resources:\n" + (offered if resources else NO_RESOURCES),
        "Requirements:\n" + REQUIREMENTS + (PLAN_REQUIREMENT if plans else ""),
        f'Respond with JSON of this form, with exactly {count} scenarios:\n{{"scenarios": '
        f"[{json.dumps(PLANNED_EXAMPLE if plans else EXAMPLE)}, ...]}}",
    ]
    if neglected:
        parts.append(
            f"No scenario has needed these tools so far; write some that do: {', '.join(neglected)}."
        )
    if avoid:
        existing = "\n".join(f"- {task}" for task in avoid)
        parts.append(f"These scenarios exist already. Write others, not variants of them:\n{existing}")
    if instructions:
        parts.append(
            f"Pay close attention to the following instructions when generating scenarios:\n{instructions}"
        )
    return "\n\n".join(parts)


def tool_description(tool: MCPTool) -> dict[str, Any]:
    """Returns the description of a tool for the generator."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def answer_schema(count: int, *, plans: bool = False) -> dict[str, Any]:
    """JSON schema of the answer: `count` scenarios, no more and no fewer."""
    properties: dict[str, Any] = {
        "task": {"type": "string"},
        "difficulty": {"type": "integer", "minimum": DIFFICULTIES[0], "maximum": DIFFICULTIES[-1]},
    }
    if plans:
        call = {"tool": {"type": "string"}, "arguments": {"type": "object"}}
        properties["plan"] = {"type": "array", "items": closed_object(call)}
    scenarios = {"type": "array", "items": closed_object(properties), "minItems": count, "maxItems": count}
    return closed_object({"scenarios": scenarios})


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with all of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


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
        """Writes at most `count` new scenarios; fewer if answers were short or malformed.

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
        from art.rewards.llm.request import Request  # here: servers in this package start without it

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


COST_SOURCE = "generator/scenarios"
"""What the cost of these questions is logged under."""
OPENROUTER = "https://openrouter.ai/api/v1"
ASKING_ROUNDS = 5
"""How often a generator is asked for what is still missing."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def generate_scenarios(
    tools: Sequence[MCPTool] | Sequence[Mapping[str, Any]] | None = None,
    resources: Sequence[MCPDocument] | Sequence[Mapping[str, Any]] = (),
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str | Llm | Any = DEFAULT_GENERATOR,
    generator_api_key: str | None = None,
    generator_base_url: str | None = OPENROUTER,
    *,
    server_url: Any = None,
    budget: Any = None,
    cache: Any = None,
) -> GeneratedScenarioCollection:
    """`num_scenarios` tasks for an agent with these tools and resources, as a model imagines them.

    tools, resources (and templates of their addresses): as types or as dicts. server_url: take those of this
    MCP server instead, an address or whatever else `art.mcp.connect` takes. generator_model: a
    name at generator_base_url (the key: generator_api_key or the variable OPENROUTER_API_KEY; none is needed
    on this machine), a callable, or a model of `art.rewards.llm`. budget, cache: of `art.rewards.llm`.

    Shows how difficult they are, and with show_preview the first tasks.

    What is malformed or missing is asked for again. Raises ConfigurationError (a ValueError) for missing
    tools or a missing key, LlmAnswerError (a ValueError) "Expected N scenarios, got M" when the model does
    not get there, other LlmErrors when it cannot be reached, McpError when the server cannot.
    """
    from art.rewards.llm.channel import Channel

    if num_scenarios < 1:
        raise ConfigurationError(f"num_scenarios must be at least 1, not {num_scenarios!r}")
    llm = generator_llm(generator_model, generator_api_key, generator_base_url)
    if server_url is not None:
        if tools or resources:
            raise ConfigurationError("give tools and resources, or server_url, not both")
        tools, resources = await tools_and_documents_of(server_url)
    kept = [MCPTool.from_dict(tool) if isinstance(tool, Mapping) else tool for tool in tools or ()]
    documents = [document_of(one) if isinstance(one, Mapping) else one for one in resources or ()]
    if not kept and not documents:
        raise ConfigurationError("At least one tool or resource must be provided")
    channel = Channel(llm, budget=budget, cache=cache, source=COST_SOURCE)
    writer = ScenarioWriter(
        channel=channel, tools=kept, resources=documents, instructions=custom_instructions
    )
    collection = GeneratedScenarioCollection(await write_exactly(writer, num_scenarios))
    logger.info("%s scenarios of %s, by %s", len(collection), len(kept), llm.name)
    collection.print_difficulty_distribution()
    if show_preview:
        preview_scenarios(collection)
    return collection


def generator_llm(model: Any, api_key: str | None, base_url: str | None) -> Llm:
    """The model that writes. Raises ConfigurationError for a name that needs a key and has none."""
    from art.process import environment
    from art.rewards.llm.endpoint import EndpointLlm
    from art.rewards.llm.names import NO_KEY, resolve_llm
    from art.rewards.llm.params import read_params

    if not isinstance(model, str) or base_url is None:
        return resolve_llm(model, api_key=api_key)
    key = api_key or environment.variable(environment.OPENROUTER_API_KEY)
    if key is None and urlsplit(base_url).hostname not in LOOPBACK:
        raise ConfigurationError("generator_api_key is required or OPENROUTER_API_KEY env var must be set")
    if base_url.rstrip("/") == OPENROUTER:
        return resolve_llm(f"openrouter/{model}", api_key=key)
    # The endpoint is sent the whole name as it is written, "openai/" included.
    return EndpointLlm(
        name=model, model=model, base_url=base_url, api_key=key or NO_KEY, params=read_params(None)
    )


async def tools_and_documents_of(server: Any) -> tuple[list[MCPTool], list[MCPDocument]]:
    """The tools and documents of a server. Raises McpError when it cannot be reached."""
    from art_extensions.scenarios.mcp.session import connect

    async with connect(server) as session:
        return await session.tools(), await session.documents()


async def write_exactly(writer: ScenarioWriter, count: int) -> list[GeneratedScenario]:
    """Exactly `count` different scenarios. Raises LlmAnswerError when rounds of asking do not give them."""
    found: dict[str, PlannedScenario] = {}
    for turn in range(ASKING_ROUNDS):
        salt = f"round {turn}" if turn else ""
        tasks = [scenario.task for scenario in found.values()]
        for scenario in await writer.write(count - len(found), existing=tasks, salt=salt):
            found.setdefault(" ".join(scenario.task.casefold().split()), scenario)
        if len(found) >= count:
            return [GeneratedScenario(one.task, one.difficulty) for one in found.values()]
    raise LlmAnswerError(
        f"Expected {count} scenarios, got {len(found)} from {writer.channel.llm.name} in {ASKING_ROUNDS} "
        "rounds: ask for fewer, for others with custom_instructions, or another model"
    )


def preview_scenarios(
    scenarios: GeneratedScenarioCollection | Iterable[GeneratedScenario | Mapping[str, Any]], n: int = 5
) -> None:
    """Show the first `n` scenarios on the terminal; they may be dicts with `task` and `difficulty`."""
    known = [
        one if isinstance(one, GeneratedScenario) else GeneratedScenario.from_dict(one) for one in scenarios
    ]
    shown = GeneratedScenarioCollection(known).preview(n)
    sys.stdout.write("".join(f"{line}\n" for line in shown))
