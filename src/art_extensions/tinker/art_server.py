"""The calls to the server that samples and trains, in the names of one key.

Every run of Tinker's is a model of the project `tinker`. What a key may not see, the server hides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import numpy.typing as npt
from safetensors.numpy import load as load_arrays

from art.client.http.connection import CONNECT_S, Absence, ServerConnection, named_path, response_error
from art.errors import OverloadedError, ServerUnreachableError, WorkerError
from art.wire.gradients import MadeStep, MakeStepRequest, Released, ServedStep, ServeStepRequest
from art.wire.models import (
    DeleteModelReply,
    ForkReply,
    ForkRequest,
    LoadBaseReply,
    LoadBaseRequest,
    Manifest,
    ModelInfo,
    ModelList,
    ModelSummary,
    RegisterRequest,
)
from art.wire.training import LoraSpec

PROJECT = "tinker"
START_S = 1800.0
"""A large base model is loaded in this time."""
WORK_S = 3600.0
"""The longest time in seconds for a batch, a step or a sample, queues included."""
_PAUSE_S = 0.2
_TRIES = 5
"""The tries of a call whose worker fails."""


class ArtServer:
    """One server, for one key. Raises what the server refuses with, ServerUnreachableError, WorkerError."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def register(self, name: str, base_model: str, lora: LoraSpec, seed: int) -> ModelInfo:
        """Makes a run known, and serves what it has. Asking again changes nothing."""
        asked = RegisterRequest(project=PROJECT, name=name, base_model=base_model, lora=lora, seed=seed)
        return await self._connection.call("POST", "/art/models", ModelInfo, asked, deadline_s=START_S)

    async def model(self, project: str, name: str) -> ModelInfo:
        """A model of any project."""
        return await self._connection.call("GET", named_path(project, name), ModelInfo)

    async def models(self) -> list[ModelSummary]:
        """All models of all projects."""
        return (await self._connection.call("GET", "/art/models", ModelList)).models

    async def load_base(self, base_model: str) -> str:
        """Serves a base model. Returns what to ask for as `model`."""
        asked = LoadBaseRequest(base_model=base_model)
        path = "/art/base_models"
        loaded = await self._connection.call("POST", path, LoadBaseReply, asked, deadline_s=START_S)
        return loaded.base_model

    async def gradients(
        self, name: str, body: bytes
    ) -> tuple[Mapping[str, npt.NDArray[Any]], dict[str, float]]:
        """The columns of a batch's entries, and its metrics."""
        reply = await self._post(f"{self._path(name)}/gradients", body)
        columns = await asyncio.to_thread(load_arrays, reply)
        header = json.loads(reply[8 : 8 + int.from_bytes(reply[:8], "little")])
        return columns, dict(json.loads(header["__metadata__"]["metrics"]))

    async def step(self, name: str, asked: MakeStepRequest) -> MadeStep:
        """Makes the step, or tells the one of this id that was made."""
        return await self._connection.call(
            "POST", f"{self._path(name)}/step", MadeStep, asked, deadline_s=WORK_S
        )

    async def serve(self, name: str, step: int, project: str = PROJECT) -> str:
        """Returns what to ask for as `model`."""
        asked = ServeStepRequest(step=step)
        path = f"{named_path(project, name)}/serve"
        served = await self._connection.call("POST", path, ServedStep, asked, deadline_s=WORK_S)
        return served.model

    async def fork(self, name: str, project: str, source: str, step: int, *, weights_only: bool) -> None:
        """Begins a new run where another model of any project stands."""
        asked = ForkRequest(from_project=project, from_name=source, step=step, weights_only=weights_only)
        await self._connection.call("POST", f"{self._path(name)}/fork", ForkReply, asked, deadline_s=WORK_S)

    async def release(self, name: str) -> None:
        """Has the trainer forget a run that is over."""
        await self._connection.call("POST", f"{self._path(name)}/release", Released, deadline_s=WORK_S)

    async def delete(self, name: str) -> None:
        """Deletes a run with all its steps."""
        await self._connection.call("DELETE", self._path(name), DeleteModelReply)

    async def files(self, name: str, step: int, project: str = PROJECT) -> Manifest:
        """The names, sizes and digests of a step's files."""
        path = f"{named_path(project, name)}/checkpoints/{step}/files"
        return await self._connection.call("GET", path, Manifest)

    async def file(self, name: str, step: int, file: str, project: str = PROJECT) -> bytes:
        """One of these files."""
        client = await self._connection.client()
        path = f"{named_path(project, name)}/checkpoints/{step}/files/{file}"
        reply = await client.get(path, timeout=httpx.Timeout(WORK_S, connect=CONNECT_S))
        if reply.status_code != 200:
            raise response_error(reply, f"GET {path}")
        return reply.content

    async def generate(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The reply of `/inference/v1/generate`. The ledger has its samples before it is here."""
        found: dict[str, Any] = json.loads(
            await self._post("/inference/v1/generate", json.dumps(asked).encode())
        )
        return found

    async def served(self) -> dict[str, int | None]:
        """Returns what may be asked for as `model`, and the tokens that each has room for.

        Raises AuthenticationError for a key that the server refuses.
        """
        client = await self._connection.client()
        reply = await client.get("/v1/models", timeout=httpx.Timeout(30.0, connect=CONNECT_S))
        if reply.status_code != 200:
            raise response_error(reply, "GET /v1/models")
        return {str(one["id"]): one.get("max_model_len") for one in reply.json()["data"]}

    async def _post(self, path: str, body: bytes) -> bytes:
        """Asks until there is an answer: asking twice is safe."""
        loop = asyncio.get_running_loop()
        until, tries, absence = loop.time() + WORK_S, 0, Absence(self._connection.gone_s)
        while True:
            client = await self._connection.client()
            try:
                timeout = httpx.Timeout(max(1.0, until - loop.time()), connect=CONNECT_S)
                reply = await client.post(path, content=body, timeout=timeout)
            except httpx.TransportError as error:
                state, what = self._connection.state(error), f"{type(error).__name__}: {error}"
                failure: Exception = ServerUnreachableError(f"nobody answers {path} ({what}): {state}")
                if not isinstance(error, httpx.ReadTimeout):  # then somebody is there
                    await absence.wait(self._connection.revive, f"{path} ({what}): {state}", error)
            else:
                absence = Absence(self._connection.gone_s)
                if reply.status_code < 400:
                    return reply.content
                failure = response_error(reply, f"POST {path}")
                tries += isinstance(failure, WorkerError)
                if not isinstance(failure, OverloadedError | WorkerError) or tries == _TRIES:
                    raise failure
            if loop.time() > until:
                raise failure
            await asyncio.sleep(getattr(failure, "retry_after", None) or _PAUSE_S)

    @staticmethod
    def _path(name: str) -> str:
        return named_path(PROJECT, name)
