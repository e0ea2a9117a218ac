"""The order in which `art --help` lists the verbs (what one does first comes first), and `art help`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

ORDER = (
    "quickstart",
    "init",
    "mcp",
    "autorl",
    "serve",
    "run",
    "keys",
    "runtime",
    "doctor",
    "audit-model",
    "algorithms",
    "migrate",
    "help",
)


class Verbs(TyperGroup):
    """Listed in `ORDER`; others behind, in the order of their definition."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the verbs."""
        known = super().list_commands(ctx)
        return [verb for verb in ORDER if verb in known] + [verb for verb in known if verb not in ORDER]


def help_text(ctx: typer.Context, verb: str | None) -> str:
    """What `--help` prints, of `art` or of one verb. Raises LookupError that lists the verbs."""
    root = ctx.find_root()
    if verb is None:
        return root.get_help()
    group = root.command
    assert isinstance(group, TyperGroup)
    command = group.get_command(root, verb)
    if command is None:
        raise LookupError(f"no verb {verb!r}; verbs: {', '.join(group.list_commands(root))}")
    return command.get_help(type(root)(command, info_name=verb, parent=root))
