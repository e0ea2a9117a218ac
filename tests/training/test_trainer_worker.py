"""The worker over real HTTP in a real child process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_arrays
from tiny_policies import MODEL, SHAPE, games, request
from transformers import Qwen3Config, Qwen3ForCausalLM

from art.batch.batch_types import Batch
from art.batch.encode import encode_batch
from art.wire.training import (
    TOKEN_COLUMNS,
    CloseRequest,
    LoraSpec,
    OpenRequest,
    SaveRequest,
    ScoreRequest,
    TokensRequest,
    TrainerHealth,
)
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow
KEY = "a-key-that-is-long-enough"
LORA = LoraSpec(r=4, alpha=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(folder)
    return folder


class Child:
    """A worker and a client that speaks to it."""

    def __init__(self, base: Path, **config: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "art.training.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        options = {"base_model": "test/tiny", "model_path": str(base), "key": KEY, "threads": 1, **config}
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()
        readable, _, _ = select.select([self.process.stdout], [], [], 90)
        assert readable, "the worker did not say anything within 90 s"
        self.ready = json.loads(self.process.stdout.readline())
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.ready.get('port', 1)}",
            headers={"Authorization": f"Bearer {KEY}"},
            timeout=240,
        )

    def post(self, route: str, message: Any) -> Any:
        reply = self.http.post(route, content=message.model_dump_json())
        assert reply.status_code == 200, reply.text
        return reply.json()

    def open(self, checkpoint: Path | None = None) -> Any:
        where = str(checkpoint) if checkpoint else None
        return self.post("/open", OpenRequest(model=MODEL, lora=LORA, checkpoint=where))

    def train(self, batch: Batch, step: int) -> list[dict[str, Any]]:
        reply = self.http.post("/train", content=encode_batch(batch, request(batch, step)))
        assert reply.status_code == 200, reply.text
        return [json.loads(line) for line in reply.text.splitlines()]

    def tokens(self, step: int) -> httpx.Response:
        return self.http.post("/tokens", content=TokensRequest(model=MODEL, step=step).model_dump_json())

    def end(self) -> None:
        self.http.close()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture(scope="module")
def shared(base: Path) -> Iterator[Child]:
    child = Child(base, token_budget=60)
    yield child
    child.end()


@pytest.fixture
def child(shared: Child) -> Child:
    """The shared worker with a fresh model."""
    shared.open()
    return shared


def big(seed: int = 0) -> Batch:
    """A step that takes a while: its paths are forwarded in thousands of pieces."""
    return games(seed, groups=30, size=16, turns=6)


def test_a_model_is_opened_trained_scored_saved_and_restored(child: Child, tmp_path: Path) -> None:
    opened = child.open()
    assert opened["step"] == 0 and opened["trainable_parameters"] > 0
    first = child.post("/score", ScoreRequest(model=MODEL, rows=[[1, 2, 3], [4, 5]]))
    assert first["step"] == 0 and [len(row) for row in first["logprobs"]] == [2, 1]
    for step in range(2):
        *progress, result = child.train(games(step), step)
        assert progress and all(event["type"] == "progress" for event in progress)
        assert progress[-1]["done"] == progress[-1]["total"] > 0
        assert result["type"] == "result" and result["step"] == step + 1
        assert result["metrics"]["data/step_trainer_tokens"] == len(games(step).entries)
    second = child.post("/score", ScoreRequest(model=MODEL, rows=[[1, 2, 3], [4, 5]]))
    assert second["step"] == 2 and second["logprobs"] != first["logprobs"]
    saved = child.post("/save", SaveRequest(model=MODEL, path=str(tmp_path / "0002")))
    assert saved["step"] == 2 and "manifest.json" in saved["files"]
    assert child.open(tmp_path / "0002")["step"] == 2
    assert child.post("/score", ScoreRequest(model=MODEL, rows=[[1, 2, 3], [4, 5]])) == second
    health = TrainerHealth.model_validate(child.http.get("/health").json())
    assert health.base_model == "test/tiny" and health.models == {MODEL: 2} and not health.busy


def test_every_route_asks_for_the_key(child: Child) -> None:
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        assert child.http.get("/health", headers=headers).status_code == 401
        for route in ("/open", "/train", "/tokens", "/save", "/score", "/close"):
            reply = child.http.post(route, headers=headers, content=b"{}")
            assert reply.status_code == 401 and reply.json()["error"]["type"] == "AuthenticationError"
    assert child.http.get("/docs").status_code == 404


def test_refusals_are_named(child: Child, tmp_path: Path) -> None:
    batch = games()

    def refused(route: str, content: bytes | str) -> tuple[int, str]:
        reply = child.http.post(route, content=content)
        return reply.status_code, reply.json()["error"]["type"]

    assert refused("/train", encode_batch(batch, request(batch, 7))) == (409, "TrainingError")
    assert refused("/train", encode_batch(batch, request(batch, name="nope"))) == (400, "ConfigurationError")
    assert refused("/train", b"not a batch") == (400, "TokenMismatchError")
    assert refused("/open", '{"model": "m", "lora": {}, "colour": "red"}') == (400, "RequestError")
    assert refused("/score", '{"model": "nobody", "rows": [[1, 2]]}') == (404, "NotFoundError")
    missing = OpenRequest(model=MODEL, lora=LORA, checkpoint=str(tmp_path / "none"))
    assert refused("/open", missing.model_dump_json()) == (400, "CheckpointError")
    assert child.post("/score", ScoreRequest(model=MODEL, rows=[[1, 2]]))["step"] == 0


def test_a_step_asked_for_twice_is_trained_once(child: Child) -> None:
    batch = games(3)
    first = child.train(batch, 0)
    scores = child.post("/score", ScoreRequest(model=MODEL, rows=[[1, 2, 3]]))
    assert child.train(batch, 0) == first
    assert child.post("/score", ScoreRequest(model=MODEL, rows=[[1, 2, 3]])) == scores
    other = games(4)
    reply = child.http.post("/train", content=encode_batch(other, request(other, 0)))
    assert reply.status_code == 409 and "from another batch already" in reply.json()["error"]["message"]


def test_the_record_of_a_step_s_tokens_is_handed_out_until_the_next_step(child: Child) -> None:
    assert child.tokens(0).status_code == 404
    for step in range(2):
        batch = games(step)
        *_, result = child.train(batch, step)
        reply = child.tokens(step)
        assert reply.status_code == 200 and child.tokens(step).content == reply.content
        columns = load_arrays(reply.content)
        assert {name: one.dtype.name for name, one in columns.items()} == dict(TOKEN_COLUMNS)
        assert {len(one) for one in columns.values()} == {len(batch.entries)}
        difference_E = np.abs(columns["logprob"].astype(np.float64) - batch.entries.logprob_E)
        assert result["metrics"]["loss/logprob_difference_max"] == pytest.approx(difference_E.max(), rel=1e-6)
        assert result["metrics"]["loss/logprob_difference_mean"] == pytest.approx(difference_E.mean())
    gone = child.tokens(0)
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "no_token_record"
    child.post("/close", CloseRequest(model=MODEL))
    assert child.tokens(1).json()["error"]["code"] == "model_not_open"


def test_a_dropped_connection_does_not_stop_the_step_and_health_answers(child: Child) -> None:
    body = encode_batch(big(), request(big(), 0))
    with child.http.stream("POST", "/train", content=body) as reply:
        first = json.loads(next(reply.iter_lines()))
        assert first["type"] == "progress" and first["done"] < first["total"]
        assert child.http.get("/health").json()["busy"] is True
    with child.http.stream("POST", "/train", content=body) as reply:
        events = [json.loads(line) for line in reply.iter_lines()]
    assert events[0] == first, "the second reader sees the same step from its start"
    assert events[-1]["type"] == "result" and events[-1]["step"] == 1
    assert child.http.get("/health").json()["models"] == {MODEL: 1}


def test_two_readers_of_one_step(child: Child) -> None:
    batch, replies = games(5, groups=8), []
    readers = [threading.Thread(target=lambda: replies.append(child.train(batch, 0))) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(DEADLINE_S)
    assert len(replies) == 3 and replies[0] == replies[1] == replies[2]
    assert child.http.get("/health").json()["models"] == {MODEL: 1}


def test_a_step_that_fails_ends_with_an_error_and_can_be_sent_again(child: Child) -> None:
    batch = games(6)
    asked = request(batch)
    wrong = asked.model_copy(update={"normalizer": 1e-44})
    reply = child.http.post("/train", content=encode_batch(batch, wrong))
    last = json.loads(reply.text.splitlines()[-1])
    assert last["type"] == "error" and last["code"] == "TrainingError" and "left as it was" in last["message"]
    assert child.train(batch, 0)[-1]["type"] == "result"


def test_it_ends_when_its_stdin_ends_in_the_middle_of_a_step_too(base: Path) -> None:
    child = Child(base, token_budget=60)
    child.open()
    body = encode_batch(big(), request(big(), 0))
    with child.http.stream("POST", "/train", content=body) as reply:
        next(reply.iter_lines())
        child.process.stdin.close()  # type: ignore[union-attr]
        assert child.process.wait(DEADLINE_S) == 0
    child.end()


def test_killed_in_the_middle_of_a_step_it_resumes_to_the_same_bytes(base: Path, tmp_path: Path) -> None:
    straight = Child(base, token_budget=60)
    straight.open()
    batches = [games(0), big(1), games(2)]
    for step, batch in enumerate(batches):
        assert straight.train(batch, step)[-1]["type"] == "result"
    straight.post("/save", SaveRequest(model=MODEL, path=str(tmp_path / "straight")))
    straight.end()

    killed = Child(base, token_budget=60)
    killed.open()
    killed.train(batches[0], 0)
    killed.post("/save", SaveRequest(model=MODEL, path=str(tmp_path / "0001")))
    with killed.http.stream(
        "POST", "/train", content=encode_batch(batches[1], request(batches[1], 1))
    ) as reply:
        next(reply.iter_lines())
        os.kill(killed.process.pid, signal.SIGKILL)
        assert killed.process.wait(DEADLINE_S) == -signal.SIGKILL
    killed.end()

    again = Child(base, token_budget=60)
    assert again.open(tmp_path / "0001")["step"] == 1
    for step in (1, 2):
        again.train(batches[step], step)
    again.post("/save", SaveRequest(model=MODEL, path=str(tmp_path / "resumed")))
    again.end()
    for file in (tmp_path / "straight").iterdir():
        assert file.read_bytes() == (tmp_path / "resumed" / file.name).read_bytes(), file.name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"key": "short"}, "key: "),
        ({"model_path": "/nowhere/at/all"}, "nowhere"),
        ({"attention": "rectangles", "device": "meta"}, "cannot run here"),
    ],
)
def test_a_worker_that_cannot_start_says_why_and_not_its_key(
    base: Path, config: dict[str, Any], message: str
) -> None:
    child = Child(base, **config)
    assert child.ready["ready"] is False and message in child.ready["error"]
    assert child.process.wait(DEADLINE_S) == 2
    assert KEY not in child.ready["error"]
    child.end()
