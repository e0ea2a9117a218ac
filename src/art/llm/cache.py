"""Answers kept on disk by what was asked: a run that goes on does not pay twice."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
import time
from pathlib import Path

from art.errors import ConfigurationError
from art.llm.request import Reply, Request, Usage

_LOGGER = logging.getLogger(__name__)

DEFAULT_PATH = Path(".art") / "llm-cache.sqlite3"
BUSY_S = 10.0

SCHEMA = """
create table if not exists answers (
    key text primary key, model text not null, text text not null, finish_reason text,
    prompt_tokens integer not null, completion_tokens integer not null, usd real, asked_at real not null
) without rowid
"""


def key_of(identity: str, request: Request) -> str:
    """sha256 (hex) of the model with its options, and of all of the request.

    The same question has the same key only if it is the same to the letter: what is random in a prompt (ids,
    an order) is drawn from a seed that follows from its content and the salt.
    """
    told = {
        "model": identity,
        "messages": [dict(message) for message in request.messages],
        "schema": request.schema,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "salt": request.salt,
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class AnswerCache:
    """One SQLite file (WAL), which several processes may share. The file holds the answers as text.

    A file that cannot be read or written while it is used costs an answer, not the run: a warning says so.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """path: None is `.art/llm-cache.sqlite3` of the current folder. It is opened when first used."""
        self.path = Path(path) if path is not None else Path.cwd() / DEFAULT_PATH
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def get(self, identity: str, request: Request) -> Reply | None:
        """The kept answer, marked `cached`; None when there is none."""
        select = (
            "select text, finish_reason, prompt_tokens, completion_tokens, usd from answers where key = ?"
        )
        rows = self._run(select, (key_of(identity, request),))
        if not rows:
            return None
        text, finish_reason, prompt, completion, usd = rows[0]
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, usd=usd)
        return Reply(text=text, finish_reason=finish_reason, usage=usage, cached=True)

    def put(self, identity: str, request: Request, reply: Reply) -> None:
        """Keep an answer; one that is kept already stays."""
        used = reply.usage
        self._run(
            "insert or ignore into answers values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                key_of(identity, request),
                # Hashed: among the options of a model may be a secret.
                hashlib.sha256(identity.encode()).hexdigest()[:16],
                reply.text,
                reply.finish_reason,
                used.prompt_tokens,
                used.completion_tokens,
                used.usd,
                time.time(),
            ),
        )

    def forget(self, identity: str, request: Request) -> None:
        """Drop an answer that was of no use, so that it is asked for anew."""
        self._run("delete from answers where key = ?", (key_of(identity, request),))

    def __len__(self) -> int:
        rows = self._run("select count(*) from answers", ())
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _run(
        self, statement: str, values: tuple[object, ...]
    ) -> list[tuple[str, str | None, int, int, float]]:
        with self._lock:
            connection = self._connection = self._connection or self._open()
            try:
                return connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                _LOGGER.warning("the answers' cache %s failed: %s", self.path, error)
                return []

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=normal")
            connection.execute(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the answers' cache {str(self.path)!r} cannot be used ({error}): give another path, or "
                "delete it"
            ) from error
        return connection
