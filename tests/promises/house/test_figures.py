"""The house stays one that can be seen: its figures are counted anew and held to what was agreed."""

from __future__ import annotations

import re
from pathlib import Path

import figures
import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def house() -> figures.Figures:
    return figures.measure()


def test_methods_that_only_pass_on_are_few(house: figures.Figures) -> None:
    assert len(house.pass_throughs) <= figures.MOST_PASS_THROUGHS, house.pass_throughs


def test_no_files_import_each_other(house: figures.Figures) -> None:
    assert not house.circles


def test_no_rooms_import_each_other(house: figures.Figures) -> None:
    assert not house.knots


def test_contributing_says_the_same_figures() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    line = next(line for line in text.splitlines() if "only pass a call on" in line)
    said = [int(number) for number in re.findall(r"\b\d+\b", line)]
    assert said == [figures.MOST_PASS_THROUGHS]


def test_a_circle_a_knot_and_a_pass_through_are_found(tmp_path: Path) -> None:
    """The counter itself: a small package with one of each."""
    for name, text in {
        "__init__": "",
        "up/__init__": "",
        "up/one": "def f():\n    from art.down.two import x\n",
        "up/three": "from art.up import four\n",
        "up/four": "import art.up.three\n",
        "down/__init__": "",
        "down/two": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from art.up.three import y\n",
        "passing": (
            "class Door:\n"
            "    def open(self, key, *, hard=False):\n        return self.inner.open(key, hard=hard)\n"
            "    def shut(self, key):\n        return self.inner.shut(key, 3)\n"
        ),
    }.items():
        path = tmp_path / "art" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    small = figures.measure(tmp_path)
    assert ("art.up.four", "art.up.three") in small.circles
    assert ("art.down", "art.up") in small.knots
    assert small.pass_throughs == ("art.passing.Door.open",)
