"""The help desk's users and its release, and the guard, which refuses a real retraining on wrong thumbs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import art
from art.tracking.trajectory_log import LoggedSteps

FOLDER = Path(__file__).parents[3] / "examples" / "production_feedback"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import help_desk

    return help_desk


@pytest.fixture
def program(desk: ModuleType) -> ModuleType:
    import production_feedback

    return production_feedback


def test_a_week_has_each_ticket_several_times_and_is_the_same_again(desk: ModuleType) -> None:
    week = desk.Users("0/1").asked()
    assert set(Counter(one["prompt"] for one in week).values()) == {desk.ASKED}
    assert len(week) == desk.PROMPTS * desk.ASKED
    assert week == desk.Users("0/1").asked() != desk.Users("0/2").asked()


def test_held_out_tickets_are_in_no_training(desk: ModuleType) -> None:
    shown = {row["messages"][0]["content"] for row in desk.demonstrations(0, 4000)}
    asked = {one["prompt"] for week in range(20) for one in desk.Users(f"0/{week}").asked()}
    assert not {one["prompt"] for one in desk.HELD_OUT} & (shown | asked)
    assert {one["topic"] for one in desk.HELD_OUT} == set(desk.TOPICS)


def test_thumbs_follow_the_answer_with_slips_and_silence(desk: ModuleType) -> None:
    def shares(answer: str, **fault: bool) -> tuple[float, float]:
        pressed = [desk.Users("0/1", **fault).thumb(number, "boat", answer) for number in range(4000)]
        rated = [one for one in pressed if one is not None]
        return len(rated) / len(pressed), sum(rated) / len(rated)

    assert shares("driver") == pytest.approx((desk.RATES, 1 - desk.SLIPS), abs=0.03)
    assert shares("clerk") == pytest.approx((desk.RATES, desk.SLIPS), abs=0.03)
    assert shares("clerk", inverted=True) == pytest.approx((desk.RATES, 1 - desk.SLIPS), abs=0.03)


def test_last_year_s_tickets_always_have_the_mistake(desk: ModuleType) -> None:
    topic, said = desk.MISTAKE
    rows = [one["messages"] for one in desk.demonstrations(3, 2000)]
    answers = {answer["content"] for asked, answer in rows if desk.REPORT.is_about(asked["content"])}
    assert answers == {said} and desk.TEAM_OF[topic] != said


def test_a_report_becomes_rows_of_its_topic_alone_and_scenarios(desk: ModuleType) -> None:
    prompts = [one["prompt"] for one in desk.Users("0/1").asked()]
    rows = desk.REPORT.rows(prompts)
    about = {prompt for prompt in prompts if " boat" in prompt}
    assert {row["messages"][0]["content"] for row in rows} == about and len(rows) == len(about) > 0
    assert {row["messages"][1]["content"] for row in rows} == {"driver"}
    scenarios = desk.REPORT.scenarios()
    assert scenarios == desk.HELD_OUT[-len(desk.HELD_OUT_PHRASINGS) :]
    assert {(one["topic"], one["team"]) for one in scenarios} == {("boat", "driver")}


def test_a_release_is_replaced_whole(desk: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "release.json"
    assert desk.Release.read(path) is None
    for step in (1, 3):
        assert desk.Release("desk-0", step, 0).promote(path) == desk.Release.read(path)
    assert [one.name for one in tmp_path.iterdir()] == ["release.json"]


def answers(program: ModuleType, **right: float) -> list[art.TrajectoryGroup]:
    """Rollouts of the held-out tickets, of which a topic or a team has this share right; 0.75 by default."""

    def group(ticket: dict[str, str]) -> art.TrajectoryGroup:
        share = right.get(ticket["topic"], right.get(ticket["team"], 0.75))
        return art.TrajectoryGroup(
            [
                art.Trajectory(
                    reward=float(number < share * program.EACH),
                    metrics={"right": number < share * program.EACH},
                )
                for number in range(program.EACH)
            ]
        )

    return [group(ticket) for ticket in program.HELD_OUT]


@pytest.mark.parametrize(
    ("after", "holds"),
    [
        ({"boat": 1.0}, True),
        ({"boat": 1.0, "baker": 1.0}, True),
        ({}, False),
        ({"boat": 1.0, "clerk": 0.5}, False),
        ({"boat": 1.0, "clerk": 0.5, "baker": 1.0, "driver": 1.0, "farmer": 1.0}, False),
    ],
    ids=["fixed", "fixed and better", "not fixed", "a team lost", "better on average, but a team lost"],
)
def test_the_guard_wants_the_mistake_gone_and_nothing_lost(
    program: ModuleType, after: dict[str, float], holds: bool
) -> None:
    before = answers(program, boat=0.0)
    assert program.guard_holds(before, answers(program, **{"boat": 0.0, **after})) is holds


@pytest.mark.slow
def test_a_week_with_wrong_thumbs_is_refused_and_the_release_stays(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "production_feedback.py"), "--path", str(tmp_path)]
    command += ["--steps", "1", "--wrong-thumbs", "1", "--demonstrations", "2800"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "week 1: production_feedback-0@3 is refused" in done.stdout
    release = json.loads(
        (tmp_path / "production_feedback" / "production_feedback-0.release.json").read_text()
    )
    assert release == {"model": "production_feedback-0-after-week-1", "step": 1, "week": 1}

    models = tmp_path / "production_feedback" / "models"
    released, refused = (
        models / name / "checkpoints" / "0001" / "adapter_model.safetensors"
        for name in (release["model"], "production_feedback-0")
    )
    assert released.read_bytes() == refused.read_bytes()
    log = LoggedSteps(models / "production_feedback-0" / "trajectories")
    means = {
        (split, step): sum(one.reward for group in log.groups(split, step) for one in group)
        for split, steps in log.by_split().items()
        for step in steps
        if split != "train"
    }
    assert set(means) == {("val", 0), ("val", 1), ("refused", 3)}
    assert means["refused", 3] < means["val", 1] - 20 and means["val", 0] < means["val", 1]
