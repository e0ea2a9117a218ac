"""A long history is read again and again: only the rows that are asked for are parsed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art.errors import UnreadableFileError
from art.tracking import model_files
from art.tracking.model_files import MetricHistory, append_history_row, best_step, read_history
from art.tracking.names import history_row, spellings

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
    parsed: list[bytes] = []
    parse = model_files._parse_row
    monkeypatch.setattr(model_files, "_parse_row", lambda line: parsed.append(line) or parse(line))
    assert best_step(path, "val/reward") == 700 and len(parsed) == 1
    assert [one["step"] for one in read_history(path, steps=(12,))] == [12] and len(parsed) == 2


def best_of_all(path: Path, metric: str) -> int | None:
    """The best step by a reading of the whole history, as it was found once."""
    found: dict[str, dict[int, list[float]]] = {name: {} for name in spellings(metric)}
    for row in read_history(path, names=found):
        for name in found.keys() & row.keys():
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                step, value = int(row["step"]), float(row[name])
                found[name].setdefault(step, []).append(value)
    values = next((values for values in found.values() if values), {})
    return max(values, key=lambda step: (fmean(values[step]), step), default=None)


TEXTS = st.sampled_from(
    [b"\n", b"{", b'{"val/reward": "x", "step": 1}\n', b'{"val/reward": 5, "step": [2]}\n', b"[1]\n", b'{"a"']
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), ROWS),
        st.tuples(st.just("text"), TEXTS),
        st.tuples(st.just("torn"), st.tuples(st.integers(0, 9), st.floats(-1, 1))),
        st.tuples(st.just("cut"), st.integers(0, 2000)),
        st.tuples(st.just("again"), ROWS),
        st.tuples(st.just("gone"), st.none()),
    ),
    max_size=8,
)


@pytest.mark.slow
@given(CHANGES, st.sampled_from(("val/reward", "train/reward", "reward/val")))
def test_a_reading_that_goes_on_finds_the_step_of_a_whole_one(
    tmp_path_factory: pytest.TempPathFactory, changes: Any, metric: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "grown.jsonl"
    path.unlink(missing_ok=True)
    read = MetricHistory(path, metric)
    for kind, change in changes:
        if kind == "rows":
            for metrics, step, _ in change:
                append_history_row(path, {**metrics, "step": step})
        elif kind == "again":
            write_rows(path, change)
        elif kind == "gone":
            path.unlink(missing_ok=True)
        elif path.exists():
            with path.open("r+b") as file:
                if kind == "cut":
                    file.truncate(min(change, path.stat().st_size))
                file.seek(0, 2)
                if kind == "text":
                    file.write(change)
                if kind == "torn":
                    file.write(b'{"%b": %f, "step": %d}' % (metric.encode(), change[1], change[0]))
        assert read.best_step() == best_of_all(path, metric)


def test_each_row_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.jsonl"
    seen: list[bytes | None] = []
    lines = model_files.read_lines

    def watched(file: Any) -> Any:
        for number, line in lines(file):
            seen.append(line)
            yield number, line

    monkeypatch.setattr(model_files, "read_lines", watched)
    read = MetricHistory(path, "val/reward")
    for step in range(50):
        append_history_row(path, {"val/reward": -abs(step - 20), "step": step})
        assert read.best_step() == min(step, 20)
    assert len(seen) == 50


def test_what_no_log_writes_is_named_with_its_line_each_time(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    read = MetricHistory(path, "val/reward")
    for step in range(3):
        append_history_row(path, {"val/reward": 1.0, "step": step})
    assert read.best_step() == 2
    with path.open("ab") as file:
        file.write(b'{"val/reward": \xff}\n')
    for _ in range(2):
        with pytest.raises(UnreadableFileError, match="line 4"):
            read.best_step()


@pytest.mark.parametrize("has_orjson", [True, False])
def test_rows_are_the_same_with_and_without_orjson(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_orjson: bool
) -> None:
    if not has_orjson:
        monkeypatch.setattr(model_files, "orjson", None)
    path = tmp_path / "history.jsonl"
    rows = [
        b'{"a": 1.5, "b": NaN}',
        b'{"a": "\\ud800"}',
        b'{"torn',
        b"[1]",
        b'{"n": [[1]], "a": 1e400}',
        b"{}",
    ]
    path.write_bytes(b"\n".join(rows) + b"\n")
    read = list(read_history(path))
    assert repr(read) == repr(
        [{"a": 1.5, "b": float("nan")}, {"a": "\ud800"}, {"n": [[1]], "a": float("inf")}, {}]
    )
    path.write_bytes(b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}\n")
    with pytest.raises(UnreadableFileError, match="line 1"):
        list(read_history(path))
