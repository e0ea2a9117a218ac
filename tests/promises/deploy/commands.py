"""Command lines of deploy/, read by the parser of `art` itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import typer

from art.cli import app
from art.server.settings import ServerSettings

LATER = {"cluster": ("--cluster",), "database": ("--database", "--role")}
"""A setting of the server -> the options that come with it. Where it is missing, they are not checked."""


def serve_words(command: Sequence[str]) -> list[str]:
    """The words of `art serve` in a command, behind these two. A shell's script is taken apart."""
    if list(command[:2]) == ["sh", "-c"]:
        command = shlex.split(command[2])
    words = list(command)
    for index in range(len(words) - 1):
        if words[index : index + 2] == ["art", "serve"]:
            return words[index + 2 :]
    raise ValueError(f"no `art serve` in {shlex.join(command)}")


def serve_flaws(command: Sequence[str]) -> str:
    """What `art serve` says against the options of a command; nothing where it takes them."""
    words = serve_words(command)
    for setting, options in LATER.items():
        if setting not in ServerSettings.model_fields:
            for option in options:
                if option in words:
                    at = words.index(option)
                    del words[at : at + 2]
    root: Any = typer.main.get_command(app)
    serve = root.commands["serve"]
    try:
        with serve.make_context("art serve", words, resilient_parsing=False) as context:
            return "" if context.params["port"] == 8000 else "it listens on another port"
    except Exception as error:  # noqa: BLE001  # typer has its own copy of click's errors
        return str(error) or type(error).__name__
