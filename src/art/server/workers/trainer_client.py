"""Speaks to a trainer worker (`art.wire.training`) with a deadline on every call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import httpx

from art import errors
from art.errors import (
    ARTError,
    ServerError,
    TrainingError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from art.process.loopback import no_tls
from art.wire.strict import Strict
from art.wire.training import (
    OpenReply,
    OpenRequest,
    ProbeReply,
    ProbeRequest,
    SaveReply,
    SaveRequest,
    ScoreReply,
    ScoreRequest,
    TrainEvent,
)


class TrainerClient:
    """One trainer worker. Times in seconds; `idle` is the longest silence of a running training.

    `trouble` is told when the worker does not answer or its connection breaks.
    """

    def __init__(
        self, url: str, key: str, *, timeout: float, idle: float, trouble: Callable[[WorkerError], None]
    ) -> None:
        self._trouble = trouble
        self._timeout = timeout
        self._idle = idle
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(timeout, connect=5.0),
            trust_env=False,
            verify=no_tls(),
        )

    async def open(self, request: OpenRequest) -> OpenModel:
        """Raises CheckpointError, ConfigurationError, WorkerError."""
        reply = OpenReply.model_validate_json(await self._post("/open", request))
        return OpenModel(self, reply.model, reply.step)

    async def save(self, model: str, path: Path) -> SaveReply:
        """Raises CheckpointError, WorkerError."""
        request = SaveRequest(model=model, path=str(path))
        return SaveReply.model_validate_json(await self._post("/save", request))

    async def score(self, model: str, rows: Sequence[Sequence[int]]) -> ScoreReply:
        """Raises WorkerError."""
        request = ScoreRequest(model=model, rows=[list(row) for row in rows])
        return ScoreReply.model_validate_json(await self._post("/score", request))

    async def probe(self, request: ProbeRequest) -> ProbeReply:
        """Raises ConfigurationError (unknown targets), WorkerError."""
        return ProbeReply.model_validate_json(await self._post("/probe", request))

    async def train(self, body: bytes) -> AsyncIterator[TrainEvent]:
        """Progress, then one result. Raises TrainingError and others by name, WorkerError."""
        self._check_open()
        timeout = httpx.Timeout(self._idle, connect=5.0)
        try:
            async with self._http.stream("POST", "/train", content=body, timeout=timeout) as reply:
                if reply.status_code != 200:
                    raise error_of(reply.status_code, await reply.aread())
                async for line in reply.aiter_lines():
                    if line.strip():
                        yield TrainEvent.model_validate_json(line)
        except httpx.TimeoutException as error:
            stalled = WorkerStalledError(f"the trainer made no progress for {self._idle:g} s")
            self._trouble(stalled)
            raise stalled from error
        except httpx.HTTPError as error:
            died = WorkerDiedError(f"the trainer's connection broke in the middle of a step: {error!r}")
            self._trouble(died)
            raise died from error

    async def aclose(self) -> None:
        """Every later call raises WorkerDiedError."""
        await self._http.aclose()

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise WorkerDiedError("the trainer was started again; what it held is to be opened anew")

    async def _post(self, route: str, request: Strict) -> bytes:
        self._check_open()
        try:
            reply = await self._http.post(route, content=request.model_dump_json())
        except httpx.TimeoutException as error:
            stalled = WorkerStalledError(f"the trainer did not answer {route} within {self._timeout:g} s")
            self._trouble(stalled)
            raise stalled from error
        except httpx.HTTPError as error:
            died = WorkerDiedError(f"the trainer's connection broke at {route}: {error!r}")
            self._trouble(died)
            raise died from error
        if reply.status_code != 200:
            raise error_of(reply.status_code, reply.content)
        return reply.content


class OpenModel:
    """A model that one trainer process holds. After that process is gone, every call raises
    WorkerDiedError.
    """

    def __init__(self, trainer: TrainerClient, model: str, step: int) -> None:
        self._trainer = trainer
        self.model = model
        self.step = step
        """The committed step that it was opened at, or has reached."""

    async def save(self, path: Path) -> None:
        """Write what it holds into a folder that must not exist. Raises CheckpointError, WorkerError."""
        await self._trainer.save(self.model, path)

    async def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        """Logprob of each id given those before it: `len(row) - 1` numbers a row."""
        return (await self._trainer.score(self.model, rows)).logprobs

    def train(self, body: bytes) -> AsyncIterator[TrainEvent]:
        """One step. See `TrainerClient.train`."""
        return self._trainer.train(body)

    def held_by(self, trainer: TrainerClient) -> bool:
        return self._trainer is trainer


def error_of(status: int, body: bytes) -> ARTError:
    """The named error in a worker's reply."""
    try:
        reply = json.loads(body)
    except ValueError:
        reply = {}
    if isinstance(reply, dict) and isinstance(reply.get("error"), dict):
        reply = reply["error"]
    message = str(reply.get("message") or body[:300].decode(errors="replace"))
    name = reply.get("kind") or reply.get("type") or reply.get("code")
    if not name:  # it met a defect: this is no answer of ours
        return TrainingError(f"the worker failed ({message}); its log says why")
    return named_error(str(name), message, status=status)


def named_error(name: str, message: str, *, status: int = 500) -> ARTError:
    """The exception of that class name; a name that is none of ours is a TrainingError."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, ARTError)):
        return TrainingError(f"{name}: {message}" if name else message)
    if issubclass(kind, ServerError):
        return kind(message, status=status)
    return kind(message)
