"""The world of text-to-SQL: tables, questions about them, queries that SQLite runs, and noisy demonstrations.

python examples/text_to_sql/table_questions.py noisy.jsonl   # a data set for fine-tuning
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "name": tuple("alice bob carol dave emma frank grace henry iris jack kate leo maria".split()),
    "city": tuple("paris london berlin rome madrid oslo cairo tokyo delhi lima boston denver".split()),
    "color": tuple("red blue green yellow black white pink brown gray orange purple gold".split()),
    "animal": tuple("cat dog horse cow pig sheep goat lion tiger bear wolf fox rabbit".split()),
    "food": tuple("bread rice soup cheese egg pasta salad cake honey butter salt sugar".split()),
    "job": tuple("doctor teacher farmer baker pilot sailor driver painter singer writer".split()),
    "fruit": tuple("apple banana cherry grape lemon lime mango melon peach pear plum fig".split()),
    "place": tuple("house garden river forest beach island mountain valley road bridge".split()),
}
NAMES = ("user", "ticket", "item", "room", "game", "mail")
ROWS, WIDTH, VALUES = 48, 5, 6
"""Of a table; of each column's words, a table has a few."""
MOST_WORK = 200
"""Thousands of steps of SQLite's machine that a query may take: the same limit on a busy computer."""
MOST_ROWS = 1000
FUNCTIONS = frozenset({"count", "min", "max", "sum", "avg", "length", "lower", "upper"})


@dataclass(frozen=True)
class Query:
    """One SELECT of a column or of the count of rows (None); its conditions: column, equal or not, value."""

    table: str
    column: str | None
    where: tuple[tuple[str, bool, str], ...]

    @property
    def sql(self) -> str:
        tests = " and ".join(
            f"{column} {'=' if same else '!='} '{value}'" for column, same, value in self.where
        )
        return f"select {self.column or 'count(*)'} from {self.table} where {tests}"

    @property
    def question(self) -> str:
        tests = " and ".join(
            f"{column} {'is' if same else 'not'} {value}" for column, same, value in self.where
        )
        return f"Which {self.column} if {tests}?" if self.column else f"count {self.table} if {tests}"


@dataclass(frozen=True)
class TableQuestion:
    """A table, and a question about it as the query that answers it."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: Query

    @property
    def prompt(self) -> str:
        """Returns what the model sees: the table's name, its columns and the question, but no rows."""
        return f"table {self.right.table}: {', '.join(self.columns)}\n{self.right.question}"

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def count(self, where: Sequence[tuple[str, bool, str]]) -> int:
        """Returns the number of rows that fit all of the conditions."""
        named = (dict(zip(self.columns, row, strict=True)) for row in self.rows)
        return sum(all((row[column] == value) == same for column, same, value in where) for row in named)


def draw_question(stream: str, number: int) -> TableQuestion:
    """Returns question `number` of a stream, about a table of its own.

    Some row fits all conditions, and without any one of them more rows would fit.
    """
    dice = random.Random(f"{stream}/{number}")
    while True:
        question = _drawn(dice)
        where, count = question.right.where, question.count
        if count(where) and all(
            count((*where[:at], *where[at + 1 :])) > count(where) for at in range(len(where))
        ):
            return question


def _drawn(dice: random.Random) -> TableQuestion:
    columns = tuple(dice.sample(sorted(COLUMNS), WIDTH))
    known = [dice.sample(COLUMNS[column], VALUES) for column in columns]
    rows = tuple(tuple(map(dice.choice, known)) for _ in range(ROWS))
    asked, *tested = dice.sample(range(WIDTH), dice.choice((2, 3, 3)))
    where = [(columns[at], True, dice.choice(known[at])) for at in tested]
    if len(where) == 2 and dice.random() < 0.5:
        where[1] = (where[1][0], False, where[1][2])
    column = None if dice.random() < 0.3 else columns[asked]
    return TableQuestion(columns, rows, Query(dice.choice(NAMES), column, tuple(where)))


def only_reading(action: int, _: str | None, called: str | None, *__: str | None) -> int:
    """Returns the verdict on a part of a statement: it may select, read, and call a few functions."""
    known = action == sqlite3.SQLITE_FUNCTION and str(called).lower() in FUNCTIONS
    allowed = known or action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def result_of(question: TableQuestion, sql: str) -> list[tuple[Any, ...]]:
    """Returns the rows that a query finds in the question's table, in a fixed order.

    Raises sqlite3.Error, with SQLite's own text, where the query is no valid one, is not a SELECT, or takes
    too much work; and OverflowError where it finds more than 1,000 rows.
    """
    with closing(sqlite3.connect(":memory:")) as table:
        name, places = question.right.table, ", ".join("?" * len(question.columns))
        table.execute(f"create table {name} ({', '.join(f'{column} text' for column in question.columns)})")
        table.executemany(f"insert into {name} values ({places})", question.rows)
        table.commit()
        table.execute("pragma query_only = on")
        table.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 1000)
        table.set_authorizer(only_reading)
        left = iter(range(MOST_WORK))
        table.set_progress_handler(lambda: next(left, None) is None, 1000)
        found = table.execute(sql).fetchmany(MOST_ROWS + 1)
    if len(found) > MOST_ROWS:
        raise OverflowError(f"the query finds more than {MOST_ROWS} rows")
    return sorted(found, key=repr)


def is_right(question: TableQuestion, sql: str) -> bool:
    """Returns whether a query is one and finds what the right one finds."""
    try:
        return result_of(question, sql) == result_of(question, question.right.sql)
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError):
        return False


def noisy_query(question: TableQuestion, dice: random.Random) -> Query:
    """Returns the query of somebody who takes a wrong column, forgets a condition, or overlooks a `not`."""
    query = question.right
    if query.column is not None and dice.random() < 0.35:
        query = replace(query, column=dice.choice(question.columns))
    if len(query.where) > 1 and dice.random() < 0.35:
        query = replace(query, where=query.where[:1])
    if dice.random() < 0.5:
        query = replace(query, where=tuple((column, True, value) for column, _, value in query.where))
    if dice.random() < 0.25:
        (_, same, value), *rest = query.where
        query = replace(query, where=((dice.choice(question.columns), same, value), *rest))
    return query


def demonstrations(stream: str, count: int, *, noisy: bool) -> list[dict[str, Any]]:
    """Returns rows for fine-tuning: a question, and a query that is right or noisy."""
    rows = []
    for number in range(count):
        question = draw_question(stream, number)
        dice = random.Random(f"{stream}/writer/{number}")
        query = noisy_query(question, dice) if noisy else question.right
        rows.append({"messages": [*question.messages, {"role": "assistant", "content": query.sql}]})
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def reference_scores() -> dict[str, float]:
    """Returns the share of right queries of the demonstrations."""
    questions = [draw_question("careless", number) for number in range(300)]
    rows = demonstrations("careless", 300, noisy=True)
    right = [is_right(one, row["messages"][-1]["content"]) for one, row in zip(questions, rows, strict=True)]
    return {"the demonstrations": sum(right) / len(right)}


if __name__ == "__main__":
    write_rows(Path(sys.argv[1]), demonstrations("careless", 1600, noisy=True))
