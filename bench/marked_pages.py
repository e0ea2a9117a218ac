"""Pages whose tables benches write, between two marks such as <!-- results --> and <!-- /results -->."""

from __future__ import annotations

import re
from pathlib import Path

from art.runs.comparison import Estimate


def said(estimate: Estimate | None) -> str:
    """The mean and its interval as a reader sees them."""
    if estimate is None:
        return ""
    if estimate.low is None:
        return f"{estimate.mean:.2f}"
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def replace_between_marks(path: Path, text: str, *, name: str = "results") -> None:
    """Writes the text between the marks of that name of a page. Raises ValueError where it lacks them."""
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"{path} lacks the lines {begin} and {end}, between which the results stand")
    made = re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{text}{end}", page, flags=re.S
    )
    path.write_text(made, encoding="utf-8")
