"""The reader of a step's record: annotations, broken lines, fields of later releases."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from art.errors import ConfigurationError
from art.tracking.folders import ModelPaths
from art.tracking.step_record import annotate_rollout, read_rollouts, recorded_steps
from art.wire.rollout_record import JudgeNote, RolloutNotes, RolloutRecord

ONE = RolloutRecord(rollout="r1", group=0, place=0, fate="trained", reward=1.0, tokens=5, samples=["s1"])
TWO = RolloutRecord(rollout="r2", group=0, place=1, fate="zero_advantage", reward=0.0, tokens=3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = ModelPaths(tmp_path).rollouts(12)
    path.parent.mkdir(parents=True)
    path.write_text(ONE.line() + TWO.line())
    return tmp_path


def test_steps_that_have_a_record(folder: Path) -> None:
    (folder / "steps" / "0013").mkdir()
    (folder / "steps" / "notes").mkdir()
    assert recorded_steps(folder) == [12] and recorded_steps(folder / "nothing") == []
    assert read_rollouts(folder, 12) == [ONE, TWO] and read_rollouts(folder, 13) == []


def test_a_later_line_replaces_fields_of_its_rollout(folder: Path) -> None:
    annotate_rollout(folder, 12, "r2", {"judge": {"name": "second", "words": "It invented a date."}})
    annotate_rollout(folder, 12, "r2", {"scenario": "a"})
    annotate_rollout(folder, 12, "r2", {"scenario": "b"})
    one, two = read_rollouts(folder, 12)
    judge = JudgeNote(name="second", words="It invented a date.")
    assert one == ONE and two == TWO.model_copy(update={"judge": judge, "scenario": "b"})


def test_programs_that_annotate_at_once_lose_no_line(folder: Path) -> None:
    def annotate(number: int) -> None:
        annotate_rollout(folder, 12, f"r{number % 2 + 1}", {"reward_parts": {"n": number}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(annotate, range(40)))
    lines = ModelPaths(folder).rollouts(12).read_text().splitlines()
    found = [json.loads(line)["reward_parts"]["n"] for line in lines[2:]]
    assert sorted(found) == list(range(40))


def test_the_piece_of_a_killed_writer_is_left_out_and_written_after(folder: Path) -> None:
    path = ModelPaths(folder).rollouts(12)
    with path.open("a") as file:
        file.write('{"rollout":"r1","scenario":"lo')
    assert read_rollouts(folder, 12) == [ONE, TWO]
    annotate_rollout(folder, 12, "r1", {"scenario": "found"})
    assert read_rollouts(folder, 12)[0].scenario == "found"


@pytest.mark.parametrize(
    ("rollout", "fields", "text"),
    [
        ("r1", {"fate": "trained"}, "cannot set fate"),
        ("r1", {"samples": []}, "cannot set samples"),
        ("r1", {"colour": "red"}, "cannot set colour"),
        ("r9", {"scenario": "a"}, "no record of a rollout 'r9'"),
    ],
)
def test_an_annotation_that_is_none_is_refused(folder: Path, rollout: str, fields: dict, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        annotate_rollout(folder, 12, rollout, fields)
    with pytest.raises(ValidationError):
        annotate_rollout(folder, 12, "r1", {"seconds": "soon"})
    assert read_rollouts(folder, 12) == [ONE, TWO]


def test_hostile_and_later_lines(folder: Path) -> None:
    path = ModelPaths(folder).rollouts(12)
    with path.open("a") as file:
        file.write('[1]\n"x"\n\n{"rollout":"r3","group":0,"place":2,"fate":"later","a_later_field":1}\n')
        file.write('{"rollout":"r4","group":0,"place":3,"fate":"failed","tokens":"many"}\n')
    records = read_rollouts(folder, 12)
    assert [one.rollout for one in records] == ["r1", "r2", "r3"] and records[2].fate == "later"


def test_long_texts_are_cut_and_figures_that_are_none_left_out() -> None:
    parts = {f"part{n}": float(n) for n in range(100)} | {"nan": float("nan"), "inf": float("inf")}
    notes = RolloutNotes(
        scenario="s" * 10_000, reward_parts={"nan": float("nan"), **parts}, judge={"words": "w" * 10_000}
    )
    assert notes.scenario is not None and len(notes.scenario) <= 200 and notes.scenario.endswith("more)")
    assert notes.judge is not None and notes.judge.words is not None and len(notes.judge.words) <= 4_000
    assert len(notes.reward_parts) == 64 and "nan" not in notes.reward_parts


def test_the_reasons_of_turns_are_cut_one_by_one_and_all_together() -> None:
    one = RolloutNotes(turn_reasons={"s1": "w" * 10_000, "s2": "odd \ud800"}).turn_reasons
    assert len(one["s1"]) <= 1_000 and one["s1"].endswith("more)") and one["s2"] == "odd ?"
    many = RolloutNotes(turn_reasons={f"s{n}": "w" * 10_000 for n in range(300)}).turn_reasons
    assert [*many] == [f"s{n}" for n in range(300)]
    assert all(many.values()) and sum(map(len, many.values())) <= 16_000
