"""The world of the summarizer: sheets, recall, the noisy demonstrations, and the judge's two criteria."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "summarizer"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import fact_sheets

    return fact_sheets


def test_recall_counts_each_wanted_fact_once_and_only_with_its_value(world: ModuleType) -> None:
    sheet = world.FactSheet((("city", "oslo"), ("color", "red"), ("day", "Monday")), ("city", "day", "color"))
    assert world.recall(sheet, "city oslo, day Monday, color red") == 1
    assert world.recall(sheet, "city oslo city oslo") == pytest.approx(1 / 3)
    assert world.recall(sheet, "city red, color oslo") == 0
    assert world.recall(sheet, "oslo city") == 0
    assert world.recall(sheet, "") == 0


def test_any_order_of_the_wanted_facts_is_complete_and_brief(world: ModuleType) -> None:
    for number in range(100):
        sheet = world.draw_sheet("train 0", number)
        wanted = [fact for fact in sheet.facts if fact[0] in sheet.wanted]
        random.Random(number).shuffle(wanted)
        messages = [*sheet.messages, {"role": "assistant", "content": ", ".join(map(" ".join, wanted))}]
        assert world.sheet_in(messages) == sheet
        assert world.completeness(messages) == 1 and world.brevity(messages) == 1
        everything = [
            *sheet.messages,
            {"role": "assistant", "content": ", ".join(map(" ".join, sheet.facts))},
        ]
        assert world.completeness(everything) == 1 and world.brevity(everything) == 0


def test_the_demonstrations_are_noisy_and_held_out_sheets_are_not_trained_on(world: ModuleType) -> None:
    scores = world.reference_scores()
    assert 0.4 < scores["the demonstrations"] < 0.6
    trained = {world.draw_sheet("train 0", number) for number in range(800)}
    held_out = {world.draw_sheet("held out", number) for number in range(256)}
    assert not trained & held_out
