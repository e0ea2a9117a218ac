"""docs/reference/algorithms.md has every row with its numbers, and every refusal's subject."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from art.batch.algorithms import TABLE
from art.batch.algorithms.facts import LOSSES
from art.wire.algorithm import OF_TURNS, AdvantageSpec, MismatchSpec

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "algorithms.md").read_text()


def line_of(name: str) -> str:
    (line,) = [
        line
        for line in PAGE.splitlines()
        if re.match(rf"\| `{re.escape(name)}`[ |]", line) and line.count("|") == 8
    ]
    return line


def test_the_readme_counts_them() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert f"**{len(TABLE)} algorithms by name" in readme


@pytest.mark.parametrize("name", TABLE)
def test_the_row_is_on_the_page(name: str) -> None:
    row, cells = TABLE[name], line_of(name).split("|")
    algorithm = row.algorithm
    assert cells[2].split()[0].strip(",") == algorithm.advantage.kind
    assert cells[3].split()[0].strip(",") == algorithm.loss.name
    assert all(str(value) in cells[3] for value in algorithm.loss.params.values())
    assert ("to the trainer" in cells[4]) == (algorithm.ratio_to == "trainer")
    means = {"token_mean": "tokens", "sequence_mean": "rollouts", "constant": "constant 3000"}
    assert cells[5].strip() == means[algorithm.aggregation.kind]
    assert all(paper in cells[7] for paper in row.papers)
    assert all(need in cells[6] for need in row.needs)
    assert (f"{algorithm.updates.minibatches} minibatches" in cells[6]) == (algorithm.updates.minibatches > 1)


def test_the_page_has_no_row_of_its_own() -> None:
    named = {
        match[1]
        for line in PAGE.splitlines()
        if line.count("|") == 8 and (match := re.match(r"\| `([^`]+)`", line))
    }
    assert named == set(TABLE)


def decisions() -> list[list[str]]:
    """The cells of the table that the page begins with, without its heading."""
    lines = PAGE.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("|"))
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (rows[0], *rows[2:])]


def test_the_page_begins_with_a_decision_whose_every_name_is_in_the_table() -> None:
    heading, *rows = decisions()
    assert heading == ["turns of an episode", "rewards", "rollouts per scenario", "samples", "algorithm"]
    named = [re.findall(r"`([^`]+)`", row[-1]) for row in rows]
    assert all(named) and {name for names in named for name in names} <= set(TABLE)
    assert len({tuple(row[:-1]) for row in rows}) == len(rows), "no two rows decide the same"
    # `OF_TURNS` are names of the table, each one of which some task needs.
    assert set(OF_TURNS) <= {name for names in named for name in names}


def test_samples_of_an_old_policy_have_a_ratio_that_is_bounded() -> None:
    for *_, samples, names in decisions()[1:]:
        for name in re.findall(r"`([^`]+)`", names) if samples == "old" else ():
            assert TABLE[name].algorithm.loss.name in ("ppo", "cispo"), name


@pytest.mark.parametrize(
    "kind",
    [
        *AdvantageSpec.model_fields["kind"].annotation.__args__,  # type: ignore[union-attr]
        *MismatchSpec.model_fields["kind"].annotation.__args__,  # type: ignore[union-attr]
        *LOSSES,
    ],
)
def test_every_kind_has_its_formula(kind: str) -> None:
    assert re.search(rf"^\| [^|]*`{re.escape(kind)}`[^|]*\| [^|]", PAGE, re.M)
