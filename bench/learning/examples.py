"""The examples: what is measured of each, by one command that goes on where it stopped.

    make bench-examples                              goes on at the first cell without a record
    python -m bench.learning.examples --task codenames        one of them, with its variants
    python -m bench.learning.examples --tables                only the pages, from bench/records/

Rows of an example: the model as it is (sampled, greedy, pass@8), after each supervised step alone, rejection
sampling with as many rollouts as RL from the same start, the whole program, and the scripted players. What
an example cannot have stands in its `example.toml` under `without`, with the reason. A program is run as a
user runs it (`program_cells.py`); one with an environment as every cell of `methods.py`, its base and
its RL by `skills.py`. The pages: each example's README and chart, docs/get-started/examples.md, README.md.
"""

from __future__ import annotations

import argparse
from functools import partial

from bench.learning import skills
from bench.learning.cell_runner import run_missing
from bench.learning.cells import MODEL, RECORDS, Cell
from bench.learning.example_pages import write_pages
from bench.learning.example_programs import ROLLOUTS, Example, all_examples
from bench.rows import write_rows

SEEDS = 3


def cells_of(example: Example, seeds: int) -> list[Cell]:
    """Returns the base first, then seed by seed, so that a part is of use."""
    if example.cells:
        return environment_cells(example)
    one = partial(Cell, task=example.folder.name, variant=example.variant_of_cells, held_out=0, each=ROLLOUTS)
    learned = [
        one(
            method=method,
            seed=seed,
            settings={"steps": example.stages[method]} if method in example.stages else {},
        )
        for seed in range(seeds)
        for method in example.methods[1:]
        if method not in example.without
    ]
    return [one(method="base"), *learned]


def environment_cells(example: Example) -> list[Cell]:
    """Returns what `bench.learning.skills` does not measure of a program with an environment."""
    task = example.folder.name
    settings = skills.program_settings(task)
    ways = {"rejection": settings}
    if shown := settings.get("demonstrations"):
        taught = {"rows": shown, "steps": 1, "learning_rate": settings["sft_rate"], "batch_size": 4}
        ways = {"sft": taught, **ways}
    return [
        Cell(task=task, method=method, seed=seed, seconds=skills.SECONDS, each=ROLLOUTS, settings=chosen)
        for seed in range(skills.SEEDS[task])
        for method, chosen in ways.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.learning.examples",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    known = sorted({one.folder.name for one in all_examples()})
    parser.add_argument("--task", action="append", choices=known, metavar="NAME", help="only this example")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of a program (default: %(default)s)")
    parser.add_argument("--tables", action="store_true", help="run nothing: write the pages")
    given = parser.parse_args()
    chosen = [one for one in all_examples() if not given.task or one.folder.name in given.task]
    for example in [] if given.tables else chosen:
        if example.cells:
            own = [one for one in skills.cells(MODEL, []) if one.task == example.folder.name]
            run_missing(own, RECORDS / "skills.jsonl")
        model = example.load().read_options(list(example.arguments)).model
        run_missing(cells_of(example, given.seeds), RECORDS / "examples.jsonl", model=model)
    write_rows("examples", write_pages(chosen))


if __name__ == "__main__":
    main()
