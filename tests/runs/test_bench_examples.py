"""The bench of the examples: a program is run as a cell, and its tables are made of the records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench.learning.cell_runner import run_missing
from bench.learning.cells import Cell, Measured, Record, read_records
from bench.learning.example_pages import Shown, docs_table, front_table, readme_table
from bench.learning.example_programs import EXAMPLES, PLAIN, Example, all_examples, ways_of
from bench.learning.examples import cells_of
from bench.learning.methods import point_of
from bench.learning.program_cells import AT_THE_END, best_rollouts

import art

ART_E = Example.find("art_e")
TILES = Example.find("game_2048")
SMALL = (
    *("--demonstrations", "24", "--sft-learning-rate", "3e-3", "--steps", "3", "--processes", "1"),
    *("--groups", "2", "--group-size", "2", "--held-out", "2"),
)


def group(*rewards: float) -> art.TrajectoryGroup:
    said: art.Messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return art.TrajectoryGroup([art.Trajectory(messages_and_choices=said, reward=one) for one in rewards])


def record(method: str, *scores: float, variant: str = "", seed: int = 0, each: int = 8) -> Record:
    cell = Cell(task="art_e", method=method, variant=variant, seed=seed, each=each)
    step, tokens = (0, 0) if method == "base" else (30, 1500)
    point = point_of([[one] for one in scores], seconds=60.0, tokens=tokens, step=step)
    more = {"greedy": 0.5, "pass_at_8": 1.0} if each == 8 else {}
    found = Measured(points=[point], **more)  # type: ignore[arg-type]
    return Record(cell=cell, model="m", measured=found, when="2026-11-28", machine="2 cores", revision="abc")


@pytest.mark.slow  # trains a nano model
def test_a_program_is_measured_after_its_supervised_step_and_with_rejection_for_rl(tmp_path: Path) -> None:
    cells = [
        Cell(task="game_2048", method="sft", held_out=0, each=8, settings={"steps": 1, "options": SMALL}),
        Cell(task="game_2048", method="rejection", held_out=0, each=8, settings={"options": SMALL}),
    ]
    path = tmp_path / "examples.jsonl"
    run_missing(cells, path, model="art/nano-words", tell=len)
    sft, rejection = (one.measured for one in read_records(path))
    assert [one.step for one in sft.points] == [0, 1] and sft.last.tokens == 0 == len(sft.rewards)
    assert [one.step for one in rejection.points] == [0, 1, 3]
    assert len(rejection.rewards) == 2 and rejection.last.tokens > 0, "as many steps of rollouts as RL has"
    for found in (sft, rejection):
        assert len(found.last.scores) == 2 and 0 <= found.last.low <= found.last.mean <= found.last.high
        assert found.greedy is not None and found.pass_at_8 is not None
        assert found.last.mean <= found.pass_at_8
    shown = Shown(example=TILES, ways=ways_of(TILES, read_records(path)), players={"random moves": 38.5})
    table = readme_table(shown)
    assert "| SFT alone | " in table and f"| 1 | {rejection.last.tokens:,} |" in table
    assert "| random moves | 38.50 |" in table and "Not measured yet: base, RL" in table


def test_rejection_keeps_the_best_of_each_scenario_that_is_no_worse_than_all_rollouts_are() -> None:
    kept = best_rollouts([group(0.0, 1.0), group(-1.0, -1.0), group(1.0, 1.0), group(0.0, 0.1)])
    assert [one.reward for one in kept] == [1.0, 1.0]
    assert best_rollouts([group(0.0, 0.0), group(0.0)]) == [] == best_rollouts([])


def test_records_with_eight_rollouts_replace_those_without_and_variants_stand_apart() -> None:
    old = [record("grpo", 0.1, seed=seed, each=1) for seed in range(5)]
    base, of_variant = record("base", 0.1, 0.2, each=1), record("grpo", 0.9, variant="ruler")
    assert ways_of(ART_E, [*old, base, of_variant]) == {"base": [base], "grpo": old}
    again, newer = record("grpo", 0.2), record("grpo", 0.3)
    assert ways_of(ART_E, [*old, base, again, newer]) == {"base": [base], "grpo": [newer]}


def test_the_tables_have_greedy_decoding_and_what_needs_no_rewards_beside_rl() -> None:
    ways = {name: [record(name, 0.25, 0.75)] for name in ("base", "sft", "rejection")}
    ways["grpo"] = [record("grpo", 1.0, 1.0, seed=0), record("grpo", 0.9, 0.9, seed=1)]
    shown = Shown(example=ART_E, ways=ways, players={"any name": 0.1, "perfect player": 1.0})
    page = readme_table(shown)
    assert "| base | 0.50 (0.00 to 1.00) | 0.50 | 1.00 | 1 |  |" in page
    assert "| RL | 0.95 (0.32 to 1.00) | 0.50 | 1.00 | 2 | 1,500 |" in page
    assert "Not measured yet" not in page
    assert "| 0.50 (0.00 to 1.00) | 0.95 (0.32 to 1.00) | 0.50 | any name 0.10 |" in docs_table([shown])
    assert "| 0.50 | 0.50 | 1.00 | 0.50 | 0.50 | 0.95 | any name 0.10 |" in front_table([ART_E], [shown])


def test_no_score_stands_under_a_heading_that_is_not_what_was_done() -> None:
    ways = {name: [record(name, 0.25, 0.75)] for name in ("base", "sft", "replies", "rejection", "grpo")}
    for example in all_examples():
        plain = replace(example, variant=PLAIN)
        of_page = docs_table([Shown(example=example, ways=ways, players={})])
        of_front = front_table([plain], [Shown(example=plain, ways=ways, players={})])
        for table, score in ((of_page, "0.50 (0.00 to 1.00)"), (of_front, "0.50")):
            headings, _, line = ([cell.strip() for cell in row.split("|")] for row in table.splitlines())
            cells = dict(zip(headings, line, strict=True))
            last = score if example.last == "RL" else f"{example.last}: {score}"
            assert cells["after RL, or the stage that is named"] == last
            tuned = f"SFT, then a teacher's replies: {score}" if "replies" in example.stages else score
            assert cells["after fine-tuning"] == (tuned if example.stages else "")
            assert cells["rejection sampling"] == score
    assert Example.find("text_to_sql").last == "on-policy distillation"


def test_what_a_table_lacks_is_said_with_its_reason() -> None:
    example = Example.find("production_feedback")
    ways = {name: [replace(record(name, 0.5), model="m")] for name in ("base", "sft", "grpo")}
    page = readme_table(Shown(example=example, ways=ways, players={}))
    assert all(f"Not there: `{name}`. {reason}" in page for name, reason in example.without.items())
    assert "no supervised step" in readme_table(
        Shown(example=Example.find("mcp_rl"), ways={"grpo": ways["grpo"]}, players={})
    )
    lacking = {"rejection", "greedy", "pass@8", AT_THE_END}
    for one in all_examples():
        assert one.without.keys() <= lacking and all(len(why) > 20 for why in one.without.values()), one.name


def test_each_example_has_cells_for_all_that_its_table_shows() -> None:
    for example in (one for one in all_examples() if not one.cells):
        cells = cells_of(example, 2)
        wanted = [name for name in example.methods if name not in example.without]
        assert {one.method for one in cells} == set(wanted) and cells[0].method == "base"
        assert len(cells) == 1 + 2 * (len(wanted) - 1) == len({one.key("m") for one in cells})
    assert Example.find("tic_tac_toe", "self_play").program == EXAMPLES / "tic_tac_toe" / "self_play.py"
