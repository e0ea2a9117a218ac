"""What verbs for models and logs share: options, errors of one line, text for a terminal.

A model is `project/name` or `project/name@step` (`art.tracking.folders.find_model`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from art.errors import ARTError, ConfigurationError

DataDir = Annotated[
    Path, typer.Option(help="The data folder: what `art serve --data-dir` or LocalBackend(path=...) used.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Best = Annotated[
    str | None,
    typer.Option(metavar="METRIC", help="Take the step with the highest mean of a metric: val/reward."),
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An option of the environment, with VALUE as JSON or text. May be repeated.",
    ),
]
Harness = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The program that asks the model, of verifiers: and harbor: environments: bash, codex, "
        "mini-swe-agent, ... Default: the environment's own.",
    ),
]


_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS = {**_VISIBLE, 127: "\u2421", **dict.fromkeys(range(128, 160), "\N{REPLACEMENT CHARACTER}")}
"""What a model wrote must not move the cursor, colour the terminal or set its title."""


@contextmanager
def readable_errors() -> Iterator[None]:
    """Ends a verb with one line instead of a traceback: exit code 2 for a wrong option, 1 for what failed."""
    try:
        yield
    except ARTError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2 if isinstance(error, ConfigurationError) else 1) from error


def printable(text: str) -> str:
    """Returns the text with symbols for its control characters."""
    return text.translate(_CONTROLS)
