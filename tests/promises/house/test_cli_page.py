"""docs/reference/cli.md is what its command prints: each command of `art` with its options."""

from __future__ import annotations

import pytest
from make_cli_page import PAGE, commands, printed

pytestmark = pytest.mark.slow


def test_the_page_is_what_the_commands_declare() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == printed(page), "run python tests/promises/house/make_cli_page.py"


def test_each_command_has_a_section_with_its_options() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = dict(commands())
    assert {"art quickstart", "art init", "art serve", "art mcp train", "art keys create"} <= set(found)
    for words, command in found.items():
        section = page.split(f"\n## `{words}`\n")[1].split("\n## ")[0]
        assert (command.help or "").split()[0] in section
    train = page.split("\n## `art mcp train`\n")[1].split("\n## ")[0]
    assert "`--budget-usd`" in train and "`--group-size`" in train


def test_each_command_stands_once_in_the_table_of_tasks() -> None:
    table = PAGE.read_text(encoding="utf-8").split("\n| task | command |\n")[1].split("\n\n")[0]
    commands_of_tasks = [line.split("|")[2].strip() for line in table.splitlines()[1:]]
    assert len(commands_of_tasks) > 10
    assert sorted(set(commands_of_tasks)) == sorted(commands_of_tasks)


def test_a_row_that_is_not_as_declared_is_printed_again() -> None:
    page = PAGE.read_text(encoding="utf-8")
    wrong = page.replace("| `--port` | `8000` |", "| `--port` | `1` |")
    assert wrong != page and printed(wrong) == page
