"""What a model is told that writes scenarios for a server's tools, and the form of its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from art.mcp.types import DIFFICULTIES, MCPDocument, MCPTool

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
        "Tools:\n" + json.dumps([described(tool) for tool in tools], indent=2, ensure_ascii=False),
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
        told = "\n".join(f"- {task}" for task in avoid)
        parts.append(f"These scenarios exist already. Write others, not variants of them:\n{told}")
    if instructions:
        parts.append(
            f"Pay close attention to the following instructions when generating scenarios:\n{instructions}"
        )
    return "\n\n".join(parts)


def described(tool: MCPTool) -> dict[str, Any]:
    """What the generator is shown of a tool."""
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def answer_schema(count: int, *, plans: bool = False) -> dict[str, Any]:
    """JSON schema of the answer: `count` scenarios, no more and no fewer."""
    properties: dict[str, Any] = {
        "task": {"type": "string"},
        "difficulty": {"type": "integer", "minimum": DIFFICULTIES[0], "maximum": DIFFICULTIES[-1]},
    }
    if plans:
        call = {"tool": {"type": "string"}, "arguments": {"type": "object"}}
        properties["plan"] = {"type": "array", "items": closed(call)}
    scenarios = {"type": "array", "items": closed(properties), "minItems": count, "maxItems": count}
    return closed({"scenarios": scenarios})


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with all of these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
