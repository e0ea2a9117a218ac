"""What the model of each task can do before the first gradient and after the last: the tables of the
examples.

    make bench-skills                              goes on at the first cell without a record
    python -m bench.learning.skills --task guess_number     one of the tasks

Sampled eight times at temperature 1, greedy, pass@8, and the best of three prompts. Then the program's own
settings, for at most twelve minutes: three seeds of two tasks, one of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.learning.cell_tables import run_bench, skill_table
from bench.learning.cells import Cell, Record
from bench.learning.example_pages import write_pages
from bench.learning.example_programs import all_examples
from bench.learning.example_tasks import ExampleTask

SEEDS = {"extract_json": 3, "guess_number": 3, "shopping_agent": 1, "reasoning_puzzles": 1}
SECONDS = 720.0


def program_settings(task: str) -> dict[str, Any]:
    """Returns the defaults of the example's program."""
    options = vars(ExampleTask.find(task).program.read_options([]))
    names = ("steps", "groups", "group_size", "learning_rate", "demonstrations", "sft_rate")
    return {name: options[name] for name in names if name in options}


def cells(_: str, __: Sequence[Record]) -> list[Cell]:
    """Returns those without a gradient first."""
    untrained = [Cell(task=task, method=method, each=8) for task in SEEDS for method in ("base", "prompt")]
    return untrained + [
        Cell(
            task=task,
            method="grpo",
            seed=seed,
            seconds=SECONDS,
            each=8,
            settings=program_settings(task),
        )
        for task, seeds in SEEDS.items()
        for seed in range(seeds)
    ]


def main() -> None:
    run_bench("skills", cells, skill_table, about=__doc__)
    write_pages([one for one in all_examples() if one.cells])


if __name__ == "__main__":
    main()
