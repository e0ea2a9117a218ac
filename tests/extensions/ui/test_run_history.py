"""Histories that are kept as they grow: equal to what a whole reading finds, bounded, never changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_run import made_run

from art.tracking.model_files import append_history_row
from art_extensions.ui import run_reader
from art_extensions.ui.run_history import Histories, HistoryTable
from art_extensions.ui.run_reader import RunReader

NAMES = st.sampled_from(("train/reward", "val/reward", "loss/kl", "note"))
VALUES = st.one_of(st.floats(allow_nan=True), st.integers(-(2**70), 2**70), st.booleans(), st.just("x"))
ROWS = st.lists(st.tuples(st.integers(0, 4), st.dictionaries(NAMES, VALUES)), max_size=4)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), ROWS),
        st.tuples(st.just("anew"), ROWS),
        st.tuples(st.just("text"), st.sampled_from(('{"step": 1, "a"', "\n", "[]\n", "{[\n", "null"))),
        st.tuples(st.just("cut"), st.integers(0, 300)),
        st.tuples(st.just("gone"), st.none()),
    ),
    max_size=8,
)


@pytest.mark.slow
@given(CHANGES)
def test_a_table_that_grew_is_that_of_a_whole_reading(
    tmp_path_factory: pytest.TempPathFactory, changes: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "kept.jsonl"
    path.unlink(missing_ok=True)
    kept = Histories()
    for kind, change in changes:
        if kind in ("rows", "anew"):
            text = "".join(json.dumps({**row, "step": step}) + "\n" for step, row in change)
            with path.open("w" if kind == "anew" else "a") as file:
                file.write(text)
        elif kind == "text":
            with path.open("a") as file:
                file.write(change)
        elif kind == "cut" and path.exists():
            with path.open("r+b") as file:
                file.truncate(min(change, path.stat().st_size))
        elif kind == "gone":
            path.unlink(missing_ok=True)
        assert plain(kept.table(path)) == plain(Histories().table(path))


def plain(table: HistoryTable) -> object:
    return {step: dict(row) for step, row in table.steps.items()}, table.problem


def test_a_table_never_changes_and_its_rows_are_mappings(tmp_path: Path) -> None:
    path, kept = tmp_path / "history.jsonl", Histories()
    append_history_row(path, {"train/reward": 0.5, "loss/kl": 1, "step": 3})
    before = kept.table(path)
    assert kept.table(path) is before
    append_history_row(path, {"val/reward": 0.25, "step": 3})
    append_history_row(path, {"train/reward": "none", "step": 1})
    after = kept.table(path)
    assert plain(before) == ({3: {"train/reward": 0.5, "loss/kl": 1.0, "step": 3.0}}, None)
    assert after.steps[3] == {"train/reward": 0.5, "loss/kl": 1.0, "step": 3.0, "val/reward": 0.25}
    assert list(after.steps) == [1, 3] and after.column("train/reward") == [None, 0.5]
    assert after.steps[3].get("nothing") is None and after.steps[3].get("nothing", 7.0) == 7.0
    assert "nothing" not in after.steps[3] and len(after.steps[3]) == 4
    with pytest.raises(KeyError):
        after.steps[3]["nothing"]


def test_old_histories_are_forgotten(tmp_path: Path) -> None:
    kept = Histories(most=5)
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for path in paths:
        for step in range(3):
            append_history_row(path, {"train/reward": 1.0, "step": step})
    tables = [kept.table(path) for path in paths]
    assert kept.table(paths[2]) is tables[2] and kept.table(paths[0]) is not tables[0]
    large = Histories(most=1)
    assert large.table(paths[0]) is large.table(paths[0])


def test_a_run_that_hardly_grew_is_not_explained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_run(tmp_path)
    explained: list[str] = []
    explain_model = run_reader.explain_model
    monkeypatch.setattr(
        run_reader, "explain_model", lambda path, run: explained.append(run) or explain_model(path, run)
    )
    reader = RunReader(tmp_path)
    (run,) = reader.runs().values()
    history = made.model / "history.jsonl"
    for step in range(10, 110):
        append_history_row(history, {"train/reward": 1.0, "step": step})
    first = reader.explanation(run)
    assert first is not None and reader.explanation(run) is first
    append_history_row(history, {"train/reward": 1.0, "step": 110})
    assert reader.explanation(run) is first and len(explained) == 1
    for step in range(111, 121):
        append_history_row(history, {"train/reward": 1.0, "step": step})
    longer = reader.explanation(run)
    assert longer is not None and longer.steps > first.steps and len(explained) == 2
    history.write_bytes(b"")
    assert reader.explanation(run) is None
