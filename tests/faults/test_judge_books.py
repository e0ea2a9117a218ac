"""The books of the matrix's judge: an answer that is on the run's disk is not paid for again."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest
from bench.faults.outcome import contents
from bench.faults.paid_judge import JudgeBooks, read_books
from bench.faults.program import RecordingCache, note_question

from art.rewards.llm.request import Reply, Request, Usage

pytestmark = pytest.mark.extension


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def put(cache: RecordingCache, text: str) -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=1, usd=None)
    cache.put("judge", Request(messages=tuple(messages(text))), Reply(text="good", usage=usage))


def test_a_question_that_comes_in_after_its_answer_was_recorded_was_paid_twice(tmp_path: Path) -> None:
    asked, recorded = tmp_path / "asked.jsonl", tmp_path / "recorded.jsonl"
    note_question(asked, messages("of a run before"))
    begun = time.monotonic()
    cache = RecordingCache(str(tmp_path / "answers.sqlite3"), str(recorded))
    for text in ("one", "two", "one"):  # the first answer to `one` was lost
        note_question(asked, messages(text))
    put(cache, "one")
    put(cache, "two")
    assert read_books(asked, recorded, since=begun) == JudgeBooks(asked=3, recorded=2, again=0, unheard=0)
    note_question(asked, messages("two"))
    with asked.open("a") as file:
        file.write('["half a li')
    assert read_books(asked, recorded, since=begun).again == 1
    assert read_books(asked, recorded, since=time.monotonic()).unheard == 2


def test_an_answer_that_is_not_on_the_disk_is_not_recorded(tmp_path: Path) -> None:
    cache = RecordingCache(str(tmp_path / "answers.sqlite3"), str(tmp_path / "recorded.jsonl"))
    put(cache, "one")
    with contextlib.closing(sqlite3.connect(tmp_path / "answers.sqlite3")) as damaged:
        damaged.execute("DROP TABLE kept_answers")
    put(cache, "two")
    assert read_books(tmp_path / "none", tmp_path / "recorded.jsonl", since=0.0).recorded == 1


def test_a_file_that_a_replay_changes_is_seen(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "row").write_text("1")
    before = contents(tmp_path)
    assert before == contents(tmp_path)
    (tmp_path / "deep" / "row").write_text("2")
    (tmp_path / "new").write_text("")
    assert {name for name, _ in before.items() ^ contents(tmp_path).items()} == {"deep/row", "new"}
