"""The books of the matrix's judge: an answer that is on the run's disk is not paid for again."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path

import pytest
from bench.faults.outcome import contents
from bench.faults.paid_judge import JudgeBooks, read_books
from bench.faults.program import NotingLlm, RecordingCache, note_question

from art.errors import LlmUnavailableError
from art.rewards.llm.channel import Channel
from art.rewards.llm.names import resolve_llm
from art.rewards.llm.request import Reply, Request, Usage

pytestmark = pytest.mark.extension


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def put(cache: RecordingCache, text: str) -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=1, usd=None)
    cache.put("judge", Request(messages=tuple(messages(text))), Reply(text="good", usage=usage))


class Notes:
    """The three files of a run's judge, and the cache that writes the last of them."""

    def __init__(self, folder: Path) -> None:
        self.asked, self.sent, self.recorded = (folder / name for name in ("asked", "sent", "recorded"))
        self.cache = RecordingCache(str(folder / "answers.sqlite3"), str(self.recorded))

    def read(self, *, since: float = 0.0) -> JudgeBooks:
        return read_books(self.asked, self.sent, self.recorded, since=since)


def test_a_question_that_is_sent_after_its_answer_was_recorded_was_paid_twice(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    note_question(notes.asked, messages("of a run before"))
    begun = time.monotonic()
    for text in ("one", "two", "one"):  # the first answer to `one` was lost
        note_question(notes.sent, messages(text))
        note_question(notes.asked, messages(text))
    put(notes.cache, "one")
    put(notes.cache, "two")
    assert notes.read(since=begun) == JudgeBooks(asked=3, recorded=2, again=0, unheard=0)
    note_question(notes.sent, messages("two"))
    with notes.sent.open("a") as file:
        file.write('["half a li')
    assert notes.read(since=begun).again == 1
    assert notes.read(since=time.monotonic()).unheard == 2


def test_a_question_of_a_line_that_stalled_may_come_in_after_its_answer(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    for _ in range(2):  # the first is given up
        note_question(notes.sent, messages("one"))
    note_question(notes.asked, messages("one"))
    put(notes.cache, "one")
    note_question(notes.asked, messages("one"))
    assert notes.read().again == 0
    note_question(notes.asked, messages("one"))
    assert notes.read().again == 1, "something below the program sends it once more"


def test_each_sending_of_a_question_is_noted(tmp_path: Path) -> None:
    heard: list[str] = []

    def busy_once(asked: list[dict[str, str]]) -> str:
        heard.append(asked[0]["content"])
        if len(heard) == 1:
            raise LlmUnavailableError("busy")
        return "good"

    llm = NotingLlm(resolve_llm(busy_once), str(tmp_path / "sent"))
    question = Request(messages=tuple(messages("one")))
    assert asyncio.run(Channel(llm, first_wait=0.0).ask(question)).text == "good"
    assert heard == ["one", "one"]
    assert len((tmp_path / "sent").read_text().splitlines()) == 2


def test_an_answer_that_is_not_on_the_disk_is_not_recorded(tmp_path: Path) -> None:
    cache = RecordingCache(str(tmp_path / "answers.sqlite3"), str(tmp_path / "recorded.jsonl"))
    put(cache, "one")
    with contextlib.closing(sqlite3.connect(tmp_path / "answers.sqlite3")) as damaged:
        damaged.execute("DROP TABLE kept_answers")
    put(cache, "two")
    none = tmp_path / "none"
    assert read_books(none, none, tmp_path / "recorded.jsonl", since=0.0).recorded == 1


def test_a_file_that_a_replay_changes_is_seen(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "row").write_text("1")
    before = contents(tmp_path)
    assert before == contents(tmp_path)
    (tmp_path / "deep" / "row").write_text("2")
    (tmp_path / "new").write_text("")
    assert {name for name, _ in before.items() ^ contents(tmp_path).items()} == {"deep/row", "new"}
