"""A reader reaches every page: from docs home, the table of contents and the text of another page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
LISTS = {"index.md", "contents.md"}
"""Pages that are lists of pages: a link from one of them is not a link from a text."""
_LINK = re.compile(r"\]\(([^)\s#:]+\.md)(?:#[^)]*)?\)")
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.M | re.S)
_PROGRAM = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
_ROW = re.compile(r"^\| (.+) \| `(bench/[\w./]+)` \|$", re.M)
_FIGURE = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?![\w.,]*[Bk]\b)")


def links(page: Path) -> set[Path]:
    """Returns the pages that a page links to or lists in its navigation."""
    text = page.read_text(encoding="utf-8")
    listed = [
        f"{name}.md" for block in _TOCTREE.findall(text) for name in re.findall(r"^[a-z].*$", block, re.M)
    ]
    found = {(page.parent / name).resolve() for name in [*_LINK.findall(text), *listed]}
    return {one for one in found if one.exists()} - {page}


def unread(docs: Path) -> list[str]:
    """Returns the pages that docs home does not lead to, or that no text and no table of contents names."""
    pages = {page.resolve(): links(page.resolve()) for page in docs.rglob("*.md")}
    home, contents = (docs / "index.md").resolve(), (docs / "contents.md").resolve()
    reached, newest = {home}, {home}
    while newest:
        newest = {one for page in newest for one in pages.get(page, ())} - reached
        reached |= newest
    named = {one for page, those in pages.items() if page.name not in LISTS for one in those}
    return sorted(
        str(page.relative_to(docs.resolve()))
        for page in pages
        if page.name not in LISTS and not (page in reached and page in named and page in pages[contents])
    )


def test_every_page_is_reached_and_named_in_a_text() -> None:
    assert unread(DOCS) == []


def test_a_page_that_no_text_names_is_found(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("```{toctree}\n:hidden:\n\ncontents\nlost\nread\n```\n")
    (tmp_path / "contents.md").write_text("[lost](lost.md) [read](read.md)\n")
    (tmp_path / "lost.md").write_text("See [read](read.md) and [never](never.md).\n")
    (tmp_path / "read.md").write_text("# Read\n")
    (tmp_path / "never.md").write_text("# In no list\n")
    assert unread(tmp_path) == ["lost.md", "never.md"]


def test_the_readme_leads_to_every_page_in_two_steps() -> None:
    named = links(ROOT / "README.md")
    assert (DOCS / "contents.md").resolve() in named
    reached = named.union(*map(links, named))
    assert not [str(page) for page in DOCS.rglob("*.md") if page.name not in LISTS and page not in reached]


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 165
    (entrances,) = re.findall(r"^## Documentation\n\n((?:\|.*\n)+)", text, re.M)
    assert len(entrances.splitlines()) == 2 + 5


def test_docs_home_begins_with_an_install_line_a_short_program_and_a_picture() -> None:
    home = (DOCS / "index.md").read_text(encoding="utf-8")
    (program,) = _PROGRAM.findall(home)
    assert 15 <= len([line for line in program.splitlines() if line.strip()]) <= 25
    assert "pip install" in home.partition("```python")[0]
    assert all(
        (DOCS / picture).exists() for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", home) or ["none"]
    )
    assert len(_LINK.findall(home)) <= 15


def figures_without_a_source(page: str, benchmarks: str) -> list[str]:
    """Returns the figures of a page's measured rows that the section of their script does not have."""
    sections = {
        m[1]: m[2]
        for m in re.finditer(r"^## [^\n]*`(bench/[\w./]+)`\n(.*?)(?=^## |\Z)", benchmarks, re.M | re.S)
    }
    return [
        f"{figure} of {script}"
        for row, script in _ROW.findall(page)
        for cell in row.split(" | ")[1:]
        for figure in _FIGURE.findall(cell)
        if figure not in _FIGURE.findall(sections[script])
    ]


def test_the_figures_of_the_comparison_are_those_of_the_benchmarks() -> None:
    page = (DOCS / "get-started/why-art.md").read_text(encoding="utf-8")
    benchmarks = (DOCS / "internals/benchmarks.md").read_text(encoding="utf-8")
    assert len(_ROW.findall(page)) >= 8
    assert figures_without_a_source(page, benchmarks) == []


@pytest.mark.parametrize(("figure", "found"), [("2.5", []), ("2.6", ["2.6 of bench/a.py"])])
def test_a_figure_that_nothing_measured_is_found(figure: str, found: list[str]) -> None:
    benchmarks = "## A: `bench/a.py`\n\n| speed | 2.5 |\n\n## B\n\n2.6\n"
    assert figures_without_a_source(f"| speed of 7 | {figure} | `bench/a.py` |\n", benchmarks) == found
