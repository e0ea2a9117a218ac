"""`art eval`: one checkpoint, a task or a function of a user's, means with standard errors."""

from __future__ import annotations

import json
import math
import shutil
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trained_project import KEY, art_command, train
from typer.testing import CliRunner, Result

import art
from art.cli import app
from art.errors import CheckpointMissingError
from art.runs.comparison import Estimate
from art.runs.quickstart import Evaluation
from art.tracking.folders import find_model
from art.utils.trajectory_logging import read_trajectory_groups
from art_extensions.evaluation.checkpoint_scores import (
    CheckpointScore,
    RolloutSource,
    paired_difference,
    pass_at_k,
    read_scenarios,
    score_of,
    stored_model,
)

ROLLOUT = """
import art

async def rollout(model, scenario, temperature):
    if scenario["question"] == "fail":
        raise ValueError("no such game")
    asked = {"role": "user", "content": scenario["question"]}
    trajectory = art.Trajectory(messages_and_choices=[asked])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=[asked], temperature=temperature, max_tokens=8
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    if scenario["question"] == "unscored":
        trajectory.reward = art.Unscored("the judge is down")
        return trajectory
    trajectory.reward = scenario["worth"]
    trajectory.metrics["greedy"] = temperature == 0
    if scenario["worth"] > 0.5:
        trajectory.metrics["rare"] = 7
    return trajectory
"""
SCENARIOS = [
    {"question": "yes?", "worth": 0.25},
    {"question": "no?", "worth": 0.75},
    {"question": "fail"},
    {"question": "unscored"},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "art"
    train(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, which the commands run in."""
    (tmp_path / "play_rollout.py").write_text(ROLLOUT)
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SCENARIOS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def history(data_dir: Path) -> list[dict[str, Any]]:
    lines = (data_dir / "games/models/player/history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_a_step_is_evaluated_on_a_task_sampled_and_greedy_and_is_in_the_history(
    trained: Path, tmp_path: Path
) -> None:
    data_dir = shutil.copytree(trained, tmp_path / "art")
    folder = data_dir / "games/models/player"
    described = {**json.loads((folder / "model.json").read_text()), "config": {"mine": [1, {"a": None}]}}
    (folder / "model.json").write_text(json.dumps(described))
    arguments = (
        "eval",
        f"{KEY}@0",
        "--task",
        "yes-no-maybe",
        "--eval-rollouts",
        "12",
        "--sampling",
        "both",
        "--json",
    )
    done = art_command(*arguments, "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["model"], told["step"], told["of"]) == (KEY, 0, "yes-no-maybe")

    rollouts = [
        one for group in read_trajectory_groups(folder / "trajectories/val/0000.parquet") for one in group
    ]
    assert len(rollouts) == told["sampled"]["rollouts"] == told["greedy"]["rollouts"] == 12
    assert {one.messages_and_choices[-1].step for one in rollouts} == {
        0
    }  # sampled from it, not from the newest
    rewards = [float(one.reward) for one in rollouts]
    assert told["sampled"]["means"]["reward"] == pytest.approx(fmean(rewards))
    spread = math.sqrt(fmean([(one - fmean(rewards)) ** 2 for one in rewards]) / 12)
    assert told["sampled"]["standard_errors"]["reward"] == pytest.approx(spread)

    rows = {key: value for row in history(data_dir) if row["step"] == 0 for key, value in row.items()}
    assert rows["val/reward"] == pytest.approx(fmean(rewards))
    assert rows["val/greedy/reward"] == pytest.approx(told["greedy"]["means"]["reward"])
    again = json.loads((folder / "model.json").read_text())
    assert (again["config"], again["base_model"]) == ({"mine": [1, {"a": None}]}, "art/nano-games")


@pytest.mark.slow
def test_a_function_of_ones_own_is_evaluated_on_a_file_of_scenarios(trained: Path, project: Path) -> None:
    data_dir = shutil.copytree(trained, project / ".art")
    arguments = (
        "eval",
        KEY,
        "--rollout",
        "play_rollout:rollout",
        "--scenarios",
        "held_out.jsonl",
        "--eval-rollouts",
        "8",
    )
    done = art_command(*arguments, "--sampling", "both")
    assert done.returncode == 0, done.stderr
    table = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert table[f"{KEY}@2"] == ["on", "play_rollout:rollout"]
    assert table["reward"] == ["0.5000", "±", "0.1250"] * 2
    assert table["greedy"] == ["0.0000", "±", "0.0000", "1.0000", "±", "0.0000"]
    assert table["rare"] == ["7.0000", "±", "0.0000"] * 2  # of the rollouts that have it
    assert (table["rollouts"], table["failed"], table["unscored"]) == (["4"] * 2, ["2"] * 2, ["2"] * 2)
    assert (
        table["95"] == ["%", "interval", "by", "scenario", *(["0.000", "to", "1.000"] * 2)]
        and table["pass@2"] == ["0.0000"] * 2
    )
    groups = read_trajectory_groups(data_dir / "games/models/player/trajectories/val/0002.parquet")
    assert [group.metadata["scenario_index"] for group in groups] == [0, 1, 2, 3]
    assert [len(group) + len(group.exceptions) for group in groups] == [2, 2, 2, 2]

    # A single rollout (asked for in the review of trl#5640): a number, and nothing about its spread.
    one = art_command(*arguments[:-1], "1", "--sampling", "both")
    assert one.returncode == 0, one.stderr
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in one.stdout.splitlines() if line.strip()}
    assert lines["reward"] == " ".join(["0.2500 (one rollout: no error)"] * 2)
    assert lines["95"] == " ".join(["% interval by scenario", *["none: a single value"] * 2])
    assert lines["rollouts"] == "1 1" and lines["pass@1"] == "0.0000 0.0000" and "nan" not in one.stdout


@pytest.mark.slow
def test_two_steps_are_compared_on_the_same_scenarios_and_seeds(trained: Path, tmp_path: Path) -> None:
    data_dir = shutil.copytree(trained, tmp_path / "art")
    of = (
        "eval",
        f"{KEY}@2",
        "--task",
        "yes-no-maybe",
        "--eval-rollouts",
        "24",
        "--eval-group-size",
        "4",
        "--success",
        "0.7",
    )
    done = art_command(*of, "--against", "0", "--json", "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["step"], told["against"]["step"]) == (2, 0)
    folder = data_dir / "games/models/player/trajectories/val"
    groups = {step: read_trajectory_groups(folder / f"{step:04d}.parquet") for step in (0, 2)}
    assert [len(group) for group in groups[0]] == [len(group) for group in groups[2]] == [4] * 6
    means = {step: [fmean(float(one.reward) for one in group) for group in groups[step]] for step in groups}
    gains = [new - old for old, new in zip(means[0], means[2], strict=True)]
    difference = told["difference"]["sampled"]
    assert difference["mean"] == pytest.approx(fmean(gains), abs=1e-3) and difference["count"] == 6
    assert difference["low"] <= difference["mean"] <= difference["high"]
    good = [sum(float(one.reward) >= 0.7 for one in group) for group in groups[2]]
    assert told["sampled"]["pass_at"]["1"] == pytest.approx(fmean(one / 4 for one in good))
    assert told["sampled"]["pass_at"]["4"] == pytest.approx(fmean(one > 0 for one in good))
    assert art_command(*of, "--against", "2", "--data-dir", str(data_dir)).returncode == 2


OWN = """
from art.environments.adapters.environment import Scenario
from play_rollout import rollout as play

class Yes:
    name = "yes"
    closed = 0

    def __init__(self, *worths):
        self.worths = worths

    def scenarios(self, split):
        return [Scenario(f"{split}/{worth}", {"question": "yes?", "worth": worth}) for worth in self.worths]

    async def rollout(self, model, scenario, *, seed=None, temperature=1.0, max_tokens=None):
        assert not self.closed
        return await play(model, scenario.data, temperature)

    async def close(self):
        self.closed += 1
        print("closed", self.closed)

environment = Yes(0.0, 1.0)

def of_worth(*, worth):
    return Yes(worth)
"""


@pytest.mark.slow
def test_an_environment_is_evaluated_by_its_name_and_closed_once(trained: Path, project: Path) -> None:
    shutil.copytree(trained, project / ".art")
    (project / "own.py").write_text(OWN)
    of = ("eval", KEY, "--environment", "python:own:environment", "--eval-group-size", "2", "--against", "0")
    done = art_command(*of)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("closed") == 1 and "closed 1" in done.stdout
    assert done.stdout.count("rollouts") == 2 and "+0.00 (95 % interval +0.00 to +0.00)" in done.stdout
    made = art_command(
        *("eval", KEY, "--environment", "python:own:of_worth", "--environment-option", "worth=0.75", "--json")
    )
    assert json.loads(made.stdout.removeprefix("closed 1\n"))["sampled"]["means"]["reward"] == 0.75, (
        made.stderr
    )
    nothing = art_command("eval", KEY, "--task", "mail", "--environment-option", "worth=1")
    assert nothing.returncode == 2 and "--environment-option is for --environment NAME" in nothing.stderr
    unknown = art_command("eval", KEY, "--environment", "gymnasiun:x")
    assert unknown.returncode == 2 and "gymnasium:" in unknown.stderr


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=7), k=st.integers(1, 7))
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_success(outcomes: list[bool], k: int) -> None:
    if k > len(outcomes):
        with pytest.raises(ValueError, match="k is 1 to the number"):
            pass_at_k(sum(outcomes), len(outcomes), k)
        return
    chosen = list(combinations(outcomes, k))
    assert pass_at_k(sum(outcomes), len(outcomes), k) == pytest.approx(fmean(map(any, chosen)))


def test_the_interval_is_over_scenarios_and_pairs_need_both_sides() -> None:
    def score(*scenarios: list[float | None]) -> CheckpointScore:
        return score_of(
            [
                art.TrajectoryGroup(
                    art.Trajectory(reward=art.Unscored("x") if one is None else one) for one in rewards
                )
                for rewards in scenarios
            ]
        )

    before, after = score([0.0, 1.0], [0.0, 0.0], [None, None]), score([1.0, 1.0], [0.0, 1.0], [1.0, 1.0])
    assert before.scenarios == (0.5, 0.0, None) and before.pass_at == {1: 0.25, 2: 0.5}
    assert after.reward == Estimate.from_scores([1.0, 0.5, 1.0]) and after.reward.count == 3
    assert paired_difference(before, after) == Estimate.from_values([0.5, 0.5])
    uneven = score([1.0, 0.0, 0.0], [1.0])
    assert uneven.pass_at == {1: pytest.approx((1 / 3 + 1) / 2)}, "of the most that all have"


def run(data_dir: Path, *arguments: str) -> Result:
    (data_dir / "games/models/player/checkpoints/0001").mkdir(parents=True, exist_ok=True)
    return CliRunner().invoke(app, ["eval", KEY, "--data-dir", str(data_dir), *arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --task NAME, or --environment NAME, or --rollout"),
        (["--task", "mail", "--rollout", "a:b"], "give either --task NAME, or --environment"),
        (["--task", "mail", "--environment", "mail"], "give either --task NAME, or --environment"),
        (["--environment", "chess"], "unknown environment 'chess'"),
        (["--task", "chess"], "unknown task 'chess'"),
        (["--task", "mail", "--sampling", "best"], "--sampling 'best': choose one of sampled, greedy, both"),
        (["--task", "mail", "--split", "a/b"], "split 'a/b' cannot name a folder"),
        (["--rollout", "nowhere:f", "--scenarios", "held_out.jsonl"], "No module named 'nowhere'"),
        (["--rollout", "play_rollout", "--scenarios", "held_out.jsonl"], "write module:name"),
        (["--rollout", "play_rollout:game", "--scenarios", "held_out.jsonl"], "has no attribute 'game'"),
        (["--rollout", "play_rollout:rollout", "--scenarios", "none.json"], "cannot be read"),
        (["--rollout", "play_rollout:ROWS", "--scenarios", "held_out.jsonl"], "is list, not a function"),
        (
            ["--rollout", "play_rollout:plain", "--scenarios", "held_out.jsonl", "--sampling", "greedy"],
            "takes no `temperature`",
        ),
    ],
)
def test_wrong_options_are_told_before_a_server_is_started(
    project: Path, arguments: list[str], message: str
) -> None:
    (project / "play_rollout.py").write_text(f"{ROLLOUT}\nROWS = []\nasync def plain(model, scenario): ...\n")
    done = run(project / "data", *arguments)
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert not (project / "data" / "server").exists()


def test_scenarios_are_lines_a_list_or_a_name_in_a_module(project: Path) -> None:
    (project / "list.json").write_text('["a", {"b": 1}]')
    (project / "play_scenarios.py").write_text("TEST = ('x', 'y')\ndef made():\n    return [1, 2]\n")
    assert read_scenarios("held_out.jsonl") == SCENARIOS
    assert read_scenarios("list.json") == ["a", {"b": 1}]
    assert read_scenarios("play_scenarios:TEST") == ["x", "y"]
    assert read_scenarios("play_scenarios:made") == [1, 2]
    source = RolloutSource.of_function("play_rollout:rollout", "list.json")
    assert (source.count, source.takes, source.scenario(1)) == (2, {"temperature"}, {"b": 1})


def test_a_metric_that_some_rollouts_lack_is_the_mean_of_the_others() -> None:
    found = Evaluation.from_rows([{"reward": 1.0}, {"reward": 0.0, "x": 3.0}, {"reward": 0.5, "x": 5.0}])
    assert found.means == {"reward": 0.5, "x": 4.0} and found.rollouts == 3
    assert found.errors["x"] == pytest.approx(1 / math.sqrt(2))


def test_a_group_of_one_reports_its_mean_and_that_no_interval_can_be_given() -> None:
    score = score_of([art.TrajectoryGroup([art.Trajectory(reward=0.75, metrics={"right": 1.0})])])
    assert score.evaluation.means == {"reward": 0.75, "right": 1.0} and score.evaluation.errors == {}
    assert score.reward == Estimate(mean=0.75, low=None, high=None, count=1) and score.pass_at == {1: 0.0}
    told = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert told["standard_errors"] == {} and told["reward_by_scenario"]["low"] is None
    several = score_of([art.TrajectoryGroup([art.Trajectory(reward=reward)]) for reward in (0.0, 0.5, 1.0)])
    assert several.evaluation.means == {"reward": 0.5} and several.evaluation.errors["reward"] > 0
    assert several.reward is not None and several.reward.low is not None, (
        "three groups of one have an interval"
    )


async def test_a_group_of_one_is_a_row_of_the_history(tmp_path: Path) -> None:
    model = art.Model(name="m", project="p", base_path=str(tmp_path))
    await model.log([art.TrajectoryGroup([art.Trajectory(reward=0.75)])], split="val", step=1)
    (line,) = (tmp_path / "p/models/m/history.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["val/reward"] == 0.75 and row["val/reward_std_dev"] == 0.0 and "val/reward_sem" not in row
    assert row["data/step_num_trajectories"] == 1


def test_no_reward_at_all_names_the_first_error() -> None:
    group = art.TrajectoryGroup([art.Trajectory(reward=art.Unscored("x")), ValueError("no such game")])
    with pytest.raises(art.errors.RolloutsFailedError, match=r"none of 2 rollouts .* no such game"):
        score_of([group])


def test_a_model_is_served_as_its_program_registered_it(tmp_path: Path) -> None:
    folder = tmp_path / "games/models/player"
    folder.mkdir(parents=True)
    named = find_model(KEY, tmp_path)
    with pytest.raises(CheckpointMissingError, match=r"neither model\.json nor registration\.json"):
        stored_model(named, tmp_path)
    registration = {
        "project": "games",
        "name": "player",
        "base_model": "org/base#4bit",
        "lora": {"r": 8},
        "max_context": 900,
        "chat_template": "T",
        "special_tokens_in_text": "text",
    }
    (folder / "registration.json").write_text(json.dumps(registration))
    from art.client.requests.registration import ServerConfig, register_request

    request = register_request(stored_model(named, tmp_path), ServerConfig())
    assert (request.base_model, request.max_context, request.chat_template) == ("org/base#4bit", 900, "T")
    config = {"init_args": {"max_seq_length": 700}}
    described = {"name": "player", "project": "games", "base_model": "org/own", "_internal_config": config}
    (folder / "model.json").write_text(json.dumps({**described, "trainable": True}))
    request = register_request(stored_model(named, tmp_path), ServerConfig())
    assert (request.base_model, request.max_context, request.chat_template) == ("org/own", 700, None)
