"""`art spell`: the words of a list, backwards."""

from __future__ import annotations

from typing import Annotated

import typer

from art_spelling.environment import WORDS


def spell(name: Annotated[str, typer.Argument(help="The list of words.")] = "animals") -> None:
    """Spell the words of a list backwards."""
    typer.echo(" ".join(word[::-1] for word in WORDS[name]))
