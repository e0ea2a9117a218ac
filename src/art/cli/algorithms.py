"""`art algorithms`: the table of named algorithms, or one of them in full."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from art.batch.algorithms import TABLE, Row
from art.batch.algorithms.facts import loss_facts
from art.batch.algorithms.table import find_row


def show_algorithms(name: str | None, *, as_json: bool) -> None:
    """Print all rows, or the one of that name. Raises ConfigurationError for a name that is not there."""
    console = Console()
    rows = TABLE if name is None else {name: find_row(name)}
    if as_json:
        console.print_json(json.dumps([spelled(row) for row in rows.values()]))
    elif name is None:
        console.print(overview())
        console.print(
            "[dim]art algorithms NAME shows one in full; "
            "docs/reference/algorithms.md has formulas and sources.[/dim]"
        )
    else:
        console.print(detail(rows[name]))


def spelled(row: Row) -> dict[str, Any]:
    """A row as data: meaning, papers, formula, and every part."""
    return {
        "name": row.algorithm.name,
        "meaning": row.meaning,
        "papers": list(row.papers),
        "needs": list(row.needs),
        "formula": loss_facts(row.algorithm.loss.name).formula,
        "algorithm": row.algorithm.model_dump(mode="json"),
    }


def overview() -> Table:
    """Returns the columns that fit into a narrow terminal; `detail` has the parts."""
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it does")
    table.add_column("source", no_wrap=True)
    for name, row in TABLE.items():
        table.add_row(f"[bold]{name}[/bold]", row.meaning, source(row.papers[0]))
    return table


def detail(row: Row) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False, title=row.meaning, title_justify="left")
    table.add_row("[bold]minimises[/bold]", f"[bold]{loss_facts(row.algorithm.loss.name).formula}[/bold]")
    for part in type(row.algorithm).model_fields:
        if part in row.needs:
            table.add_row(part, "[yellow]yours to give[/yellow]")
        elif part != "name":
            table.add_row(part, short(getattr(row.algorithm, part)))
    table.add_row("source", ", ".join(map(source, row.papers)))
    return table


def short(value: Any) -> str:
    """A part in one line: its kind, and what is not its default."""
    if not isinstance(value, BaseModel):
        return "-" if value is None or value == [] else str(value)
    kind = getattr(value, "kind", None) or getattr(value, "name", None)
    if kind is None:
        return ", ".join(f"{name} {one}" for name, one in value)
    fields = value.model_dump(exclude_defaults=True, exclude={"kind", "name"})
    fields |= fields.pop("params", {})
    return ", ".join([kind, *(f"{name} {one}" for name, one in fields.items())])


def source(paper: str) -> str:
    return f"arXiv:{paper}" if paper[:4].isdigit() else paper
