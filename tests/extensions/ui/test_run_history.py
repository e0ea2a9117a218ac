"""Histories that are kept as they grow: equal to what a whole reading finds, bounded, never changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_run import made_run

from art.errors import UnreadableFileError
from art.tracking import model_files
from art.tracking.model_files import append_history_row
from art_extensions.ui import run_reader
from art_extensions.ui.explain import explain_model
from art_extensions.ui.pages import run_page
from art_extensions.ui.run_history import Histories, HistoryTable
from art_extensions.ui.run_list import runs_page
from art_extensions.ui.run_reader import RunReader
from art_extensions.ui.step_numbers import NumberPacker, all_names, column_of

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
    rows = (table.steps, dict(sorted(table.rows.train.items())), dict(sorted(table.rows.val.items())))
    return *({step: dict(row) for step, row in steps.items()} for steps in rows), table.problem


def test_a_table_never_changes_and_its_rows_are_mappings(tmp_path: Path) -> None:
    path, kept = tmp_path / "history.jsonl", Histories()
    append_history_row(path, {"train/reward": 0.5, "loss/kl": 1, "step": 3})
    before = kept.table(path)
    assert kept.table(path) is before
    append_history_row(path, {"val/reward": 0.25, "step": 3})
    append_history_row(path, {"train/reward": "none", "step": 1})
    after = kept.table(path)
    row = {"train/reward": 0.5, "loss/kl": 1.0, "step": 3.0}
    assert plain(before) == ({3: row}, {3: row}, {}, None)
    assert dict(after.rows.train[3]) == row and dict(after.rows.val[3]) == {"val/reward": 0.25, "step": 3.0}
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
    explain_rows = run_reader.explain_rows
    monkeypatch.setattr(
        run_reader,
        "explain_rows",
        lambda path, run, rows: explained.append(run) or explain_rows(path, run, rows),
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


@pytest.mark.slow
@given(st.lists(st.dictionaries(NAMES, VALUES), max_size=6))
def test_rows_of_the_same_fields_are_packed_as_if_each_were_the_first(rows: list[dict[str, Any]]) -> None:
    """What is known of a row's fields is used for the next one, whose values may be of other types."""
    packer = NumberPacker()
    for row in rows:
        found = packer.pack(row)
        assert dict(found) == dict(NumberPacker().pack(row))
        assert found.keys() == {
            name for name, value in row.items() if type(value) in (int, float) and abs(value) < float("inf")
        }
    table = dict(enumerate(map(packer.pack, rows)))
    assert column_of(table, "loss/kl") == {
        step: row["loss/kl"] for step, row in table.items() if "loss/kl" in row
    }
    assert all_names(table.values()) == {name for row in table.values() for name in row}


def test_an_integer_that_no_float_holds_is_an_error_wherever_it_stands(tmp_path: Path) -> None:
    for known in ({}, {"a": 1, "b": 2.0}):
        packer = NumberPacker()
        packer.pack(known)
        with pytest.raises(OverflowError):
            packer.pack({"a": 10**400, "b": 2.0})
    made = made_run(tmp_path)
    with (made.model / "history.jsonl").open("a") as file:
        file.write('{"step": 3, "train/reward": 1' + "0" * 400 + "}\n")
    with pytest.raises(UnreadableFileError, match="step 3: a number is too large"):
        explain_model(made.model, "games/player")


def test_the_pages_of_a_new_process_parse_each_row_of_a_history_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run of 5,000 steps these are 20 MB: the list, the run's page and its findings share them."""
    made = made_run(tmp_path)
    for step in range(10, 60):
        made.history(step, **{"train/reward": 1.0, "train/reward_sem": 0.1})
    parsed: list[bytes] = []
    parse = model_files._parse_row
    monkeypatch.setattr(model_files, "_parse_row", lambda line: parsed.append(line) or parse(line))
    reader = RunReader(tmp_path)
    (run,) = reader.runs().values()
    runs_page([run])
    page = run_page(reader, next(iter(reader.runs().values())))
    assert page["step_count"] == 52 and page["findings"] is not None
    assert len(parsed) == len(set(parsed)) == len((made.model / "history.jsonl").read_text().splitlines())
