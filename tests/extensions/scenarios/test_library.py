from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from art.rewards.llm.channel import Channel
from art.rewards.llm.names import resolve_llm
from art_extensions.scenarios.mcp import connect
from art_extensions.scenarios.mcp_rl.settings import TrainSettings, checked_scenarios_of
from art_extensions.testing import LlmServer, ScriptedGenerator
from art_extensions.testing.mcp_servers.library import Database, QueryError, QueryLimits, create_server

GREEDY = """
    WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 5000),
    blobs AS MATERIALIZED (SELECT CAST(zeroblob(900000) AS TEXT) AS b FROM n)
    SELECT count(*) FROM (SELECT b FROM blobs ORDER BY b)
"""
"""Two gigabytes to sort."""


@pytest.fixture(scope="module")
def library() -> Database:
    return Database()


def test_the_schema_shows_how_tables_are_made_and_their_size(library: Database) -> None:
    whole = library.schema()
    assert [part.split()[2] for part in whole.split("\n\n")] == ["authors", "books", "members", "loans"]
    one = library.schema("books")
    assert one in whole and "genre TEXT NOT NULL" in one and one.endswith("-- 62 rows")
    with pytest.raises(QueryError, match="no such table: book; the tables are: authors, books"):
        library.schema("book")


def test_the_shipped_data_holds_together(library: Database) -> None:
    def one(sql: str) -> str:
        return library.query(sql).splitlines()[1]

    assert one("SELECT count(*) FROM books WHERE author_id NOT IN (SELECT id FROM authors)") == "0"
    assert one("SELECT count(*) FROM loans WHERE due_on <> date(lent_on, '28 days')") == "0"
    assert one("SELECT count(*) FROM loans WHERE returned_on < lent_on") == "0"
    assert int(one("SELECT count(*) FROM loans WHERE returned_on IS NULL")) > 5
    never = "SELECT count(*) FROM books WHERE id NOT IN (SELECT book_id FROM loans)"
    assert int(one(never)) > 0


def test_rows_come_as_lines_under_the_columns_names(library: Database) -> None:
    sql = "SELECT title AS book, year FROM books WHERE author_id = 15"
    assert library.query(sql) == "book | year\nLittle Women | 1868"
    assert library.query("SELECT 1 AS a, NULL AS b, x'00ff' AS c") == "a | b | c\n1 | NULL | <2 bytes>"
    assert library.query("SELECT id FROM books WHERE 0") == "id\n(no rows)"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("DELETE FROM books", "only SELECT is allowed"),
        ("UPDATE books SET copies = 9", "only SELECT is allowed"),
        ("CREATE TEMP TABLE t (x)", "only SELECT is allowed"),
        ("PRAGMA query_only = OFF", "only SELECT is allowed"),
        ("ATTACH '/tmp/other.db' AS other", "only SELECT is allowed"),
        ("SELECT load_extension('/tmp/x.so')", "only SELECT is allowed"),
        ("SELECT * FROM pragma_database_list", "only SELECT is allowed"),
        ("SELECT 1; DELETE FROM books", "one statement at a time"),
        ("SELECT * FROM shelves", "no such table: shelves"),
        ("SELEC 1", "syntax error"),
        ("-- nothing", "no SELECT"),
        ("SELECT hex(zeroblob(900000))", "too big"),
    ],
)
def test_whatever_is_no_harmless_select_is_refused(library: Database, sql: str, said: str) -> None:
    before = library.query("SELECT count(*), sum(copies) FROM books")
    with pytest.raises(QueryError, match=said):
        library.query(sql)
    assert library.query("SELECT count(*), sum(copies) FROM books") == before


def test_time_rows_and_cells_have_limits() -> None:
    limited = Database(limits=QueryLimits(rows=3, seconds=0.05, cell=10))
    with pytest.raises(QueryError, match=r"took longer than 0\.05 s"):
        limited.query("WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")
    lines = limited.query("SELECT id, title FROM books ORDER BY id").splitlines()
    assert lines[1:] == [
        "1 | Pride and ...",
        "2 | Emma",
        "3 | Persuasion",
        "(more rows follow; only the first 3 are shown)",
    ]
    limited.close()


