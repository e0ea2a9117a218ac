"""`art environments`: what `--environment` may name here, and what has to be installed for it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from art.environments import tasks
from art.environments.adapters.registry import PYTHON
from art.errors import EXTRAS, MissingExtraError, require_extra
from art.extensions import ENVIRONMENT, extension_points, load_extension


@dataclass(frozen=True, kw_only=True)
class ListedEnvironment:
    """A name, or a form of names."""

    name: str
    what: str
    extra: str | None
    """None: it needs no package besides."""
    installed: bool


def list_environments() -> list[ListedEnvironment]:
    """Returns the built-in tasks, then the forms by their prefixes. No library is loaded."""
    found = [
        ListedEnvironment(name=name, what=tasks.find(name).DESCRIPTION, extra=None, installed=True)
        for name in tasks.NAMES
    ]
    for prefix in extension_points(ENVIRONMENT):
        module = import_module(load_extension(ENVIRONMENT, prefix).__module__)
        about = (module.__doc__ or "").partition("\n")[0].partition(":")[0]
        extra = getattr(module, "EXTRA", prefix)
        found.append(
            ListedEnvironment(
                name=f"{prefix}:NAME",
                what=about,
                extra=extra if extra in EXTRAS else None,
                installed=extra not in EXTRAS or _has(extra),
            )
        )
    own = "An object of your own with `scenarios`, `rollout` and `close`"
    return [
        *found,
        ListedEnvironment(name=f"{PYTHON}:MODULE:NAME", what=own, extra=None, installed=True),
    ]


def _has(extra: str) -> bool:
    try:
        require_extra(extra, "the environment")
    except MissingExtraError:
        return False
    return True


def show_environments(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments that `art train --environment` and `art eval --environment` take.

    Shows what each prefix stands for, and the extra that it needs where that is not installed.
    """
    listed = list_environments()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in listed]))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what it is", "needs"):
        table.add_column(heading, no_wrap=heading == "name")
    for one in listed:
        missing = one.extra if one.extra is not None and not one.installed else ""
        table.add_row(one.name, one.what, f"the extra {missing}" if missing else "")
    Console().print(table)
