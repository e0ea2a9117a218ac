"""Scenarios for the tools of an MCP server, written by a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from art.mcp.types import GeneratedScenario, GeneratedScenarioCollection
from art.unbuilt import Unbuilt

generate_scenarios: Any = Unbuilt(
    "art.mcp.generate_scenarios",
    "write the scenarios with any model and read them with `art.mcp.GeneratedScenarioCollection.from_json`",
)


def preview_scenarios(
    scenarios: GeneratedScenarioCollection | Iterable[GeneratedScenario], n: int = 5
) -> None:
    """Show the first `n` scenarios on the terminal."""
    shown = GeneratedScenarioCollection(list(scenarios)).preview(n)
    sys.stdout.write("".join(f"{line}\n" for line in shown))