async def test_as_a_server_both_tools_only_read() -> None:
    async with connect(create_server) as session:
        assert [(tool.name, tool.read_only) for tool in await session.tools()] == [
            ("schema", True),
            ("query", True),
        ]
        assert (await session.read_resource("database://schema")).startswith("CREATE TABLE authors")
        assert (await session.call("schema", {"table": "loans"})).text.startswith("CREATE TABLE loans")
        wrong = await session.call("query", {"sql": "DROP TABLE books"})
        assert wrong.is_error and "only SELECT is allowed here" in wrong.text


@pytest.mark.slow
async def test_a_database_of_ones_own_is_served_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    with sqlite3.connect(path) as own:
        own.execute("CREATE TABLE stars (name TEXT)")
        own.execute("INSERT INTO stars VALUES ('Vega')")
    own.close()
    before = path.read_bytes()
    command = [
        sys.executable,
        "-m",
        "art_extensions.testing.mcp_servers.library",
        "--database",
        str(path),
        "--seconds",
        "60",
    ]
    async with connect(command) as session:
        assert (await session.call("query", {"sql": "SELECT name FROM stars"})).text == "name\nVega"
        assert (await session.call("query", {"sql": "INSERT INTO stars VALUES ('Deneb')"})).is_error
        greedy = await session.call("query", {"sql": GREEDY})
        assert greedy.is_error and "memory" in greedy.text
        assert (await session.call("query", {"sql": "SELECT name FROM stars"})).text == "name\nVega"
    assert path.read_bytes() == before
    with pytest.raises(QueryError, match="no SQLite database"):
        Database(tmp_path / "missing.db")
    (tmp_path / "text.db").write_text("no database at all, although it is long enough" * 50)
    with pytest.raises(QueryError, match="no SQLite database"):
        Database(tmp_path / "text.db")


async def test_scenarios_are_generated_for_it_and_tried_on_it() -> None:
    def plan(sql: str) -> list[dict[str, Any]]:
        return [{"tool": "query", "arguments": {"sql": sql}}]

    good = {
        "How many books has Jane Austen written?": "SELECT count(*) FROM books WHERE author_id = 1",
        "Which member has borrowed the most?": "SELECT member_id FROM loans GROUP BY 1 ORDER BY count(*)",
        "List the novels with more than 500 pages.": "SELECT title FROM books WHERE pages > 500",
        "Who joined in 2024?": "SELECT name FROM members WHERE joined_on LIKE '2024%'",
    }
    bad = {
        "Which shelf is the fullest?": "SELECT shelf FROM books",
        "Throw away all the dramas.": "DELETE FROM books WHERE genre = 'drama'",
        "Tell me how many books Jane Austen has written!": "SELECT count(id) FROM books WHERE author_id = 1",
    }
    written = [{"task": task, "difficulty": 2, "plan": plan(sql)} for task, sql in {**good, **bad}.items()]
    written += [
        {"task": "What is in the cellar?", "difficulty": 1, "plan": [{"tool": "dig", "arguments": {}}]}
    ]
    written += [{"task": "Ask something.", "difficulty": 1, "plan": [{"tool": "query", "arguments": {}}]}]
    settings = TrainSettings(num_train=5, num_test=2)
    with LlmServer(ScriptedGenerator(scenarios=written)) as server:
        channel = Channel(resolve_llm("writer", base_url=server.base_url, api_key=server.key))
        made = await checked_scenarios_of(create_server, channel, settings)
    assert {one.task for one in (*made.train, *made.test)} == set(good) and len(made.test) == 2
    first = {one.task: one.reason for one in reversed(made.rejected)}
    assert {first[task] for task in ("Which shelf is the fullest?", "Throw away all the dramas.")} == {
        "failed_call"
    }
    assert first["Tell me how many books Jane Austen has written!"] == "near_duplicate"
    assert first["What is in the cellar?"] == "unknown_tool" and first["Ask something."] == "bad_arguments"
    prompt = server.requests[0]["messages"][0]["content"]
    assert "Run one SELECT" in prompt and "database://schema" in prompt
