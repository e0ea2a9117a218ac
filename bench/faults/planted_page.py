"""Writes the table of planted faults of docs/reference/faults.md from the records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from bench.faults.page import PAGE
from bench.faults.planted_records import PlantedRecord
from bench.marked_pages import replace_between_marks

MOST_SHOWN = 90
"""Characters of a report that the page shows."""


def write_page(names: Sequence[str], records: Mapping[str, PlantedRecord]) -> None:
    """names: of the faults, in their order. Raises ValueError where the page lacks its marks."""
    tried = [records[name] for name in names if name in records]
    replace_between_marks(PAGE, "\n".join([*_lines(len(names), tried), ""]), name="planted")


def _lines(count: int, tried: Sequence[PlantedRecord]) -> Iterator[str]:
    found = sum(one.found for one in tried)
    yield f"{count} faults are planted, one at a time. {len(tried)} were tried; {found} of these were found."
    if not tried:
        return
    days = sorted(one.when for one in tried)
    yield f"They were tried from {days[0]} to {days[-1]} on a machine with {tried[-1].machine}."
    yield ""
    yield "| planted fault | file | to be found by | found |"
    yield "|---|---|---|---|"
    for one in tried:
        report = re.sub(r"[`|<>\s]+", " ", one.report)[:MOST_SHOWN].strip()
        seen = f"yes: `{report}`" if one.found else f"**no**: {report}"
        yield f"| {one.what} | `{one.file}` | `{one.by}` | {seen} |"
