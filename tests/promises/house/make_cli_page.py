"""Prints docs/reference/cli.md from the commands of `art`.

Run it with: python tests/promises/house/make_cli_page.py

The text above the first command is written by hand, in the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

from art.cli import app

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
FIRST = "\n## `art "


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yields each command that does something, with the words that call it."""
    root: Any = typer.main.get_command(app)
    yield from _below("art", root)


def _below(words: str, command: Any) -> Iterator[tuple[str, click.Command]]:
    if not hasattr(command, "commands"):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if not below.hidden:
            yield from _below(f"{words} {name}", below)


def printed(page: str) -> str:
    """The page with its commands as they are declared."""
    return page.split(FIRST)[0].rstrip("\n") + "\n" + "".join(_sections())


def _sections() -> Iterator[str]:
    for words, command in commands():
        text = " ".join(_spelled(command.help or "").split())
        usage = " ".join((words, *command.collect_usage_pieces(click.Context(command))))
        yield f"\n## `{words}`\n\n{text}\n\n```text\n{usage}\n```\n"
        rows = [row for parameter in command.get_params(click.Context(command)) if (row := _row(parameter))]
        if rows:
            yield "\n| option | default | meaning |\n|---|---|---|\n" + "".join(rows)


def _row(parameter: click.Parameter) -> str | None:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return None
    isolated = click.Context(click.Command("art"))
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.get_default(isolated, call=False)
    plain = isinstance(default, str | int | float | Path) and not isinstance(default, bool) and default != ""
    shown = "required" if parameter.required else f"`{default}`" if plain else ""
    meaning = _spelled(getattr(parameter, "help", None) or "").replace("|", "\\|")
    name = names if is_option else f"`{parameter.name}`"
    return f"| {name} | {shown} | {' '.join(meaning.split())} |\n"


def _spelled(text: str) -> str:
    """A help text without marks of paragraphs, and with options as code."""
    parts = re.split(r"(`[^`]*`)", text.replace("\b", " ").replace("\f", " "))
    return "".join(
        part if part.startswith("`") else re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", part)
        for part in parts
    )


if __name__ == "__main__":
    PAGE.write_text(printed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
