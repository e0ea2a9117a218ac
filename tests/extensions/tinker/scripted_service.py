"""The application in this process, over a server that answers by a script, and a client without the SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import numpy as np
import zstandard
from loss_requests import datum, message

from art.batch.encode import decode_batch
from art.errors import AuthenticationError, RequestError, ServerUnreachableError
from art.wire.gradients import GRADIENTS_LOST, MadeStep, MakeStepRequest
from art.wire.models import Manifest, ManifestEntry, ModelInfo
from art.wire.training import LoraSpec
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.app import make_app
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.service import make_service


class ScriptedServer(ArtServer):
    """Keeps what it is asked for. Its trainer can lose its gradients."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.held: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self.made: dict[str, MadeStep] = {}
        self.replies: asyncio.Event | None = None
        """Replies wait for it."""
        self.adapter: dict[str, bytes] = {}
        """The files of every step's adapter."""
        self.deaf = False
        """Releases never end."""
        self.kept_waiting = 0
        self.deleted: list[str] = []
        """The names of the models."""
        self.failures = 0
        """So many releases fail."""

    async def register(self, name: str, base_model: str, lora: LoraSpec, seed: int) -> ModelInfo:
        self.calls.append(("register", base_model, lora.r, lora.targets, seed))
        self.held[name], self.steps[name] = 0, 0
        return ModelInfo(project="tinker", name=name, base_model=base_model, inference_name=name, step=0)

    async def gradients(self, name: str, body: bytes) -> Any:
        tree, entries, request = decode_batch(body)
        if self.replies is not None:
            await self.replies.wait()
        if request.update not in (0, self.held[name]):
            raise RequestError("lost", status=409, code=GRADIENTS_LOST)
        if request.gradient == "add":
            self.held[name] = request.update + 1
        self.calls.append((request.gradient, request.step, request.update, len(tree)))
        metrics = {"loss/train": 1.0, "data/forwarded_tokens": 2.0, "data/step_trainer_tokens": 3.0}
        return {"logprob": np.full(len(entries), -0.5, np.float32)}, metrics

    async def step(self, name: str, asked: MakeStepRequest) -> MadeStep:
        if asked.job_id not in self.made:
            if asked.batches != self.held[name]:
                raise RequestError("lost", status=409, code=GRADIENTS_LOST)
            self.held[name], self.steps[name] = 0, asked.expected_step + 1
            self.calls.append(("step", asked.expected_step, asked.batches, asked.rate))
            self.calls.append(("keep", asked.keep_steps))
            self.made[asked.job_id] = MadeStep(step=self.steps[name], metrics={"loss/grad_norm": 2.5})
        return self.made[asked.job_id]

    async def release(self, name: str) -> None:
        if self.deaf:
            self.kept_waiting += 1
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise ServerUnreachableError("nobody is there")
        self.calls.append(("release",))

    async def delete(self, name: str) -> None:
        self.calls.append(("delete",))
        self.deleted.append(name)

    async def load_base(self, base_model: str) -> str:
        return base_model

    async def generate(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self.replies is not None:
            await self.replies.wait()
        content = [{"logprob": -0.5, "top_logprobs": []}]
        return {"choices": [{"token_ids": [7], "logprobs": {"content": content}, "finish_reason": "length"}]}

    async def serve(self, name: str, step: int, project: str = "tinker") -> str:
        return f"{name}@{step}"

    async def files(self, name: str, step: int, project: str = "tinker") -> Manifest:
        sizes = {file: ManifestEntry(sha256="0" * 64, size=len(one)) for file, one in self.adapter.items()}
        trainers = {"optimizer.safetensors": ManifestEntry(sha256="0" * 64, size=9)}
        return Manifest(files={**sizes, **trainers})

    async def file(self, name: str, step: int, file: str, project: str = "tinker") -> bytes:
        return self.adapter[file]

    async def served(self) -> dict[str, int | None]:
        if self.calls and self.calls[-1] == ("refuse keys",):
            raise AuthenticationError("no such key", status=401)
        return {"art/nano-games": 1024}


class Client:
    """A client of the application, without the SDK."""

    def __init__(self, http: httpx.AsyncClient, key: str) -> None:
        self.http, self.key = http, key

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        headers = {"x-api-key": self.key, "content-type": "application/json", **headers}
        return await self.http.post(f"/api/v1/{path}", content=content, headers=headers)

    async def session(self) -> str:
        return str(
            (await self.post("create_session", {"tags": [], "sdk_version": "0.38"})).json()["session_id"]
        )

    async def model(self, session: str, **lora: Any) -> str:
        asked = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": "art/nano-games",
            "lora_config": {"rank": 4, "seed": 7, **lora},
        }
        request = (await self.post("create_model", asked)).json()["request_id"]
        return str((await self.result(request))["model_id"])

    async def batch(self, model: str, seq: int, *, forward_only: bool = False, **columns: Any) -> str:
        columns = columns or {"target_tokens": [6, 7, 8], "weights": [1.0, 1.0, 1.0]}
        asked = message(datum([5, 6, 7], **columns))
        asked.model_id, asked.seq_id, asked.forward_only = model, seq, forward_only
        body = zstandard.ZstdCompressor().compress(asked.SerializeToString())
        kind = {"content-type": "application/x-protobuf", "content-encoding": "zstd"}
        return str((await self.post("forward_backward", body, **kind)).json()["request_id"])

    async def step(self, model: str, seq: int, **adam: Any) -> str:
        rates = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}
        params = {"learning_rate": 1e-3, **rates, **adam}
        asked = {"model_id": model, "seq_id": seq, "adam_params": params, "type": "optim_step"}
        return str((await self.post("optim_step", asked)).json()["request_id"])

    async def save(self, model: str, seq: int, name: str, **more: Any) -> str:
        asked = {"model_id": model, "seq_id": seq, "path": name, **more}
        request = (await self.post("save_weights", asked)).json()["request_id"]
        return str((await self.result(request))["path"])

    async def listed(self) -> list[str]:
        headers = {"x-api-key": self.key}
        found = (await self.http.get("/api/v1/checkpoints", headers=headers)).json()["checkpoints"]
        return [str(one["tinker_path"]) for one in found]

    async def delete(self, path: str) -> None:
        run, _, name = path.removeprefix("tinker://").partition("/")
        place = f"/api/v1/training_runs/{run}/checkpoints/{name}"
        assert (await self.http.delete(place, headers={"x-api-key": self.key})).status_code == 204

    async def finish(self, session: str) -> None:
        assert (await self.post(f"sessions/{session}/finish", {})).status_code == 200

    async def result(self, request: str) -> Any:
        reply = await self.post("retrieve_future", {"request_id": request})
        assert reply.status_code == 200, reply.text
        if "protobuf" in reply.headers["content-type"]:
            return messages.ForwardBackwardOutput.FromString(reply.content)
        return reply.json()


@asynccontextmanager
async def serving(
    folder: Path, server: ScriptedServer, tenants: Mapping[str, ScriptedServer] = MappingProxyType({})
) -> AsyncIterator[Client]:
    """tenants: the servers of keys of their own, which know the models of these keys."""
    routes, key = make_service(folder, lambda own: server if own is None else tenants.get(own, server))
    app = make_app(routes)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            yield Client(http, key)
