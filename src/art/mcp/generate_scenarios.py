"""Scenarios for the tools of an MCP server, written by a model."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from art.errors import ConfigurationError, LlmAnswerError
from art.mcp.scenarios.planned import PlannedScenario
from art.mcp.scenarios.writer import ScenarioWriter
from art.mcp.types import (
    GeneratedScenario,
    GeneratedScenarioCollection,
    MCPDocument,
    MCPTool,
    document_of,
)
from art.runs.generator import GENERATOR

if TYPE_CHECKING:
    from art.llm.request import Llm

logger = logging.getLogger(__name__)

SOURCE = "generator/scenarios"
"""What the cost of these questions is logged under."""
OPENROUTER = "https://openrouter.ai/api/v1"
ROUNDS = 5
"""How often a generator is asked for what is still missing."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


async def generate_scenarios(
    tools: Sequence[MCPTool] | Sequence[Mapping[str, Any]] | None = None,
    resources: Sequence[MCPDocument] | Sequence[Mapping[str, Any]] = (),
    num_scenarios: int = 24,
    show_preview: bool = True,
    custom_instructions: str | None = None,
    generator_model: str | Llm | Any = GENERATOR,
    generator_api_key: str | None = None,
    generator_base_url: str | None = OPENROUTER,
    *,
    server_url: Any = None,
    budget: Any = None,
    cache: Any = None,
) -> GeneratedScenarioCollection:
    """`num_scenarios` tasks for an agent with these tools and resources, as a model imagines them.

    tools, resources (and templates of their addresses): as types or as dicts. server_url: take those of this
    MCP server instead, an address or whatever else `art.mcp.connect` takes. generator_model: a name at
    generator_base_url (the key: generator_api_key or the variable OPENROUTER_API_KEY; none is needed on this
    machine), a callable, or a model of `art.llm`. budget, cache: of `art.llm`.

    Shows how difficult they are, and with show_preview the first tasks.

    What is malformed or missing is asked for again. Raises ConfigurationError (a ValueError) for missing
    tools or a missing key, LlmAnswerError (a ValueError) "Expected N scenarios, got M" when the model does
    not get there, other LlmErrors when it cannot be reached, McpError when the server cannot.
    """
    from art.llm.channel import Channel

    if num_scenarios < 1:
        raise ConfigurationError(f"num_scenarios must be at least 1, not {num_scenarios!r}")
    llm = generator(generator_model, generator_api_key, generator_base_url)
    if server_url is not None:
        if tools or resources:
            raise ConfigurationError("give tools and resources, or server_url, not both")
        tools, resources = await offered_by(server_url)
    kept = [MCPTool.from_dict(tool) if isinstance(tool, Mapping) else tool for tool in tools or ()]
    documents = [document_of(one) if isinstance(one, Mapping) else one for one in resources or ()]
    if not kept and not documents:
        raise ConfigurationError("At least one tool or resource must be provided")
    channel = Channel(llm, budget=budget, cache=cache, source=SOURCE)
    writer = ScenarioWriter(
        channel=channel, tools=kept, resources=documents, instructions=custom_instructions
    )
    collection = GeneratedScenarioCollection(await written_in_full(writer, num_scenarios))
    logger.info("%s scenarios of %s, by %s", len(collection), len(kept), llm.name)
    collection.print_difficulty_distribution()
    if show_preview:
        preview_scenarios(collection)
    return collection


def generator(model: Any, api_key: str | None, base_url: str | None) -> Llm:
    """The model that writes. Raises ConfigurationError for a name that needs a key and has none."""
    from art import environment
    from art.llm.endpoint import EndpointLlm
    from art.llm.names import NO_KEY, resolve_llm
    from art.llm.params import read_params

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


async def offered_by(server: Any) -> tuple[list[MCPTool], list[MCPDocument]]:
    """The tools and documents of a server. Raises McpError when it cannot be reached."""
    from art.mcp.sessions.session import connect

    async with connect(server) as session:
        return await session.tools(), await session.documents()


async def written_in_full(writer: ScenarioWriter, count: int) -> list[GeneratedScenario]:
    """Exactly `count` different scenarios. Raises LlmAnswerError when rounds of asking do not give them."""
    found: dict[str, PlannedScenario] = {}
    for turn in range(ROUNDS):
        salt = f"round {turn}" if turn else ""
        tasks = [scenario.task for scenario in found.values()]
        for scenario in await writer.write(count - len(found), existing=tasks, salt=salt):
            found.setdefault(" ".join(scenario.task.casefold().split()), scenario)
        if len(found) >= count:
            return [GeneratedScenario(one.task, one.difficulty) for one in found.values()]
    raise LlmAnswerError(
        f"Expected {count} scenarios, got {len(found)} from {writer.channel.llm.name} in {ROUNDS} rounds: "
        "ask for fewer, for others with custom_instructions, or another model"
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
