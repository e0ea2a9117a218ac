"""The world of text-to-SQL: tables, what SQLite runs and refuses, the right query and the noisy ones."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "examples" / "text_to_sql"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import table_questions

    return table_questions


def test_the_right_query_finds_the_rows_that_python_finds(world: ModuleType) -> None:
    for number in range(100):
        question = world.draw_question("train 0", number)
        rows = [dict(zip(question.columns, row, strict=True)) for row in question.rows]
        fit = [row for row in rows if all((row[c] == v) == same for c, same, v in question.right.where)]
        column = question.right.column
        expected = sorted((row[column],) for row in fit) if column else [(len(fit),)]
        assert fit and world.result_of(question, question.right.sql) == expected
        assert world.is_right(question, question.right.sql)
        for condition in question.right.where[: len(question.right.where) - 1]:
            assert not world.is_right(question, replace(question.right, where=(condition,)).sql)


def test_another_text_that_finds_the_same_is_right_and_a_wrong_one_is_not(world: ModuleType) -> None:
    question = next(
        one
        for one in (world.draw_question("train 0", number) for number in range(100))
        if one.right.column and len(one.right.where) == 2
    )
    sql = question.right.sql
    assert world.is_right(question, f"SELECT {sql.removeprefix('select ')};")
    assert world.is_right(question, f"{sql} order by 1 desc")
    for wrong in ("", "select", "no sql", sql.replace("select ", "select distinct ", 1) + " limit 0"):
        assert not world.is_right(question, wrong)
    assert not world.is_right(question, replace(question.right, where=question.right.where[:1]).sql)
    assert not world.is_right(question, sql + "; " + sql)


@pytest.mark.parametrize(
    "sql",
    [
        "drop table {table}",
        "delete from {table}",
        "update {table} set {column} = 'x'",
        "insert into {table} select * from {table}",
        "create table other (x)",
        "pragma query_only = off",
        "attach 'other.sqlite' as other",
        "vacuum into 'other.sqlite'",
        "select randomblob(100000000)",
        "select load_extension('x')",
        "with recursive n(x) as (select 1 union all select x + 1 from n) select x from n",
    ],
)
def test_a_query_may_only_read(world: ModuleType, sql: str, tmp_path: Path) -> None:
    question = world.draw_question("train 0", 0)
    statement = sql.format(table=question.right.table, column=question.columns[0])
    with pytest.raises(sqlite3.Error, match=r"not authorized|authorization denied|prohibited"):
        world.result_of(question, statement)
    assert not world.is_right(question, statement)
    assert world.is_right(question, question.right.sql)


def test_a_query_has_a_limit_of_work_and_of_rows(world: ModuleType) -> None:
    question = world.draw_question("train 0", 0)
    table = question.right.table
    product = ", ".join(f"{table} t{number}" for number in range(6))
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        world.result_of(question, f"select count(*) from {product}")
    with pytest.raises(OverflowError, match="more than 1000 rows"):
        world.result_of(question, f"select t0.* from {table} t0, {table} t1")
    assert not world.is_right(question, f"select count(*) from {product}")


@pytest.mark.slow
def test_the_demonstrations_are_noisy_and_held_out_questions_are_not_trained_on(world: ModuleType) -> None:
    assert 0.3 < world.reference_scores()["the demonstrations"] < 0.6
    streams = ("careless", "school", "replies 0", "train 0")
    trained = {world.draw_question(stream, number).prompt for stream in streams for number in range(100)}
    assert not trained & {world.draw_question("held out", number).prompt for number in range(100)}


def test_the_data_set_is_a_file_of_conversations(world: ModuleType, tmp_path: Path) -> None:
    rows = world.demonstrations("school", 20, noisy=False)
    world.write_rows(tmp_path / "rows" / "right.jsonl", rows)
    read = [json.loads(line) for line in (tmp_path / "rows" / "right.jsonl").read_text().splitlines()]
    assert read == rows
    for number, row in enumerate(read):
        question = world.draw_question("school", number)
        assert row["messages"][0]["content"] == question.prompt
        assert row["messages"][1]["content"] == question.right.sql
