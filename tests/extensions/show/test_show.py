"""`art show`: what was logged, in the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from openai.types.chat.chat_completion import Choice
from typer.testing import CliRunner, Result

import art
from art.cli import app
from art.tracking.trajectory_lines import append_lines
from art.tracking.trajectory_log import append_groups
from waiting import DEADLINE_S

ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J [bold]markup[/bold] [link=x]y[/link]"


def reply(content: str, **message: object) -> Choice:
    said = {"role": "assistant", "content": content, **message}
    return Choice.construct(index=0, finish_reason="length", logprobs=None, message=said)


def group(name: str) -> art.TrajectoryGroup:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "tea"}'}}
    full = art.Trajectory(
        messages_and_choices=[
            {"role": "user", "content": f"question of {name}"},
            reply("", tool_calls=[call], reasoning_content="let me think"),
            {"role": "tool", "tool_call_id": "c", "content": "a drink"},
            reply(f"the answer {ESCAPES}"),
        ],
        reward=0.25,
        metrics={"won": True, "score": 0.123456, "completion_tokens": 2.0},
        metadata={"scenario": name, "show": "X . O\nresult: lost", "plan": {"turns": [1, None]}},
        logs=["a line of the log"],
        additional_histories=[art.History(messages_and_choices=[reply("the sub-agent says")])],
    )
    unscored = art.Trajectory(messages_and_choices=[reply("x")], reward=art.Unscored("judge is down"))
    return art.TrajectoryGroup(
        [full, unscored, TimeoutError("too slow")], metadata={"task": name}, logs=["group's log"]
    )


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    logs = tmp_path / "games" / "models" / "player" / "trajectories"
    for step in (1, 3):
        append_groups(logs / "train" / f"{step:04d}.parquet", [group(f"a{step}"), group(f"b{step}")])
    append_lines(logs / "val" / "0002.jsonl", [group("v2")])
    return tmp_path


def show(data_dir: Path, *arguments: str) -> Result:
    command = ["show", *arguments, "--data-dir", str(data_dir)]
    return CliRunner().invoke(app, command, env={"COLUMNS": "120"})


def test_the_groups_of_the_newest_step(data_dir: Path) -> None:
    done = show(data_dir, "games/player")
    assert done.exit_code == 0
    assert "games/player@3 train" in done.stdout and "task a3" in done.stdout and "task b3" in done.stdout
    row = next(line for line in done.stdout.splitlines() if "task b3" in line).split()
    assert row == ["1", "2", "1", "1", "0.25", "0", "task", "b3"]


def test_a_step_or_a_split_chooses_the_log(data_dir: Path) -> None:
    assert "task a1" in show(data_dir, "games/player@1").stdout
    assert "task v2" in show(data_dir, "player@2").stdout  # only val has it, as JSON lines
    assert "task v2" in show(data_dir, "player", "--split", "val").stdout


def test_the_rollouts_of_a_group(data_dir: Path) -> None:
    out = show(data_dir, "games/player", "1").stdout
    assert "0.25" in out and "length" in out and "unscored: judge is down" in out and "0.1235" in out
    assert "TimeoutError" in out and "too slow" in out and "group's log" in out


def test_a_whole_rollout_with_its_tool_calls_and_logs(data_dir: Path) -> None:
    out = show(data_dir, "games/player", "0", "0").stdout
    for text in (
        "question of a3",
        "assistant (sampled)",
        "let me think",
        'look_up({"word": "tea"})',
        "a drink",
        "the sub-agent says",
        "won True",
        "completion_tokens a reply 2",
        "task view:\nX . O\nresult: lost\n",
        "scenario a3",
        "a line of the log",
        'plan {"turns": [1, null]}',
    ):
        assert text in out, text


def test_what_a_model_wrote_neither_moves_the_cursor_nor_is_markup(data_dir: Path) -> None:
    out = show(data_dir, "games/player", "0", "0").stdout
    assert "\x1b" not in out and "\x07" not in out and "\x9b" not in out
    assert "\u241b[31mred" in out and "[bold]markup[/bold]" in out and "[link=x]y[/link]" in out


def test_json_is_what_was_logged(data_dir: Path) -> None:
    groups = json.loads(show(data_dir, "games/player@1", "--json").stdout)
    assert [one["metadata"]["task"] for one in groups] == ["a1", "b1"]
    one = json.loads(show(data_dir, "games/player@1", "1", "0", "--json").stdout)
    assert one["metadata"]["plan"] == {"turns": [1, None]}
    assert one["reward"] == 0.25 and one["messages"][1]["tool_calls"][0]["function"]["name"] == "look_up"
    assert one["messages"][3]["content"] == f"the answer {ESCAPES}"
    assert json.loads(show(data_dir, "games/player@1", "1", "--json").stdout)["exceptions"][0]["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["games/plaier"], "did you mean 'games/player'?"),
        (["a/b/c"], "write project/name or project/name@step"),
        (["games/player@9"], "train: 1, 3; val: 2"),
        (["games/player", "7"], "no group 7: it has 2"),
        (["games/player", "0", "7"], "no rollout 7: it has 2"),
        (["missing.parquet"], "there is no file 'missing.parquet'"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(data_dir: Path, arguments: list[str], message: str) -> None:
    done = show(data_dir, *arguments)
    assert done.exit_code == 2 and message in done.stderr


def test_a_name_that_two_projects_have_needs_its_project(data_dir: Path) -> None:
    (data_dir / "other" / "models" / "player").mkdir(parents=True)
    assert "games/player, other/player" in show(data_dir, "player").stderr


@pytest.mark.slow
def test_a_file_is_shown_by_the_command_as_typed(data_dir: Path) -> None:
    file = data_dir / "games/models/player/trajectories/train/0001.parquet"
    command = [str(Path(sys.executable).parent / "art"), "show", str(file), "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "rollout" in done.stdout and "0.25" in done.stdout
