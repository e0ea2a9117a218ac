"""The index: what it has, its pages, and that it is rebuilt from the files alone."""

from __future__ import annotations

import itertools
import random
import sqlite3
from pathlib import Path

import pytest
from made_run import MadeRun, made_run, trajectory

import art
from art_extensions.ui.index import _TOGETHER, INDEX_FILE, ORDERS, PAGE, ListQuery, RolloutIndex
from art_extensions.ui.run_files import RunFiles, find_runs


def only_run(root: Path) -> RunFiles:
    (run,) = find_runs(root).values()
    return run


def large_run(root: Path) -> RunFiles:
    """Two steps with more rollouts than two pages hold; many share a reward, some have none."""
    made, draw = MadeRun(root), random.Random(0)
    for step in (1, 2):
        groups = [
            [
                trajectory(f"r{step}.{g}.{t}", art.Unscored("?") if t == 0 else float(draw.randrange(3)), "x")
                for t in range(5)
            ]
            for g in range(PAGE // 4)
        ]
        made.step(step, groups, record=step == 2)
    return only_run(root)


@pytest.mark.slow
def test_pages_are_the_sorted_list_each_rollout_once(tmp_path: Path) -> None:
    run = large_run(tmp_path)
    index = RolloutIndex(tmp_path)
    version = index.refresh(run)
    again = RolloutIndex(tmp_path)
    for order, down in itertools.product(ORDERS, (False, True)):
        query = ListQuery(run=run.key, order=order, descending=down)
        count = index.count(query)
        pages = [index.page(query, number, version) for number in range(-(-count // PAGE))]
        rows = [row for page in pages for row in page]
        assert len(rows) == count == len({(row.step, row.grp, row.place) for row in rows})
        assert index.page(query, len(pages), version) == [] and index.page(query, -1, version) == []
        values = [getattr(row, order) for row in rows]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=down)
        last = [None] * (count - len(known))
        assert values == (known + last if down else last + known)
        # A page in the middle is the same without those before it.
        assert again.page(query, 1, version) == pages[1]


def test_filters_narrow_a_list(tmp_path: Path) -> None:
    made_run(tmp_path)
    run, index = only_run(tmp_path), RolloutIndex(tmp_path)
    index.refresh(run)
    failed = index.rows(ListQuery(run=run.key, fate="failed"))
    assert [row.unscored for row in failed] == ["TimeoutError: too slow"] * 2
    assert index.count(ListQuery(run=run.key, step=2, group=1)) == 2
    assert index.count(ListQuery(run=run.key, text="who")) == 8
    assert index.count(ListQuery(run=run.key, text="%")) == 0
    assert index.fates(ListQuery(run=run.key)) == {"trained": 8, "failed": 2}


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from art_extensions.ui import index as module

    made = made_run(tmp_path)
    read: list[int] = []
    rows_of_step = module.rows_of_step
    monkeypatch.setattr(
        module, "rows_of_step", lambda run, split, step: read.append(step) or rows_of_step(run, split, step)
    )
    run, index = only_run(tmp_path), RolloutIndex(tmp_path)
    first = index.refresh(run)
    assert index.refresh(only_run(tmp_path)) == first and read == [1, 2]
    made.step(3, [[trajectory("new", 1.0, "x"), trajectory("new2", 0.0, "y")]])
    assert index.refresh(only_run(tmp_path)) != first and read == [1, 2, 3]
    with (made.model / "steps" / "0001" / "rollouts.jsonl").open("a") as file:
        file.write('{"rollout": "s1a", "reward": 0.25}\n')
    index.refresh(only_run(tmp_path))
    assert read == [1, 2, 3, 1]
    assert index.rows(ListQuery(run=run.key, step=1, group=0))[0].reward == 0.25
    (made.model / "trajectories" / "train" / "0003.parquet").unlink()
    (made.model / "steps" / "0003" / "rollouts.jsonl").unlink()
    (made.model / "steps" / "0003").rmdir()
    index.refresh(only_run(tmp_path))
    assert index.count(ListQuery(run=run.key, step=3)) == 0


@pytest.mark.parametrize("damage", ["garbage", "older", "gone"])
def test_a_damaged_older_or_deleted_index_is_made_anew(tmp_path: Path, damage: str) -> None:
    made_run(tmp_path)
    run, first = only_run(tmp_path), RolloutIndex(tmp_path)
    first.refresh(run)
    rows = first.rows(ListQuery(run=run.key))
    first.close()
    file = tmp_path / INDEX_FILE
    if damage == "garbage":
        file.write_bytes(b"garbage" * 1000)
    elif damage == "older":
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version = 999")
    else:
        file.unlink()
    again = RolloutIndex(tmp_path)
    again.refresh(run)
    assert again.rows(ListQuery(run=run.key)) == rows


def test_a_folder_that_cannot_be_written_is_indexed_in_memory(tmp_path: Path) -> None:
    made_run(tmp_path)
    (tmp_path / INDEX_FILE).mkdir()  # no file can take its place
    run, index = only_run(tmp_path), RolloutIndex(tmp_path)
    index.refresh(run)
    assert index.count(ListQuery(run=run.key)) == 10


def test_a_damaged_log_has_no_rows_and_stops_no_other(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    (made.model / "trajectories" / "train" / "0001.parquet").write_bytes(b"PAR1 not really")
    run, index = only_run(tmp_path), RolloutIndex(tmp_path)
    index.refresh(run)
    assert [row.logged for row in index.rows(ListQuery(run=run.key, step=1))] == [0] * 5
    assert index.count(ListQuery(run=run.key, step=2)) == 5


def test_the_extreme_rewards_and_the_sums_of_groups_are_those_of_all_rollouts(tmp_path: Path) -> None:
    run = large_run(tmp_path)
    index = RolloutIndex(tmp_path)
    assert index.extreme_rewards(run.key) == []
    index.refresh(run)
    rows = [row for row in index.rows(ListQuery(run=run.key)) if row.reward is not None]
    assert index.extreme_rewards(run.key) == [
        min(row.reward or 0.0 for row in rows),
        max(row.reward or 0.0 for row in rows),
    ]
    every = index.group_sums(run.key, "train", range(1000))
    assert index.group_sums(run.key, "train", [2]) == {2: every[2]} and set(every) == {1, 2}
    assert index.group_sums(run.key, "train", []) == {}
    for step, sums in every.items():
        own = [row for row in rows if row.step == step]
        assert sorted(sums) == sorted(
            (sum(r.reward or 0.0 for r in group), len(group))
            for group in ([r for r in own if r.grp == g] for g in {r.grp for r in own})
        )


def test_many_steps_are_indexed_and_a_file_that_was_rewritten_is_read_again(tmp_path: Path) -> None:
    made = MadeRun(tmp_path)
    for step in range(1, _TOGETHER + 3):
        made.step(step, [[trajectory(f"r{step}", 1.0, "x")]], record=step % 2 == 0)
    index = RolloutIndex(tmp_path)
    before = index.refresh(only_run(tmp_path))
    key = only_run(tmp_path).key
    # Each record has a rollout more than the log: the one that failed.
    assert index.count(ListQuery(run=key)) == _TOGETHER + 2 + (_TOGETHER + 2) // 2
    assert index.refresh(only_run(tmp_path)) == before
    path = made.model / "trajectories" / "train" / "0003.parquet"
    path.unlink()
    assert index.refresh(only_run(tmp_path)) != before
    assert index.count(ListQuery(run=key, step=3)) == 0
    made.step(3, [[trajectory("again", 0.25, "x"), trajectory("twice", 0.5, "x")]], record=False)
    index.refresh(only_run(tmp_path))
    assert [row.reward for row in index.rows(ListQuery(run=key, step=3))] == [0.25, 0.5]
