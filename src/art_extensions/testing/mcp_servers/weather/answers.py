"""What a generator would write for the weather server: `python -m
art_extensions.testing.mcp_servers.weather.answers > FILE`.

The file is what `python -m art_extensions.testing --answers FILE` answers with: tasks, and a plan for each.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from art_extensions.testing.mcp_servers.weather import shipped
from art_extensions.testing.mcp_servers.weather.tasks import Question, scenarios

COUNT = 320
"""The number of tasks that are asked for when 256 are wanted."""


def written_tasks(count: int = COUNT, *, seed: int = 0) -> list[dict[str, Any]]:
    """Tasks with the calls that solve them, in the shape of `PlannedScenario.from_dict`.

    Raises ConfigurationError when there are fewer.
    """
    made = []
    for one in scenarios(train=count, test=0, seed=seed).train:
        question = Question.parse(one.task)
        calls = question.plan(shipped()) if question is not None else ()
        made.append({**one.to_dict(), "plan": [{"tool": tool, "arguments": given} for tool, given in calls]})
    return made


def main() -> None:
    """Writes the answers to standard output."""
    parser = argparse.ArgumentParser(prog="python -m art.mcp.servers.weather.answers", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    json.dump({"scenarios": written_tasks(options.count, seed=options.seed)}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
