"""Answers kept on disk by what was asked: a run that goes on does not pay twice."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.rewards.llm.database import exclusive_transaction, open_private
from art.rewards.llm.request import Reply, Request, Usage

_LOGGER = logging.getLogger(__name__)

DEFAULT_PATH = Path(".art") / "llm-cache.sqlite3"
LIMIT_BYTES = 1 << 30
SHARE_LEFT = 0.9
"""The share of the limit that is kept when the oldest answers go, so that they do not go one by one."""
BATCH = 1000
"""Answers that go in one statement, at most."""
LEAST_BYTES = 1 << 16
"""An empty file is half as large."""

SCHEMA = """
create table if not exists kept_answers (
    key text primary key, model text not null, text text not null, finish_reason text,
    prompt_tokens integer not null, completion_tokens integer not null, usd real,
    asked_at real not null, used_at real not null
) without rowid;
create index if not exists by_use on kept_answers (used_at);
"""
OF_OLDER_RELEASES = "select 1 from sqlite_master where name = 'answers'"
TAKE_OVER = """
insert or ignore into kept_answers
    select key, model, text, finish_reason, prompt_tokens, completion_tokens, usd, asked_at, asked_at
    from answers
"""


def key_of(identity: str, request: Request) -> str:
    """sha256 (hex) of the model with its options, and of all of the request.

    The same question has the same key only if it is the same to the letter: what is random in a prompt (ids,
    an order) is drawn from a seed that follows from its content and the salt.
    """
    question = {
        "model": identity,
        "messages": [dict(message) for message in request.messages],
        "schema": request.schema,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "salt": request.salt,
    }
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class AnswerCache:
    """One SQLite file (WAL), which several processes may share. The file holds the answers as text; a new one
    may be read by nobody else.

    A file that cannot be read or written while it is used costs an answer, not the run: a warning says so.
    """

    def __init__(self, path: str | Path | None = None, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """path: None is `.art/llm-cache.sqlite3` of the current folder. It is opened when first used.
        limit_bytes: of the file; beyond it the answers go that were not used for the longest time.

        Raises ConfigurationError for a limit below 65,536.
        """
        if limit_bytes < LEAST_BYTES:
            raise ConfigurationError(
                f"AnswerCache(limit_bytes={limit_bytes!r}): at least {LEAST_BYTES}; to keep nothing, give no "
                "cache"
            )
        self.path = Path(path) if path is not None else Path.cwd() / DEFAULT_PATH
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def get(self, identity: str, request: Request) -> Reply | None:
        """The kept answer, marked `cached`; None when there is none."""
        key = key_of(identity, request)
        columns = "text, finish_reason, prompt_tokens, completion_tokens, usd"
        rows = self._run(f"select {columns} from kept_answers where key = ?", (key,))
        if not rows:
            return None
        self._run("update kept_answers set used_at = ? where key = ?", (time.time(), key))
        text, finish_reason, prompt, completion, usd = rows[0]
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, usd=usd)
        return Reply(text=text, finish_reason=finish_reason, usage=usage, cached=True)

    def put(self, identity: str, request: Request, reply: Reply) -> None:
        """Keep an answer; one that is kept already stays."""
        used, now = reply.usage, time.time()
        self._run(
            "insert or ignore into kept_answers values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key_of(identity, request),
                # Hashed: among the options of a model may be a secret.
                hashlib.sha256(identity.encode()).hexdigest()[:16],
                reply.text,
                reply.finish_reason,
                used.prompt_tokens,
                used.completion_tokens,
                used.usd,
                now,
                now,
            ),
        )
        self._make_room()

    def forget(self, identity: str, request: Request) -> None:
        """Drop an answer that was of no use, so that it is asked for anew."""
        self._run("delete from kept_answers where key = ?", (key_of(identity, request),))

    def __len__(self) -> int:
        rows = self._run("select count(*) from kept_answers", ())
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _make_room(self) -> None:
        if self._bytes() <= self.limit_bytes:
            return
        oldest = "select key from kept_answers order by used_at limit ?"
        while (over := self._bytes() - SHARE_LEFT * self.limit_bytes) > 0 and (count := len(self)):
            # As many as are too much, if all were alike; a few at least, and not so many that others wait.
            many = min(BATCH, 1 + int(count * over / self._bytes()))
            gone = f"delete from kept_answers where key in ({oldest}) returning 1"
            if not self._run(gone, (many,)):  # it failed, and may fail for ever: the disk is full
                return
        # Not `execute`, which makes one step of it: one page is given back.
        self._query(lambda connection: connection.executescript("pragma incremental_vacuum"))

    def _bytes(self) -> int:
        """Returns the bytes of the pages in use; 0 if the file fails."""
        rows = self._run(
            "select (page_count - freelist_count) * page_size "
            "from pragma_page_count, pragma_freelist_count, pragma_page_size",
            (),
        )
        return int(rows[0][0]) if rows else 0

    def _run(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self._query(lambda connection: connection.execute(statement, values))

    def _query(self, work: Callable[[sqlite3.Connection], sqlite3.Cursor]) -> list[tuple[Any, ...]]:
        with self._lock:
            connection = self._connection = self._connection or self._open()
            try:
                return work(connection).fetchall()
            except sqlite3.Error as error:
                _LOGGER.warning("the answers' cache %s failed: %s", self.path, error)
                return []

    def _open(self) -> sqlite3.Connection:
        try:
            connection = open_private(self.path, SCHEMA)
            with exclusive_transaction(connection):
                if connection.execute(OF_OLDER_RELEASES).fetchone():
                    connection.execute(TAKE_OVER)
                    connection.execute("drop table answers")
                    self.path.chmod(0o600)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the answers' cache {str(self.path)!r} cannot be used ({error}): give another path, or "
                "delete it"
            ) from error
        return connection
