"""The pages are in plain English: no long sentence, no riddle at its beginning, one spelling for each term.

Code, tables of fields and figures are not sentences: a sentence ends at `.`, `:`, `;`, `!` or `?`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
MOST_WORDS = 40
TERMS = {
    r"(?<![-\w])off policy": "off-policy",
    r"(?<![-\w])on policy": "on-policy",
    r"data sets?": "dataset",
    r"knows the truth": "oracle",
    r"begins? anew": "restart",
    r"hyper-parameters?": "hyperparameter",
    r"\battempts?\b": "rollout",
    r"\b(?:is|are|was|were|be|been) (?:told|asked|said)\b": "reported, queried, passed",
    r"\bbalance sheets?\b|\bbooks\b": "rollout accounting",
}
"""A spelling that the pages do not use, and the one that they do."""
_BLOCK = re.compile(r"^```.*?^```$|<!--.*?-->|^    .*$", re.M | re.S)
_RIDDLE = re.compile(r"(Whoever|Whatever|Whose|What(?! is\b| it\b| the\b| differs\b)|That which|Of) ")


def sentences(page: str) -> Iterator[str]:
    """Yields the sentences of a page, those in lists and in the cells of tables included."""
    for block in re.split(r"\n\s*\n|\n(?=- |\d+\. |\||#)", _BLOCK.sub("", page)):
        for part in block.strip("|").split(" | ") if block.startswith("|") else [block]:
            if not part.startswith("#"):
                yield from re.split(r"(?<=[.:;!?])\s+", " ".join(part.split()))


def flaws(page: str) -> list[str]:
    """Returns the long sentences, the riddles and the other spellings of a page."""
    found = [f"{len(one.split())} words: {one}" for one in sentences(page) if len(one.split()) > MOST_WORDS]
    found += [f"begins with a riddle: {one}" for one in sentences(page) if _RIDDLE.match(one)]
    prose = re.sub(r"`[^`]*`", "", _BLOCK.sub("", page))
    found += [
        f"write {right!r}: {m[0]!r}" for wrong, right in TERMS.items() for m in re.finditer(wrong, prose)
    ]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_plain(page: Path) -> None:
    assert not flaws(page.read_text(encoding="utf-8"))


def test_a_flaw_is_seen() -> None:
    assert flaws("Whoever asks is told.") and flaws("It is off policy.") and flaws("word " * 41)
    assert not flaws("It is off-policy, as `off policy` is not.\n\n```text\nWhoever asks\n```\n")
