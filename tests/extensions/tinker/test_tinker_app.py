"""The application over a server that answers by a script: order, requests sent twice, restarts, ends."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import sqlite3
import tarfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scripted_service import ScriptedServer, serving
from transformers import AutoTokenizer

from art_extensions.tinker import app as app_module
from art_extensions.tinker import bodies, samples, sessions
from art_extensions.tinker.app import PROTOBUF
from art_extensions.tinker.records import PromptAsked, SampleAsked
from art_extensions.tinker.store import QueuedRequest, Sampler, Tables, now
from waiting import until

pytestmark = pytest.mark.slow  # the batch's tree is built by numpy and the store is on disk


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


MANY = 10_000


def ask_for_steps(path: Path, run: str, most: int) -> None:
    """Writes down requests from number 1, each of which fails when it is its turn."""
    with closing(sqlite3.connect(path)) as connection, connection:
        owner = connection.execute("SELECT owner FROM runs").fetchone()[0]
        for number in range(1, most + 1):
            Tables(connection).add(
                QueuedRequest(
                    request_id=f"{run}:{number}",
                    owner=owner,
                    run_id=run,
                    seq=number,
                    kind="optim_step",
                    body=json.dumps({"model_id": run, "adam_params": {"learning_rate": -1.0}}).encode(),
                    created_at=now(),
                )
            )


async def test_ten_thousand_training_futures_that_nobody_fetches_leave_nothing(tmp_path: Path) -> None:
    def waiting() -> list[object]:
        return [one for one in gc.get_objects() if isinstance(one, asyncio.Event)]

    def working() -> list[str]:
        return [one.get_name() for one in asyncio.all_tasks() if one.get_name().startswith("tinker ")]

    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        model = await client.model(await client.session())
    ask_for_steps(tmp_path / "tinker.sqlite", model, MANY)
    before = len(waiting())
    async with serving(tmp_path, server) as client:

        async def is_through() -> bool:
            return "error" in await client.result(f"{model}:{MANY}")

        await until(is_through)
        await until(lambda: not working())
        assert len(waiting()) - before < 100
        assert "learning_rate" in (await client.result(f"{model}:1"))["error"]  # it can still be fetched
        moved = await client.result(await client.step(model, MANY + 1))
        assert moved["metrics"]["learning_rate:mean"] == 1e-3


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
