"""docs/get-started/installation.md says what pyproject.toml has: the extras, Python and torch."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "get-started" / "installation.md").read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def extra_rows() -> dict[str, str]:
    """Extra -> its row in the table of the page."""
    section = PAGE.split("\n## Extras\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, re.M)
    assert len(rows) == len(dict(rows)), "an extra has two rows"
    return dict(rows)


def test_each_extra_has_a_row_and_each_row_an_extra() -> None:
    assert set(extra_rows()) == set(project()["optional-dependencies"])


def test_what_a_row_says_to_be_included_is_included() -> None:
    extras = project()["optional-dependencies"]
    for name, row in extra_rows().items():
        said = re.search(r"It includes ((?:`\w+`(?: and )?)+)", row)
        listed = " ".join(extras[name])
        inside = re.search(r"agent-reinforcement-trainer\[([^\]]+)\]", listed)
        has = set(inside[1].split(",")) if inside and name not in {"backend", "dev"} else set()
        assert set(re.findall(r"`(\w+)`", said[1]) if said else ()) == has, name


def test_the_versions_are_those_that_are_required() -> None:
    python = project()["requires-python"].removeprefix(">=")
    torch = next(one for one in project()["optional-dependencies"]["local"] if one.startswith("torch"))
    assert f"Python {python} or newer" in PAGE
    assert f"torch {torch.removeprefix('torch>=')} or newer" in PAGE
    assert f"Python {python}" in (ROOT / "README.md").read_text(encoding="utf-8")
