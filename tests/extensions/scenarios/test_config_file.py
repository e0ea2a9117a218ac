"""`--config`: the options of a command that trains, from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art.cli import app, main, training_verbs
from art_extensions.scenarios import autorl_command, mcp_commands

LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)
)
"""A billion laughs."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the last verb handed on; it trains nothing."""
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}

    def note(*places: Any, **named: Any) -> int:
        found.clear()
        found.update(named, places=places)
        for one in places:
            found.update(one if isinstance(one, dict) else {})
        return 0

    monkeypatch.setattr(training_verbs, "train_run", note)
    monkeypatch.setattr(autorl_command, "autorl_run", note)
    monkeypatch.setattr(mcp_commands, "train_run", note)
    monkeypatch.setattr("art.cli.quickstart.quickstart_command", note)
    return found


def art(text: str, *words: str) -> tuple[int, str]:
    Path("run.yaml").write_text(text, encoding="utf-8")
    done = CliRunner().invoke(app, [*words])
    return done.exit_code, done.output


TRAIN = """\
environment: mail
base_model: art/nano-tools
steps: 7
learning-rate: 3e-4
name:
environment_option: {train: 8, hard: True}
"""


def test_the_file_gives_options_and_the_command_line_comes_first(given: dict[str, Any]) -> None:
    assert art(TRAIN, "train", "--config", "run.yaml", "--steps", "2") == (0, "")
    assert (given["steps"], given["learning_rate"], given["group_size"]) == (2, 3e-4, 8)
    assert given["places"][:2] == ("mail", "art/nano-tools") and given["name"] is None
    assert given["places"][3] == ["train=8", "hard=true"]
    assert art(TRAIN, "train", "--steps", "3", "--config=run.yaml") == (0, "") and given["steps"] == 3
    assert "config" not in given


@pytest.mark.slow  # imports what each of them needs
def test_each_command_that_trains_takes_it(given: dict[str, Any]) -> None:
    task = "task: Name a colour.\nbase_model: art/nano-words\nsystem_prompt: ''\nprepare_only: yes\n"
    assert art(task, "autorl", "--config", "run.yaml") == (0, "")
    assert given["places"][0] == "Name a colour." and given["prepare_only"] and given["system_prompt"] == ""
    served = "base_model: art/nano-mcp\nserver: [serve, --port, 3]\nallow_write: '*'\nmax_failed: 0.25\n"
    assert art(served, "mcp", "train", "--config", "run.yaml") == (0, "")
    assert given["places"][0].words == ["serve", "--port", "3"] and given["allow_writes"] is True
    assert given["max_failed"] == 0.25
    assert art("task: mail\nseed: 4\n", "quickstart", "--config", "run.yaml") == (0, "")
    assert (given["places"][0].task, given["places"][0].seed) == ("mail", 4)


def test_every_command_that_trains_is_known() -> None:
    """A settings verb, or the quick start: whoever adds one adds `--config` to it."""
    import click
    import typer

    def trains(command: Any) -> bool:
        return {"--steps", "--learning-rate"} <= {
            name for one in command.get_params(click.Context(command)) for name in one.opts
        }

    def below(command: Any) -> list[Any]:
        if not hasattr(command, "commands"):
            return [command]
        context = click.Context(command)  # asked by name: those of extensions are loaded then
        names = command.list_commands(context)
        return [each for name in names for each in below(command.get_command(context, name))]

    found = [one for one in below(typer.main.get_command(main.app)) if trains(one)]
    assert len(found) == 5
    for one in found:
        assert any("--config" in each.opts for each in one.get_params(click.Context(one))), one.name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepz: 3", "'stepz' is no option, did you mean 'steps'?; known: environment, base_model,"),
        ("config: other.yaml", "'config' is no option"),
        ("steps: 1\nsteps: 2", "'steps' is there twice"),
        ("group-size: 4\ngroup_size: 4", "'group_size' is there twice"),
        ("steps: [1, 2]", "'steps' takes one value, on line 1"),
        ("name: a\nenvironment_option: [[1]]", "takes a value, or a list of values, on line 2"),
        ("steps: [1", "cannot be read as YAML: while parsing a flow sequence"),
        ("a" * 3, "write one option a line"),
        ("? [a]\n: b", "write one option a line"),
        ("steps: \x00", "cannot be read as YAML"),
        ("a: *b", "found undefined alias"),
        ("[" * 600, "it nests deeper than 16, or has over 100 aliases"),
        ("{a: " * 17 + "1" + "}" * 17, "it nests deeper than 16, or has over 100 aliases"),
        (LAUGHS, "it nests deeper than 16, or has over 100 aliases"),
        ("a: &a x\nenvironment_option: [" + "*a, " * 101 + "]", "has over 100 aliases"),
        ("# " + "x" * (256 << 10), "it is longer than 256 KiB"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(given: dict[str, Any], text: str, words: str) -> None:
    code, said = art(text, "train", "--environment", "mail", "--base-model", "m", "--config", "run.yaml")
    assert code == 2 and words in said and said.count("\n") == 1 and not given


def test_what_is_as_large_as_is_allowed(given: dict[str, Any]) -> None:
    words = "train", "--environment", "mail", "--base-model", "m", "--config", "run.yaml"
    aliases = "name: &a x\nenvironment_option: [" + "*a, " * 100 + "]"
    code, said = art(f"{aliases}\n# {'x' * (250 << 10)}", *words)
    assert code == 0, said
    assert given["name"] == "x"


def test_a_file_that_is_no_text_or_not_there(given: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe4\n")
    for file in ("latin.yaml", "none.yaml"):
        code, said = art("", "quickstart", "--config", file)
        assert code == 2 and f"--config '{file}': it cannot be read as YAML" in said and said.count("\n") == 1
    assert art("", "quickstart", "--config", "run.yaml")[0] == 0


@pytest.mark.parametrize("line", ["steps: 2.5", "steps: true", "group_size: 1", "max_failed: much"])
def test_values_are_checked_as_on_the_command_line(given: dict[str, Any], line: str) -> None:
    words = ["train", "--environment", "mail", "--base-model", "m"]
    code, said = art(line, *words, "--config", "run.yaml")
    name, value = line.split(": ")
    option = "--" + name.replace("_", "-")
    assert code == 2 and f"Invalid value for '{option}'" in said
    assert art("", *words, option, value) == (2, said)
