"""`art autorl`: what can be seen of it without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from art.cli import app
from art.errors import ConfigurationError
from art.rewards.llm import Budget, resolve_llm
from art_extensions.scenarios import autorl
from art_extensions.testing import LlmServer, ScriptedGenerator

UNPRICED = resolve_llm("judge", base_url="http://127.0.0.1:9/v1")
WORDS = ["red", "green", "blue", "white", "black", "grey", "pink", "brown"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["autorl", *arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_preparing_writes_files_that_may_be_edited(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ScriptedGenerator(inputs=WORDS, system_prompt="Name a thing.", rubric="- it fits")
    with LlmServer(written, key="secret") as server:
        monkeypatch.setenv("ART_GENERATOR_API_KEY", "secret")
        command = (
            *("Name a thing of the colour.", "--base-model", "art/nano-games", "--prepare-only"),
            *("--num-train", "4", "--num-test", "2", "--name", "colours"),
            *("--generator", "writer", "--generator-base-url", server.base_url),
        )
        first = run(*command)
        assert first.exit_code == 0, first.output
        asked = len(server.requests)
        folder = here / ".art" / "autorl" / "autorl" / "colours"
        inputs = json.loads((folder / "inputs.json").read_text())
        assert (len(inputs["train"]), len(inputs["test"])) == (4, 2)
        (folder / "rubric.txt").write_text("- my own\n")
        assert run(*command).exit_code == 0 and len(server.requests) == asked
        assert (folder / "rubric.txt").read_text() == "- my own\n"
        other = run("Another task.", *command[1:])
        assert other.exit_code == 1 and "give the run another name" in other.output.replace("\n", " ")


def test_inputs_of_ones_own_and_no_system_prompt(here: Path) -> None:
    (here / "inputs.txt").write_text("\n".join(WORDS))
    (here / "task.txt").write_text("Name a thing of the colour.")
    command = ("@task.txt", "--base-model", "art/nano-games", "--prepare-only", "--rubric", "- it fits")
    written = ("--generator", "hosted_vllm/x", "--generator-base-url", "http://127.0.0.1:9/v1")
    done = run(*command, *written, "--inputs", "inputs.txt", "--system-prompt", "", "--num-test", "3")
    assert done.exit_code == 0, done.output
    folder = here / ".art" / "autorl" / "autorl" / "autorl"
    assert len(json.loads((folder / "inputs.json").read_text())["train"]) == 5
    assert (folder / "system_prompt.txt").read_text() == "\n"
    assert json.loads((folder / "run.json").read_text())["task"] == "Name a thing of the colour."


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nun_train": 3}, "did you mean 'num_train'"),
        ({"group_size": 1}, "group_size=1 must be at least 2"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be above 0"),
        ({"similarity": 2.0}, "is a share"),
        ({"base_model": None}, "give base_model="),
        ({"task_description": " "}, "task_description is empty"),
        ({"judge": "no-such", "inputs": None}, "no provider before a slash"),
        ({"referee": "no-such", "rubric": None}, "no provider before a slash"),
        ({"budget": Budget(usd=1), "judge": UNPRICED}, "needs the price of 'judge'"),
    ],
)
async def test_options_are_checked_before_anything_is_asked(
    here: Path, options: dict[str, Any], words: str
) -> None:
    def never(messages: Any) -> str:
        raise AssertionError("it was asked")

    given: dict[str, Any] = {
        **{"task_description": "a task", "base_model": "art/nano-games", "generator": never, "judge": never},
        **{"inputs": WORDS, "system_prompt": "", "rubric": "- x"},
    }
    with pytest.raises(ConfigurationError, match=words):
        await autorl.train(**(given | options))


async def test_a_run_is_what_it_was_started_as(here: Path) -> None:
    given: dict[str, Any] = {
        **{"base_model": "art/nano-games", "generator": lambda messages: "", "inputs": WORDS},
        **{"system_prompt": "", "rubric": "- x"},
    }
    await autorl.prepare("a task", **given)
    await autorl.prepare("a task", **given, epochs=9)  # going on for longer is allowed
    for changed, words in (
        ({"num_test": 2}, "num_test=2, but the run was started with 5"),
        ({"base_model": "other"}, "base_model='art/nano-games', not 'other'"),
        ({"rubric": "- y"}, "says something else"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            await autorl.prepare("a task", **(given | changed))


@pytest.mark.slow
def test_a_budget_is_one_for_all_commands_that_go_on_with_a_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = ScriptedGenerator(inputs=WORDS, system_prompt="Name a thing.", rubric="- it fits")
    with LlmServer(written, key="secret") as server:
        monkeypatch.setenv("ART_GENERATOR_API_KEY", "secret")
        command = (
            *("Name a thing of the colour.", "--base-model", "art/nano-games", "--prepare-only"),
            *("--num-train", "4", "--num-test", "2", "--generator", "writer"),
            *("--generator-base-url", server.base_url, "--budget-calls"),
        )
        for _ in range(2):  # inputs and a system prompt; nothing is left for the rubric, nor next time
            result = run(*command, "2")
            assert result.exit_code == 1 and "the budget is spent: calls=2 and 2 used" in result.output
            assert len(server.requests) == 2
        assert "of the budget are spent already: 2 of 2 calls" in result.output
        more = run(*command, "3")
        assert more.exit_code == 0 and len(server.requests) == 3, more.output
