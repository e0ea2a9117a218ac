"""One idea has one name in all commands of `art`, and a name says one kind of thing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from make_cli_page import commands
from typer.testing import CliRunner

from art.cli import app
from art.cli.older_spellings import OLDER_SPELLINGS, spelled_today

ROOT = Path(__file__).parents[3]
IDEAS = {
    "--data-dir": r"^The (server's )?data folder|^The folder (of|for) (runs|ledger|models|checkpoints)",
    "--output": r"^The (file|folder) to write|^The run's folder",
    "--json-file": r"^Also write .* to this file",
    "--groups-per-step": r"^(Scenarios|Tasks|Groups) per step",
    "--group-size": r"^Rollouts per (task|scenario)",
    "--eval-group-size": r"^Rollouts of each ((test|validation) )?(task|scenario|input)",
    "--eval-rollouts": r"^Rollouts (in all|before and after)",
    "--eval-scenarios": r"^Validation scenarios",
    "--num-train": r"^(Scenarios|Inputs|Tasks) to train on",
    "--num-test": r"^(Scenarios|Inputs|Tasks) held out",
    "--steps": r"^Training steps",
    "--base-model": r"^The model( to train)?:? (a hub name|art/|of the small)|^The model to train",
    "--learning-rate": r"earning rate( of the adapter)?( after warm-up)?\.",
    "--system-prompt": r"^(The system message|(Your own s|S)ystem prompt)",
    "--max-tokens": r"^The most tokens of (an|one) (answer|completion)",
    "--concurrency": r"^Concurrent rollouts",
    "--temperature": r"temperature( of|\.)",
    "--url": r"^The address of a server",
    "--at": r"^(The environment's|SkyPilot's) folder",
    "--name": r"^The (model's )?name( of the trained model)?\.",
    "--project": r"^The project's name",
}
"""The one name of an idea, and what helps say of it."""


def options() -> Iterator[tuple[str, Any]]:
    """Yields each option that is shown, with the words of its command."""
    for words, command in commands():
        for one in command.get_params(click.Context(command)):
            if one.param_type_name == "option" and one.name != "help" and not one.hidden:
                yield words, one


def other_names() -> dict[str, str]:
    """Returns the options whose idea has another name."""
    return {
        f"{words} {' '.join(one.opts)}": name
        for words, one in options()
        for name, said in IDEAS.items()
        if re.search(said, one.help or "") and name not in one.opts
    }


@pytest.mark.slow
def test_no_idea_has_two_names() -> None:
    assert other_names() == {}
    found = {name for _, one in options() for name in one.opts}
    assert set(IDEAS) <= found, "each idea is that of an option"
    names = defaultdict(set)
    for _, one in options():
        names[one.help].add(one.opts[0])
    assert {text: known for text, known in names.items() if len(known) > 1} == {}


def test_no_option_has_two_names() -> None:
    doubled = {f"{words} {one.opts}" for words, one in options() for _ in one.opts[2:] or one.opts[1:]}
    assert doubled == {"art migrate ['--dry-run', '-n']", "art migrate ['--verbose', '-v']"}


def test_no_name_is_a_flag_here_and_takes_a_value_there() -> None:
    kinds = defaultdict(set)
    for _, one in options():
        kinds[one.opts[0]].add(bool(one.is_flag))
    both = {name for name, known in kinds.items() if len(known) > 1}
    assert both == {"--keep"}  # `art launch --keep` a box, `art import --keep longest` a row


def test_older_names_lead_to_options_that_are_there() -> None:
    shown = defaultdict(set)
    for words, one in options():
        shown[words.removeprefix("art ")] |= {*one.opts}
    for words, names in OLDER_SPELLINGS.items():
        assert set(names.values()) <= shown[words] and not set(names) & shown[words]


@pytest.mark.parametrize(
    ("line", "now"),
    [
        ("eval player --n 0", "--eval-group-size"),
        ("train --environment mail --model art/nano --groups=0", "--groups-per-step"),
        ("mcp train --base-model art/nano --test-attempts 0 -- serve --json", "--eval-group-size"),
    ],
)
def test_older_names_are_taken(line: str, now: str) -> None:
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 2 and f"Invalid value for '{now}'" in done.output


def test_pages_say_the_names_of_today() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    lines = [
        line
        for page in pages
        for line in re.findall(r"\bart ([a-z][^`\n]*)", page.read_text(encoding="utf-8"))
    ]
    assert len(lines) > 200 and [line for line in lines if spelled_today(line.split()) != line.split()] == []


def test_the_older_name_of_the_server_is_taken_and_not_shown() -> None:
    assert "art run" not in dict(commands())
    assert "older name" in CliRunner().invoke(app, ["run", "--help"]).output


@pytest.mark.parametrize(
    "text", ["The data folder: what", "Scenarios per step. Default", "Rollouts of each scenario."]
)
def test_the_texts_of_ideas_are_found(text: str) -> None:
    assert any(re.search(said, text) for said in IDEAS.values())
