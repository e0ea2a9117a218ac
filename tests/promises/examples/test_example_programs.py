"""Every example learns in a short run, goes on where it stopped, and is as its folder promises.

A folder with an `example.toml` is an example; `make bench-examples` runs the same programs to their end.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import pytest
from bench.learning.example_programs import Example, all_examples

EXAMPLES = all_examples()
PLAIN = list({one.program: one for one in reversed(EXAMPLES)}.values())
"""One of each program."""
SHORT = [one for one in EXAMPLES if one.short]
"""A variant that differs little from another has no short run."""
LOOP = re.compile(r"^ +for \w+ in range\(await model\.get_step\(\), options\.steps\):$", re.M)
"""How most programs go on where they stopped."""
GOES_ON = "summarizer"
"""The program that is stopped for all that have this loop. The others are stopped themselves."""
MOST_LINES = 200
LAST_CELL = '# %%\nif __name__ == "__main__":\n    art.run(main(read_options()))\n'
OPTIONS = {"model", "engine", "seed", "steps", "learning_rate", "path"}


def test_the_program_that_is_stopped_for_others_is_like_them() -> None:
    (one,) = [one for one in PLAIN if one.name == GOES_ON]
    assert LOOP.search(one.program.read_text(encoding="utf-8")) and one.short


def test_every_example_has_a_short_run() -> None:
    assert {one.program for one in SHORT} == {one.program for one in EXAMPLES}


@pytest.mark.slow
@pytest.mark.parametrize("example", SHORT, ids=lambda example: example.name)
def test_a_short_run_learns_and_goes_on_where_it_stopped(example: Example, tmp_path: Path) -> None:
    arguments = example.short["arguments"]
    has_the_loop = LOOP.search(example.program.read_text(encoding="utf-8")) is not None
    stopped_itself = example.short.get("resumes", not has_the_loop)
    resumed = example in PLAIN and (stopped_itself or example.name == GOES_ON)
    example = replace(example, metric=example.short.get("metric", example.metric))
    if resumed:
        example.run(tmp_path, seed=0, arguments=[*arguments, "--steps", "1"])
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/models/*/checkpoints/*/adapter*")}
    assert ("0001" in {path.parent.name for path in kept}) == resumed
    evaluated = example.run(tmp_path, seed=0, arguments=arguments)
    first, last = evaluated[0], evaluated[-1]
    gain = last.mean - first.mean
    # One seed on any machine; how much is gained is for `make bench-examples` to say.
    error = math.hypot(first.standard_error, last.standard_error)
    assert gain >= example.short["gain"] - 3 * error, [(one.step, one.mean) for one in evaluated]
    assert first.step == 0 < last.step
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in kept}.items()  # trained once


@pytest.mark.parametrize("example", PLAIN, ids=lambda example: example.name)
def test_a_program_is_short_and_is_a_notebook(example: Example) -> None:
    source = example.program.read_text(encoding="utf-8")
    assert source.count("\n") < MOST_LINES
    assert source.endswith(LAST_CELL)
    assert "# %% [markdown]" in source
    assert ast.get_docstring(ast.parse(source)) is not None or source.startswith("# %%")


@pytest.mark.slow
@pytest.mark.parametrize("example", PLAIN, ids=lambda example: example.name)
def test_a_program_has_the_options_of_all(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(example.folder)
    options = run_path(str(example.program))["read_options"]([])
    assert set(vars(options)) >= OPTIONS


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_readme_has_a_place_for_the_results(example: Example) -> None:
    readme = (example.folder / "README.md").read_text(encoding="utf-8")
    assert readme.count("<!-- results -->") == readme.count("<!-- /results -->") == 1
    assert f"examples/{example.folder.name}/{example.program.name}" in readme
    assert 0 < example.minutes <= 12


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if one.references], ids=lambda example: example.name
)
def test_scripted_players_are_measured(example: Example) -> None:
    scores = example.reference_scores()
    assert scores and all(isinstance(score, float) for score in scores.values())
