"""The application over a server that answers by a script: order, requests sent twice, restarts, ends."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zstandard
from loss_requests import datum, message
from transformers import AutoTokenizer

from art.batch.encode import decode_batch
from art.errors import AuthenticationError, RequestError
from art.wire.gradients import GRADIENTS_LOST, MadeStep, MakeStepRequest
from art.wire.models import Manifest, ManifestEntry, ModelInfo
from art.wire.training import LoraSpec
from art_extensions.tinker import app as app_module
from art_extensions.tinker import bodies, samples, sessions
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.app import PROTOBUF, make_app
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.records import PromptAsked, SampleAsked
from art_extensions.tinker.service import make_service
from art_extensions.tinker.store import Sampler
from waiting import until

pytestmark = pytest.mark.slow  # the batch's tree is built by numpy and the store is on disk


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
        self.calls.append(("release",))

    async def delete(self, name: str) -> None:
        self.calls.append(("delete",))

    async def serve(self, name: str, step: int) -> str:
        return f"{name}@{step}"

    async def files(self, name: str, step: int) -> Manifest:
        sizes = {file: ManifestEntry(sha256="0" * 64, size=len(one)) for file, one in self.adapter.items()}
        trainers = {"optimizer.safetensors": ManifestEntry(sha256="0" * 64, size=9)}
        return Manifest(files={**sizes, **trainers})

    async def file(self, name: str, step: int, file: str) -> bytes:
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

    async def result(self, request: str) -> Any:
        reply = await self.post("retrieve_future", {"request_id": request})
        assert reply.status_code == 200, reply.text
        if "protobuf" in reply.headers["content-type"]:
            return messages.ForwardBackwardOutput.FromString(reply.content)
        return reply.json()


@asynccontextmanager
async def serving(folder: Path, server: ScriptedServer) -> AsyncIterator[Client]:
    routes, key = make_service(folder, lambda _: server)
    app = make_app(routes)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            yield Client(http, key)


async def test_requests_are_carried_out_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
        late = await client.step(model, 4)
        scored = await client.batch(model, 3, forward_only=True)
        second = await client.batch(model, 2)
        assert server.calls == [("register", "art/nano-games", 4, "all-linear", 7)]
        first = await client.batch(model, 1)
        moved = await client.result(late)
        assert moved["metrics"] == {"unclipped_grad_l2:mean": 2.5, "learning_rate:mean": 1e-3}
        assert server.calls[1:] == [
            ("add", 0, 0, 4),
            ("add", 0, 1, 4),
            ("none", 0, 2, 4),
            ("step", 0, 2, 1e-3),
            ("keep", []),
        ]
        for request in (first, second, scored):
            assert (await client.result(request)).metrics["loss:sum"] == 1.0


async def test_a_number_that_is_sent_twice_is_one_request(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
        requests = [await client.batch(model, 1) for _ in range(3)] + [await client.step(model, 2)] * 2
        for request in requests:
            await client.result(request)
        assert [one[0] for one in server.calls] == ["register", "add", "step", "keep"]


async def test_lost_gradients_are_sent_again_from_the_first(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
        for number in (1, 2):
            await client.result(await client.batch(model, number))
        server.held = dict.fromkeys(server.held, 0)  # the trainer was started again
        await client.result(await client.step(model, 3))
        assert [one[:3] for one in server.calls[3:6]] == [("add", 0, 0), ("add", 0, 1), ("step", 0, 2)]
        await client.result(await client.batch(model, 4))
        assert server.calls[-1][:3] == ("add", 1, 0)


async def test_a_later_process_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
        await client.result(await client.batch(model, 1))
        server.replies = asyncio.Event()
        begun = await client.batch(model, 2)
        waiting = await client.step(model, 3)
    server.replies = None
    async with serving(tmp_path, server) as client:
        assert (await client.result(waiting))["metrics"]["learning_rate:mean"] == 1e-3
        assert (await client.result(begun)).metrics["loss:sum"] == 1.0
        assert [one[:3] for one in server.calls if one[0] == "step"] == [("step", 0, 2)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"target_tokens": [6, 7, 8], "weights": [1.0, float("nan"), 1.0]}, "weights"),
        ({"target_tokens": [6, 7], "weights": [1.0, 1.0]}, "target_tokens"),
        ({"weights": [1.0, 1.0, 1.0]}, "target_tokens"),
    ],
)
async def test_a_wrong_batch_fails_alone_and_the_run_goes_on(
    columns: dict[str, Any], said: str, tmp_path: Path
) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
        wrong = await client.result(await client.batch(model, 1, **columns))
        assert wrong["category"] == "user" and said in wrong["error"]
        bad = await client.result(await client.step(model, 2, learning_rate=-1.0))
        assert bad["category"] == "user" and "learning_rate" in bad["error"]
        other = {"model_id": model, "seq_id": 3, "optimizer_params": {"type": "dimuon", "learning_rate": 1.0}}
        unlike = await client.result((await client.post("optim_step", other)).json()["request_id"])
        assert unlike["category"] == "user" and "'dimuon': this server has AdamW" in unlike["error"]
        unknown = {"model_id": model, "seq_id": 4, "learning_rate": 1.0}
        refused = await client.post("optim_step", unknown)
        assert refused.status_code == 400 and "learning_rate" in refused.json()["detail"]
        await client.result(await client.batch(model, 4))
        assert (await client.result(await client.step(model, 5)))["metrics"]["learning_rate:mean"] == 1e-3


async def test_a_session_that_is_not_heard_ends_and_frees_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOOK_S", 0.01)
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        session = await client.session()
        model = await client.model(session)
        stuck = await client.step(model, 9)  # the numbers before it never come
        monkeypatch.setattr(sessions, "SILENT_S", 0.0)
        await until(lambda: ("delete",) in server.calls)
        assert server.calls[-2:] == [("release",), ("delete",)]
        assert await client.result(stuck) == {"error": "the session has ended", "category": "user"}
        refused = await client.post("session_heartbeat", {"session_id": session})
        assert refused.status_code == 404 and session in refused.json()["detail"]
        closed = await client.post(
            "create_sampling_session", {"session_id": session, "sampling_session_seq_id": 0}
        )
        assert closed.status_code == 400 and "has ended (expired)" in closed.json()["detail"]


async def test_saved_weights_keep_their_steps_and_outlive_their_session(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        session = await client.session()
        model = await client.model(session)
        await client.result(await client.step(model, 1))
        asked = {"model_id": model, "seq_id": 2, "path": "one", "ttl_seconds": 3600}
        saved = await client.result((await client.post("save_weights", asked)).json()["request_id"])
        assert saved["path"] == f"tinker://{model}/weights/one"
        again = {**asked, "seq_id": 3}
        taken = await client.result((await client.post("save_weights", again)).json()["request_id"])
        assert taken["category"] == "user" and "overwrite=True" in taken["error"]
        outside = {**asked, "seq_id": 4, "path": "../../key"}
        named = await client.result((await client.post("save_weights", outside)).json()["request_id"])
        assert named["category"] == "user" and "cannot be a checkpoint's name" in named["error"]
        await client.result(await client.step(model, 5))
        assert server.calls[-1] == ("keep", [1])
        finished = await client.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
        assert finished.status_code == 200 and server.calls[-1] == ("release",)


@pytest.mark.parametrize("key", ["", "art-tenant-x", "tml-unknown"])
async def test_a_wrong_key_is_refused_everywhere(key: str, tmp_path: Path) -> None:
    server = ScriptedServer()
    server.calls.append(("refuse keys",))
    async with serving(tmp_path, server) as client:
        client.key = key
        for path in ("client/config", "create_session", "retrieve_future", "forward_backward", "asample"):
            assert (await client.post(path)).status_code == 401, path
        assert (await client.http.get("/api/v1/training_runs")).status_code == 401
        assert (await client.http.get("/api/v1/healthz")).status_code == 200


async def test_only_attention_or_mlp_is_trained_where_a_program_says_so(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        await client.model(await client.session(), train_mlp=False)
        assert server.calls[-1][3] == ["q_proj", "k_proj", "v_proj", "o_proj"]
        asked = {
            "session_id": await client.session(),
            "model_seq_id": 0,
            "base_model": "art/nano-games",
            "lora_config": {"rank": 4, "train_mlp": False, "train_attn": False},
        }
        refused = await client.post("create_model", asked)
        assert refused.status_code == 400 and "train_unembed alone" in refused.json()["detail"]


async def test_a_body_that_is_too_large_or_too_slow_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "LARGEST_BODY", 2000)
    monkeypatch.setattr(bodies, "LARGEST_JSON", 1000)
    monkeypatch.setattr(bodies, "BODY_S", 0.05)
    async with serving(tmp_path, ScriptedServer()) as client:

        async def slowly() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(5)
            yield b"}"

        headers = {"x-api-key": client.key}
        slow = await client.http.post("/api/v1/create_session", content=slowly(), headers=headers)
        assert slow.status_code == 408 and "did not arrive" in slow.json()["detail"]
        large = await client.post("create_session", b" " * 1001)
        assert large.status_code == 413 and "larger than 1000 bytes" in large.json()["detail"]
        batch = await client.post("forward_backward", b" " * 2001, **{"content-type": PROTOBUF})
        assert batch.status_code == 413 and "larger than 2000 bytes" in batch.json()["detail"]


async def test_a_large_record_is_read_by_a_thread(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedServer()) as client:
        asked = {"tags": ["x" * 200_000], "sdk_version": "0.38"}
        assert (await client.post("create_session", asked)).status_code == 200
        refused = await client.post("create_session", {**asked, "tags": 3})
        assert refused.status_code == 400 and "tags" in refused.json()["detail"]


async def test_results_that_nobody_fetches_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "MOST_KEPT", 10)
    futures = samples.SampleFutures(lambda _: asyncio.sleep(0, ScriptedServer()))
    sampler = Sampler(
        sampler_id="s",
        owner="o",
        session_id="x",
        base_model="b",
        path=None,
        model="b",
        step=None,
        created_at=0.0,
    )
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    for number in range(100):
        _, found = futures.submit(sampler, SampleAsked(prompt=PromptAsked(**prompt), seq_id=number))
        await found.done.wait()
    assert len(futures._futures) <= 11
    assert futures.find("o", "s:0") is None and futures.find("o", "s:99") is not None
    assert futures.find("another", "s:99") is None


@pytest.mark.parametrize("base", ["art/nano-games", "art/smollm2"])
async def test_a_tokenizer_is_named_by_a_folder_that_loads(base: str) -> None:
    folder = await app_module.tokenizer_of(base)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode("yes")).strip() == "yes"


async def test_an_archive_holds_the_adapter_and_needs_no_key(tmp_path: Path) -> None:
    server = ScriptedServer()
    server.adapter = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
        asked = {"model_id": model, "seq_id": 1, "path": "one"}
        await client.result((await client.post("save_weights_for_sampler", asked)).json()["request_id"])
        place = f"/api/v1/training_runs/{model}/checkpoints/sampler_weights/one/archive"
        assert (await client.http.get(place)).status_code == 401
        led = await client.http.get(place, headers={"x-api-key": client.key})
        assert led.status_code == 302 and led.headers["expires"].endswith("GMT")
        url = led.headers["location"]
        found = await client.http.get(url)
        with tarfile.open(fileobj=io.BytesIO(found.content)) as archive:
            read = {one.name: archive.extractfile(one) for one in archive}
            assert {name: file.read() for name, file in read.items() if file} == server.adapter
        for changed in (
            url.replace("expires=", "expires=9"),
            url.replace("expires=", f"expires={'9' * 5000}"),
            url.replace("signature=", "signature=0"),
            url.replace("sampler_weights", "weights"),
        ):
            assert (await client.http.get(changed)).status_code == 403


async def test_an_id_that_does_not_say_which_weights_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedServer()) as client:
        key = {"x-api-key": client.key}
        found = await client.http.delete("/api/v1/training_runs/run/checkpoints/one", headers=key)
        assert found.status_code == 400 and "use weights/one or sampler_weights/one" in found.json()["detail"]
        for wrong in ("x", "-1", "9" * 5000):
            listed = await client.http.get(f"/api/v1/training_runs?limit={wrong}", headers=key)
            assert listed.status_code == 400 and "whole numbers" in listed.json()["detail"]
