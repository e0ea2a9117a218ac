"""The site is built of pages and docstrings. A page outside the navigation, or a lost target, fails it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    return subprocess.run([*command, str(source), str(target)], capture_output=True, text=True, timeout=480)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / page.relative_to(DOCS)).with_suffix(".html").exists(), page
    api = (tmp_path / "reference/api.html").read_text(encoding="utf-8")
    assert "gather_trajectory_groups" in api and "OverloadedError" in api


@pytest.mark.slow
def test_a_page_that_nothing_leads_to_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    (source / "conf.py").write_text('extensions = ["myst_parser"]\n')
    (source / "index.rst").write_text("Title\n=====\n")
    (source / "lost.md").write_text("# Lost\n\n[gone](gone.md)\n")
    done = build(source, tmp_path / "site")
    assert done.returncode != 0 and "toctree" in done.stderr and "gone.md" in done.stderr
