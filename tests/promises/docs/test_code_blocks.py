"""Every code block of the README and the documentation does what it says.

- `python` blocks of a page run in order, in one process, in an empty folder; `await` at top level works.
- a `python` block that ends with `if __name__ == "__main__":` is a program and runs by itself.
- `bash` blocks run line by line in an empty folder (`make` targets are checked to exist, not run).
- other blocks (`text`, `json`, `yaml`, indented figures) are not programs.
A block that is the start of a file under examples/ must equal it, and that file has a test of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fork_server import real_starts

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
PROGRAMS = {"python", "bash"}
MAIN = '\nif __name__ == "__main__":\n'
PROSE = {"text", "json", "", "toml", "yaml"}


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, _, body in BLOCK.findall(page.read_text()) if found == language]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_only_known_kinds_of_blocks(page: Path) -> None:
    assert {language for language, _, _ in BLOCK.findall(page.read_text())} <= PROGRAMS | PROSE


def is_example(block: str) -> bool:
    return any(path.read_text() == block for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"), ids=name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    # The examples' own tests run those of them that this page shows.
    own = [block for block in blocks(page, "python") if not is_example(block)]
    programs = [block for block in own if MAIN in block]
    if lines := "\n".join(block for block in own if MAIN not in block).splitlines():
        body = "".join(f"    {line}\n" for line in lines)
        programs.append(f"import asyncio\nasync def page():\n{body}\nasyncio.run(page())\n")
    for number, text in enumerate(programs):
        program, folder = tmp_path / f"page{number}.py", tmp_path / f"folder{number}"
        program.write_text(text)
        folder.mkdir()
        run_program(page, program, folder)


def run_program(page: Path, program: Path, folder: Path) -> None:
    # The README's are typed by everybody: they run in a fresh interpreter, as the commands below do.
    with real_starts() if page.name == "README.md" else contextlib.nullcontext():
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=480,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("bash"), ids=name)
def test_bash_blocks_run(page: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in "\n".join(blocks(page, "bash")).splitlines():
        command = line.split("#")[0].strip()
        if not command:
            continue
        if command.startswith("make "):
            ran = ["make", "--dry-run", "--directory", str(ROOT), *command.split()[1:]]
        else:
            ran = ["bash", "-c", command]
        done = subprocess.run(ran, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=480)
        assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
