"""A teacher behind real HTTP: a tiny model whose logprobs are told in the shape that vLLM tells them."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from transformers import Qwen3Config, Qwen3ForCausalLM

from art import errors
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch, scored_paths, with_teacher
from art.server.jobs.http_teacher import ID_BYTES, REPLY_BYTES, HttpTeacher
from art.server.settings import ServerSettings, TeacherSettings, resolve_teacher
from art.wire.algorithm import TeacherSpec
from serving import serving_in_a_thread
from waiting import until

KEY = "teacher-key-123"


@dataclass
class Endpoint:
    """What a teacher was asked, and what it does wrong."""

    model: Qwen3ForCausalLM
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)
    """Given before any right one."""
    answering: threading.Event = field(default_factory=threading.Event)
    """Not set: it is silent."""
    together: int = 0
    """Nobody is answered until so many were there at once."""
    renamed: int = 0
    """Added to every id in the answer: another tokenizer's."""
    running: int = 0
    most_running: int = 0

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await until(lambda: self.answering.is_set() and self.most_running >= self.together)
        self.running -= 1
        if self.answers:
            return self.answers.pop(0)
        told = [
            None,
            *({str(i + self.renamed): {"logprob": x, "rank": 1}} for i, x in self.scored(body["prompt"])),
        ]
        return JSONResponse({"choices": [{"text": "", "prompt_logprobs": told}]})

    def scored(self, ids: list[int]) -> list[tuple[int, float]]:
        with torch.no_grad():
            logprobs_TV = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [(token, float(logprobs_TV[at, token])) for at, token in enumerate(ids[1:])]


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=40, num_attention_heads=2, num_key_value_heads=1, **shape)
    ).eval()


@pytest.fixture
def endpoint(model: Qwen3ForCausalLM) -> Iterator[Endpoint]:
    served = Endpoint(model)
    served.answering.set()
    app = Starlette(routes=[Route("/v1/completions", served.completions, methods=["POST"])])
    with serving_in_a_thread(app) as url:
        served.url = f"{url}/v1"
        yield served
        served.answering.set()


def teacher(endpoint: Endpoint, **settings: Any) -> HttpTeacher:
    spec = TeacherSpec(kind="server", url=endpoint.url, model="big")
    return HttpTeacher(spec, TeacherSettings(**{"retry_wait": 0.0, **settings}))


def conversation(name: str, reward: float, *turns: tuple[list[int], list[int]]) -> RolloutRow:
    samples = [
        SampleRow(
            sample_id=f"{name}{turn}",
            prompt_ids=prompt,
            completion_ids=ids,
            completion_logprobs=[-1.0] * len(ids),
        )
        for turn, (prompt, ids) in enumerate(turns)
    ]
    return RolloutRow(rollout=name, reward=reward, samples=samples)


ROLLOUTS = [
    conversation(
        "a", 1.0, ([5, 6], [7, 8]), ([5, 6, 7, 8, 9], [10, 11])
    ),  # the second turn extends the first
    conversation("b", 0.0, ([5, 6], [7, 12]), ([5, 20], [21])),  # the second turn is a branch
]


async def test_every_trained_token_is_scored_in_its_own_context(endpoint: Endpoint) -> None:
    batch = build_batch([GroupRow(rollouts=ROLLOUTS)])
    paths = scored_paths(batch.tree, batch.entries)
    rows = [batch.tree.tokens_T[path].tolist() for path in paths]
    taught = with_teacher(batch, paths, await teacher(endpoint).logprobs(rows))
    assert sorted(map(tuple, rows)) == [(5, 6, 7, 8, 9, 10, 11), (5, 6, 7, 12), (5, 20, 21)]
    wanted = []
    for sample in (row for rollout in ROLLOUTS for row in rollout.samples):
        whole = endpoint.scored([*sample.prompt_ids, *sample.completion_ids])
        wanted += [logprob for _, logprob in whole[len(sample.prompt_ids) - 1 :]]
    assert taught.entries.teacher_E is not None
    assert np.allclose(taught.entries.teacher_E, wanted, atol=1e-6) and np.ptp(wanted) > 0.01
    asked = endpoint.bodies[0]
    assert (asked["model"], asked["prompt_logprobs"], asked["max_tokens"]) == ("big", 0, 1)


async def test_no_more_requests_at_once_than_allowed(endpoint: Endpoint) -> None:
    endpoint.together = 2
    await teacher(endpoint, concurrency=2).logprobs([[1, 2]] * 6)
    assert endpoint.most_running == 2


