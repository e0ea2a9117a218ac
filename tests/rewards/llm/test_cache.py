"""The file of kept answers: how large it grows, what goes first, who may read it."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from art.errors import ConfigurationError
from art.rewards.llm import AnswerCache, Reply, Request

LIMIT = 1 << 20


def question(number: int) -> Request:
    return Request(messages=({"role": "user", "content": f"question {number}"},))


def fill(cache: AnswerCache, numbers: range, *, length: int = 10_000) -> None:
    for number in numbers:
        cache.put("judge", question(number), Reply(text=f"{number} " + "x" * length))


def kept(cache: AnswerCache, numbers: range) -> list[int]:
    """Asking uses them."""
    return [number for number in numbers if cache.get("judge", question(number)) is not None]


def aged(path: Path, seconds: float) -> None:
    """As if all that was done to the file had been done earlier."""
    with sqlite3.connect(path) as connection:
        connection.execute("update kept_answers set used_at = used_at - ?", (seconds,))


def test_the_file_stays_within_its_limit_and_the_newest_answers_in_it(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    cache = AnswerCache(path, limit_bytes=LIMIT)
    fill(cache, range(600))
    here = kept(cache, range(600))
    assert here == list(range(600 - len(here), 600)) and 60 < len(here) < 110
    cache.close()
    assert path.stat().st_size < 1.1 * LIMIT


def test_what_was_used_lately_stays(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers", limit_bytes=LIMIT)
    fill(cache, range(50))
    aged(cache.path, 100)
    assert kept(cache, range(10)) == list(range(10))
    fill(cache, range(50, 110))
    assert kept(cache, range(10)) == list(range(10)) and not kept(cache, range(10, 25))


def test_a_smaller_limit_makes_a_smaller_file(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    cache = AnswerCache(path)
    fill(cache, range(200))
    cache.close()
    before = path.stat().st_size
    smaller = AnswerCache(path, limit_bytes=LIMIT // 2)
    fill(smaller, range(200, 201))
    assert kept(smaller, range(200, 201)) == [200]
    smaller.close()
    assert path.stat().st_size < LIMIT < before


def test_an_answer_that_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path / "answers", limit_bytes=1 << 16)
    fill(cache, range(1), length=1 << 17)
    assert len(cache) == 0


def test_too_small_a_limit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 65536"):
        AnswerCache(limit_bytes=0)


def test_nobody_else_may_read_the_answers(tmp_path: Path) -> None:
    path = tmp_path / "own" / "answers"
    cache = AnswerCache(path)
    fill(cache, range(1))
    files = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
    assert files == dict.fromkeys(("answers", "answers-wal", "answers-shm"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    cache.close()
    path.chmod(0o660)  # somebody's choice, which stays
    fill(cache, range(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_answers_of_older_releases_are_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    fill(before := AnswerCache(path), range(3))
    before.close()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "create table answers as select key, model, text, finish_reason, prompt_tokens, "
            "completion_tokens, usd, asked_at from kept_answers"
        )
        connection.execute("drop table kept_answers")
    path.chmod(0o644)
    cache = AnswerCache(path)
    assert kept(cache, range(5)) == [0, 1, 2] and stat.S_IMODE(path.stat().st_mode) == 0o600
    beside = AnswerCache(path)
    assert len(beside) == 3


def test_a_file_that_takes_nothing_any_more_costs_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = AnswerCache(tmp_path / "answers")
    fill(cache, range(50))
    assert cache._connection is not None
    cache._connection.execute("pragma query_only = 1")  # as on a disk that is full: nothing can be written
    cache.limit_bytes = 1 << 16
    fill(cache, range(50, 51))
    assert len(cache) == 50 and "failed" in caplog.text


def test_a_file_of_another_layout_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    with sqlite3.connect(path) as connection:
        connection.execute("create table kept_answers (key text primary key, used_at real)")
    with pytest.raises(ConfigurationError, match=r"columns key, used_at in place of key, model.*delete it"):
        AnswerCache(path).get("judge", question(1))
