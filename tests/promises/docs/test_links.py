"""What a page points at is there: files, headings of pages, and paths of the repository in its text."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_FENCED = re.compile(r"^```.*?^```", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:src|tests|docs|bench|nano|crosscheck|examples|\.ci)/[\w./-]+")
_HEADING = re.compile(r"^#+ (.+)$", re.M)


@cache
def tracked() -> frozenset[str]:
    """Files and folders that git knows."""
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    files = [line for line in listed.splitlines() if (ROOT / line).exists()]
    folders = {str(folder) for file in files for folder in Path(file).parents}
    return frozenset(files) | folders


def pages() -> list[str]:
    """Found without a process: this runs when tests are collected."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/**/*.md")]
    names = (str(page.relative_to(ROOT)) for page in found)
    return sorted(name for name in names if "/envs/" not in name and "node_modules" not in name)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of the headings."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(text)]
    return {heading.strip().replace(" ", "-") for heading in plain}


def dead_links(name: str) -> list[str]:
    page = ROOT / name
    text = _CODE.sub("", _FENCED.sub("", page.read_text(encoding="utf-8")))
    dead = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue  # the rest of the web
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            dead.append(link)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            dead.append(link)
    return dead


def lost_paths(name: str) -> list[str]:
    """Paths in backticks, from the root; `mine` is the reader's own."""
    text = _FENCED.sub("", (ROOT / name).read_text(encoding="utf-8"))
    named = {code.rstrip("/") for code in _CODE.findall(text) if _PATH.fullmatch(code)}
    lost = {path for path in named if Path(path).stem != "mine" and not (ROOT / path).exists()}
    return sorted(lost - made_by_commands(lost))


def made_by_commands(paths: set[str]) -> set[str]:
    """Those that git ignores: results and environments, which a fresh clone has not."""
    asked = ["git", "check-ignore", *(f"{path}/" for path in paths)]
    told = (
        subprocess.run(asked, cwd=ROOT, text=True, capture_output=True, check=False).stdout if paths else ""
    )
    return {line.rstrip("/") for line in told.splitlines()}


def test_there_are_pages() -> None:
    assert {"README.md", "docs/internals/architecture.md"} <= set(pages())


@pytest.mark.parametrize("name", pages())
def test_links_lead_somewhere(name: str) -> None:
    assert dead_links(name) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in pages() if name != "CHANGELOG.md"])
def test_paths_in_the_text_are_those_of_files(name: str) -> None:
    """The changelog tells of what was, too."""
    assert lost_paths(name) == []


_PAGE = re.compile(r"\bdocs/[\w./-]+?\.(?:md|json|png|svg)\b")


@pytest.mark.slow
def test_pages_that_programs_and_messages_name_are_there() -> None:
    """A page that was moved leaves no message behind that sends a reader to its old place."""
    programs = [name for name in tracked() if name.endswith((".py", ".toml", ".importlinter"))]
    lost = {
        f"{name}: {page}"
        for name in programs
        for page in _PAGE.findall((ROOT / name).read_text(encoding="utf-8"))
        if not (ROOT / page).exists()
    }
    assert not lost


@pytest.mark.slow
def test_a_dead_link_and_a_lost_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A B\n[here](#a-b) [gone](other.md) [lost](#c)\n`src/art/no_such_file.py`\n")
    assert dead_links(str(page)) == ["other.md", "#c"]
    assert lost_paths(str(page)) == ["src/art/no_such_file.py"]