async def test_a_full_or_failing_teacher_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [
        Response("full", status_code=429, headers={"retry-after": "0.01"}),
        Response("oops", status_code=500),
    ]
    assert len((await teacher(endpoint).logprobs([[1, 2, 3]]))[0]) == 2
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize(
    ("status", "kind", "asked"),
    [
        (400, errors.RequestError, 1),
        (401, errors.AuthenticationError, 1),
        (404, errors.NotFoundError, 1),
        (503, errors.ServerError, 3),
        (429, errors.ServerError, 3),
    ],
)
async def test_refusals_by_name(endpoint: Endpoint, status: int, kind: type[Exception], asked: int) -> None:
    endpoint.answers = [Response("because", status_code=status) for _ in range(3)]
    with pytest.raises(kind, match=f"teacher 'big' at http.* answers {status}: because") as refused:
        await teacher(endpoint, attempts=3).logprobs([[1, 2]])
    assert type(refused.value) is kind and len(endpoint.bodies) == asked


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ({"choices": [{"text": "x"}]}, "prompt_logprobs"),
        ({"choices": [{"prompt_logprobs": [None]}]}, "1 prompt logprobs for 2 ids"),
        ({"choices": [{"prompt_logprobs": [None, {"2": {"logprob": 0.7}}]}]}, "logprob 0.7 to id 2"),
    ],
)
async def test_answers_of_another_shape_are_refused(endpoint: Endpoint, answer: dict, named: str) -> None:
    endpoint.answers = [JSONResponse(answer)]
    with pytest.raises(errors.TokenMismatchError, match=named):
        await teacher(endpoint).logprobs([[1, 2]])


async def test_an_answer_without_end_is_refused_and_not_read_on(endpoint: Endpoint) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 0x10000
            yield b"x" * 0x10000
            await asyncio.sleep(0)

    most = REPLY_BYTES + 2 * ID_BYTES
    endpoint.answers = [StreamingResponse(pieces(), status_code=500)]
    with pytest.raises(errors.TokenMismatchError, match=f"'big' at http.* 2 ids.* longer than {most} bytes"):
        await teacher(endpoint).logprobs([[1, 2]])
    assert most < sent < 32 * most and len(endpoint.bodies) == 1


async def test_a_packed_answer_is_refused(endpoint: Endpoint) -> None:
    endpoint.answers = [Response(gzip.compress(b"{}"), headers={"content-encoding": "gzip"})]
    with pytest.raises(errors.TokenMismatchError, match=r"cannot be read, it is packed \(gzip\)"):
        await teacher(endpoint).logprobs([[1, 2]])


async def test_another_tokenizer_is_noticed(endpoint: Endpoint) -> None:
    endpoint.renamed = 1
    with pytest.raises(errors.TokenMismatchError, match="share the tokenizer"):
        await teacher(endpoint).logprobs([[1, 2]])


async def test_silence_has_a_deadline(endpoint: Endpoint) -> None:
    endpoint.answering.clear()
    with pytest.raises(errors.DeadlineError, match=r"within 0\.1 s"):
        await teacher(endpoint, request=0.1, attempts=1).logprobs([[1, 2]])
    with pytest.raises(errors.DeadlineError, match=r"1 rows within 0\.1 s"):
        await teacher(endpoint, total=0.1).logprobs([[1, 2]])


async def test_nobody_there(unused_tcp_port: int) -> None:
    nowhere = TeacherSpec(kind="server", url=f"http://127.0.0.1:{unused_tcp_port}/v1", model="big")
    with pytest.raises(errors.ServerUnreachableError, match="teacher 'big'"):
        await HttpTeacher(nowhere, TeacherSettings(attempts=2, retry_wait=0.0)).logprobs([[1, 2]])


# Where the server may be sent


@pytest.mark.parametrize(
    "url", ["https://example.org/v1", "http://10.0.0.1/v1", "file:///etc", "http://[::2]/"]
)
def test_a_job_may_not_send_the_server_elsewhere(url: str) -> None:
    spec = TeacherSpec(kind="server", url=url, model="big")
    with pytest.raises(errors.ConfigurationError, match=r"teacher\.urls"):
        HttpTeacher(spec, TeacherSettings())
    HttpTeacher(spec, TeacherSettings(urls=[url]))


def test_a_tenants_job_may_send_it_to_listed_endpoints_alone() -> None:
    here = TeacherSpec(kind="server", url="http://127.0.0.1:8001/v1", model="big")
    HttpTeacher(here, TeacherSettings())
    settings = TeacherSettings(urls=["https://listed.example.org/v1"])
    with pytest.raises(
        errors.ConfigurationError, match=r"is not one of the server's `teacher\.urls`"
    ) as refused:
        HttpTeacher(here, settings, listed_only=True)
    assert "listed.example.org" not in str(refused.value)
    HttpTeacher(here, TeacherSettings(urls=[str(here.url)]), listed_only=True)


async def test_the_key_goes_to_listed_endpoints_alone(endpoint: Endpoint) -> None:
    await teacher(endpoint, key=KEY, urls=[endpoint.url + "/"]).logprobs([[1, 2]])
    await teacher(endpoint, key=KEY).logprobs([[1, 2]])
    assert endpoint.keys == [f"Bearer {KEY}", None]
    assert KEY not in repr(TeacherSettings(key=KEY))


def test_key_and_endpoint_come_from_settings_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_TEACHER_KEY", "of-the-environment")
    monkeypatch.setenv("ART_TEACHER_URL", "https://two.example.org/v1")
    settings = ServerSettings(teacher=TeacherSettings(urls=["https://one.example.org/v1"]))
    found = resolve_teacher(settings)
    assert found.urls == ["https://one.example.org/v1", "https://two.example.org/v1"]
    assert found.key == "of-the-environment"
    assert resolve_teacher(ServerSettings(teacher=TeacherSettings(key=KEY))).key == KEY
