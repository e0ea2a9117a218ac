"""A teacher behind HTTP, asked as vLLM (0.32) answers.

`POST {url}/completions` with token ids as the prompt and `prompt_logprobs: 0` gives the list
`choices[0].prompt_logprobs`: null (the first id has no logprob), then `{"<id>": {"logprob": x, ...}}` for
each id. The teacher must share the tokenizer, since it is shown ids.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from art.errors import (
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    NotFoundError,
    RequestError,
    ServerError,
    ServerUnreachableError,
    TokenMismatchError,
    UnreadableFileError,
)
from art.process.foreign_files import ask_foreign, parse_json
from art.server.settings import TeacherSettings, is_loopback
from art.wire.algorithm import TeacherSpec

_BUSY = frozenset({429, 500, 502, 503, 504})
_ROUNDING = 1e-3
"""A logprob so little above 0 is that of a probability rounded up to 1."""
_LONGEST_WAIT = 60.0
REPLY_BYTES, ID_BYTES = 1 << 20, 512
"""Limits of a reply: in all, and further ones for each id. vLLM says an id in about 100."""


class HttpTeacher:
    """One endpoint. Raises ConfigurationError where the settings do not allow to ask it."""

    def __init__(self, spec: TeacherSpec, settings: TeacherSettings, *, listed_only: bool = False) -> None:
        assert spec.url is not None and spec.model is not None
        self.url, self.model = spec.url.rstrip("/"), spec.model
        self._shown = f"teacher {self.model!r} at {self.url}"
        self._settings = settings
        listed = self.url in {url.rstrip("/") for url in settings.urls}
        # For a tenant the server's own machine is foreign ground, too: its other services listen there.
        if not listed and (listed_only or not _on_this_machine(self.url)):
            # A tenant is not shown what the operator listed.
            where = "not" if listed_only else "neither on this machine nor"
            known = "" if listed_only else f" {settings.urls!r}"
            raise ConfigurationError(
                f"teacher url {self.url!r} is {where} one of the server's `teacher.urls`{known}: a job may "
                "not send the server elsewhere. List it in the server's settings or in the variable "
                "ART_TEACHER_URL."
            )
        self._key = settings.key if listed else None

    async def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """`len(row) - 1` numbers a row: the logprob of each id given those before it, temperature 1.

        Raises DeadlineError, ServerUnreachableError, AuthenticationError, NotFoundError, RequestError and
        ServerError as the teacher answers, TokenMismatchError where it answers about other ids, or what
        cannot be read.
        """
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        gate = asyncio.Semaphore(self._settings.concurrency)
        async with httpx.AsyncClient(headers=headers, timeout=self._settings.request) as client:

            async def score(row: Sequence[int]) -> list[float]:
                async with gate:
                    return self._read(row, await self._ask(client, row))

            try:
                async with asyncio.timeout(self._settings.total), asyncio.TaskGroup() as group:
                    tasks = [group.create_task(score(row)) for row in rows]
            except TimeoutError as error:
                raise DeadlineError(
                    f"{self._shown} has not scored {len(rows)} rows within "
                    f"{self._settings.total:g} s (`teacher.total` of the server's settings)"
                ) from error
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, client: httpx.AsyncClient, row: Sequence[int]) -> httpx.Response:
        body = {
            "model": self.model,
            "prompt": [int(one) for one in row],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        for attempt in range(1, self._settings.attempts + 1):
            wait = self._settings.retry_wait * 2 ** (attempt - 1)
            try:
                most = REPLY_BYTES + ID_BYTES * len(row)
                url = f"{self.url}/completions"
                response = await ask_foreign(client, "POST", url, most_bytes=most, body=body)
            except UnreadableFileError as error:
                raise TokenMismatchError(
                    f"{self._shown} gives no logprobs of {len(row)} ids: its answer cannot be read, {error}"
                ) from error
            except httpx.TimeoutException:
                problem: Exception = DeadlineError(
                    f"{self._shown} did not answer within {self._settings.request:g} s"
                )
            except httpx.TransportError as error:
                problem = ServerUnreachableError(
                    f"{self._shown} cannot be reached ({type(error).__name__}: {error})"
                )
            else:
                if response.status_code == 200:
                    return response
                problem = self._refused(response)
                if response.status_code not in _BUSY:
                    raise problem
                wait = _asked_to_wait(response, wait)
            if attempt < self._settings.attempts:
                await asyncio.sleep(min(wait, _LONGEST_WAIT))
        raise problem

    def _refused(self, response: httpx.Response) -> ServerError:
        status = response.status_code
        kind: type[ServerError] = {
            401: AuthenticationError,
            403: AuthenticationError,
            404: NotFoundError,
        }.get(status, RequestError if status < 500 and status != 429 else ServerError)
        return kind(f"{self._shown} answers {status}: {response.text[:500]}", status=status)

    def _read(self, row: Sequence[int], response: httpx.Response) -> list[float]:
        try:
            given = parse_json(response.content)["choices"][0]["prompt_logprobs"]
            size = len(given) if isinstance(given, list) else given
            if size != len(row):
                raise TokenMismatchError(
                    f"{self._shown} gives {size} prompt logprobs for "
                    f"{len(row)} ids; it must answer `prompt_logprobs` as vLLM does"
                )
            return [self._logprob(place, one) for place, one in zip(row[1:], given[1:], strict=True)]
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            if isinstance(error, TokenMismatchError):
                raise
            raise TokenMismatchError(
                f"{self._shown} gives no logprobs of the ids it was sent ({error!r:.200}); "
                "it must share the tokenizer and answer `prompt_logprobs` as vLLM does"
            ) from error

    def _logprob(self, token: int, entry: Any) -> float:
        logprob = float(entry[str(int(token))]["logprob"])
        if not math.isfinite(logprob) or logprob > _ROUNDING:
            raise TokenMismatchError(
                f"{self._shown} gives the logprob {logprob!r} to id {int(token)}; "
                "logprobs are finite and at most 0"
            )
        return min(0.0, logprob)


def _on_this_machine(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")


def _asked_to_wait(response: httpx.Response, otherwise: float) -> float:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return otherwise
