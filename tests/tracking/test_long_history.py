"""A long history is read again and again: only the rows that are asked for are parsed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.tracking import model_files
from art.tracking.model_files import append_history_row, best_step, read_history
from art.tracking.names import history_row

NAMES = ("val/reward", "train/reward", "val/größe", 'val/"quoted"', "reward/val")
ROWS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.floats(-1, 1), max_size=3),
        st.integers(-1, 25),
        st.booleans(),
    ),
    max_size=12,
)


def write_rows(path: Path, rows: list[tuple[dict[str, float], int, bool]]) -> list[dict[str, Any]]:
    path.unlink(missing_ok=True)
    for metrics, step, ours in rows:
        # Other programs write rows with the step first, and some that have none.
        foreign = {"step": step, **metrics} if step >= 0 else dict(metrics)
        append_history_row(path, history_row(metrics, step=step, wall_clock=1.0) if ours else foreign)
    return list(read_history(path))


@given(ROWS, st.sets(st.integers(0, 25), max_size=3), st.sets(st.sampled_from(NAMES), max_size=2))
def test_what_is_left_out_is_what_was_not_asked_for(
    tmp_path_factory: pytest.TempPathFactory, rows: Any, steps: set[int], names: set[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "history.jsonl"
    whole = write_rows(path, rows)
    of_steps = [one for one in read_history(path, steps=steps) if one.get("step") in steps]
    assert of_steps == [one for one in whole if one.get("step") in steps]
    named = list(read_history(path, names=names))
    assert named == [one for one in whole if not names or names & one.keys()]


def test_of_a_thousand_rows_one_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.jsonl"
    for step in range(1000):
        metrics = {"val/reward" if step == 700 else "train/reward": 1.0}
        append_history_row(path, history_row(metrics, step=step, wall_clock=1.0))
    parsed: list[Any] = []
    parse = model_files.parse_json
    monkeypatch.setattr(model_files, "parse_json", lambda text: parsed.append(text) or parse(text))
    assert best_step(path, "val/reward") == 700 and len(parsed) == 1
    assert [one["step"] for one in read_history(path, steps=(12,))] == [12] and len(parsed) == 2
