"""`make test` leaves out what exists, .ci/run names what the Makefile knows: a wrong word would be silent."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ("PAGES", "USERS", "FAULTS", "LIBRARIES", "EXTENSIONS_A_TO_I", "EXTENSIONS_J_TO_Z")
CI = (ROOT / ".ci" / "run").read_text()

pytestmark = pytest.mark.slow


def commands(*words: str) -> str:
    """What make would run: without the WITH of a `make` that runs these tests, which MAKEFLAGS hands down."""
    environ = {**os.environ, "MAKEFLAGS": "", "WITH": ""}
    done = subprocess.run(
        ["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True, env=environ
    )
    return done.stdout


def left_out(*words: str) -> set[str]:
    return set(re.findall(r"--ignore=(\S+)", commands("test", *words)))


def test_each_part_exists_and_is_left_out_until_it_is_asked_for() -> None:
    whole = left_out()
    assert not [path for path in whole if not (ROOT / path).exists()]
    parts = [whole - left_out(f"WITH=$({name})") for name in PARTS]
    assert all(parts) and set().union(*parts) == whole and sum(map(len, parts)) == len(whole)
    assert not left_out("WITH=$(BESIDE)")


def test_the_turns_of_ci_leave_no_part_out() -> None:
    (turns,) = re.findall(r"turns=\((.*?)\)", CI)
    named = re.findall(r"^    ([\w-]+)\) with='(.*?)'", CI, re.MULTILINE)
    assert dict(named).keys() == {"all", *turns.split()}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(with_ for turn, with_ in named if turn != "all"))) == {
        *PARTS
    }


def test_the_environments_of_all_turns_are_all_of_them() -> None:
    (known,) = re.findall(r"^ENVIRONMENTS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = " ".join(re.findall(r'^(?:always|of_\w+)="(.*)"$', CI, re.MULTILINE))
    assert {*named.split()} == {*known.split()}


def test_what_is_not_made_is_skipped_only_where_not_everything_is_asked_for() -> None:
    reason = re.compile(r'reason=\(?f?"(?!by hand)[^"]*\.installed`')
    marked = {
        file: text
        for file in (ROOT / "tests").rglob("*.py")
        if "skipif(" in (text := file.read_text(encoding="utf-8")) and reason.search(text)
    }
    assert len(marked) > 9
    assert not [str(file) for file, text in marked.items() if "ART_TEST_EVERYTHING" not in text]
