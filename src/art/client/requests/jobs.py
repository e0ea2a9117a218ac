"""Running a training job: submitted once, followed to its end over as many connections as it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from art.client.http.connection import CONNECT_S, Absence, ServerConnection, job_error, response_error
from art.errors import DeadlineError, TrainingError
from art.tracking.progress import open_progress
from art.wire.jobs import JobEvent, JobInfo, SftJobRequest, TrainJobRequest, TrainResultInfo
from art.wire.records import read_reply

SUBMIT_S = 120.0
_SHORTEST_S = 0.5
"""The shortest timeout in seconds of a wait for an answer that may be under way."""


@dataclass(frozen=True, kw_only=True)
class JobDeadlines:
    """idle_s: without an event or a heartbeat (a blank line). total_s: for the whole job."""

    idle_s: float = 120.0
    total_s: float = 86_400.0


async def run_job(
    connection: ServerConnection,
    route: str,
    request: TrainJobRequest | SftJobRequest,
    *,
    deadlines: JobDeadlines,
    title: str | None,
    submit_s: float = SUBMIT_S,
) -> TrainResultInfo:
    """Post the job to its route and wait for its result. title: of a progress bar; None: none is shown.

    Raises what `follow_job` raises, and what `ServerConnection.call` raises when the job is not accepted.
    """
    with open_progress(title, None) as progress:

        def show(event: JobEvent) -> None:
            if event.type == "progress":
                progress.move_to(event.done, event.total, event.phase)

        await connection.call("POST", route, JobInfo, request, deadline_s=submit_s)
        return await follow_job(connection, request.job_id, show, deadlines)


async def follow_job(
    connection: ServerConnection, job_id: str, on_event: Callable[[JobEvent], None], deadlines: JobDeadlines
) -> TrainResultInfo:
    """Reads the job's events until its result.

    A lost connection is made again and continues after the last event seen. Raises DeadlineError when the
    server says nothing for `idle_s` or the job takes longer than `total_s`, ServerUnreachableError when it
    is gone, and the job's own error when it failed.
    """
    try:
        async with asyncio.timeout(deadlines.total_s) as limit:
            return await _Follower(connection, job_id, on_event, deadlines.idle_s).run()
    except TimeoutError as error:
        if isinstance(error, DeadlineError) or not limit.expired():
            raise
        raise DeadlineError(f"training job {job_id!r} took longer than {deadlines.total_s:g} s") from error


class _Follower:
    def __init__(
        self, connection: ServerConnection, job_id: str, on_event: Callable[[JobEvent], None], idle_s: float
    ) -> None:
        self.connection, self.job_id, self.on_event, self.idle_s = connection, job_id, on_event, idle_s
        self.last = 0
        self.heard = asyncio.get_running_loop().time()
        self.absence = Absence(connection.gone_s)

    async def run(self) -> TrainResultInfo:
        attention = asyncio.create_task(self._pay_attention())
        try:
            return await self._follow()
        finally:
            attention.cancel()

    async def _pay_attention(self) -> None:
        """While this event loop is blocked nobody listens: that time is no silence of the server."""
        loop, step = asyncio.get_running_loop(), self.idle_s / 10
        while True:
            due = loop.time() + step
            await asyncio.sleep(step)
            self.heard += loop.time() - due

    async def _follow(self) -> TrainResultInfo:
        loop, pause, problem = asyncio.get_running_loop(), 0.1, "the stream ended early"
        trouble: Exception | None = None
        while True:
            seen = self.last
            try:
                if (result := await self._read()) is not None:
                    return result
            except httpx.TransportError as error:
                problem, trouble = f"{type(error).__name__}: {error}", error
                if not isinstance(error, httpx.ReadTimeout):  # then somebody is there
                    lost = f"events of {self.job_id!r} ({problem}): {self.connection.state(error)}"
                    self.heard += await self.absence.wait(self.connection.revive, lost, error)
            except ValidationError as error:
                problem = f"an event is not readable: {error}"
            pause = 0.1 if self.last > seen else min(2.0, pause * 2)
            await asyncio.sleep(pause)
            if loop.time() - self.heard > self.idle_s:
                raise DeadlineError(
                    f"training job {self.job_id!r}: no event and no heartbeat "
                    f"for {self.idle_s:g} s ({problem}): {self.connection.state(trouble)}"
                )

    async def _read(self) -> TrainResultInfo | None:
        """One connection: the result, or None when it ended before."""
        client = await self.connection.client()
        path = f"/art/jobs/{self.job_id}/events"
        # What is left of the silence: otherwise one that began before this connection would last twice.
        left = self.heard + self.idle_s - asyncio.get_running_loop().time()
        timeout = httpx.Timeout(min(self.idle_s, max(_SHORTEST_S, left)), connect=CONNECT_S)
        async with client.stream("GET", path, params={"after": self.last}, timeout=timeout) as response:
            if response.status_code >= 400:
                await response.aread()
                raise response_error(response, f"GET {path}")
            self.absence = Absence(self.connection.gone_s)
            async for line in response.aiter_lines():
                event = read_reply(JobEvent, line) if line.strip() else None
                self.heard = asyncio.get_running_loop().time()
                if event is None or event.number <= self.last:
                    continue
                if (result := self._accept_event(event)) is not None:
                    return result
        return None

    def _accept_event(self, event: JobEvent) -> TrainResultInfo | None:
        if event.number != self.last + 1:
            missing = f"{self.last + 1} to {event.number - 1}"
            raise TrainingError(f"job {self.job_id!r}: events {missing} are missing")
        self.last = event.number
        if event.type == "error":
            raise job_error(event.error or f"training job {self.job_id!r} failed", event.error_code)
        self.on_event(event)
        return event.result if event.type == "result" else None
