from __future__ import annotations

import asyncio
import json
import socket
import sys
import tracemalloc

import openai
import pytest
from bench.faults.links import Relay
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice
from starlette.responses import JSONResponse
from wire_double import KEY, Double, error

import art
from art import errors
from art.client.http import connection
from art.client.http import openai_client as openai_client_module
from art.client.http.openai_client import RolloutOpenAI, SampledTexts, openai_client
from art.rollout_tasks import in_rollout, rollout_scope
from art.server.http import error_body, status_of
from waiting import until

ASK = [{"role": "user", "content": "x é\U0001f600"}]


@pytest.fixture
def client(server: str) -> RolloutOpenAI:
    return openai_client(base_url=f"{server}/v1", api_key=KEY)


async def ordinary(client: RolloutOpenAI, **options):
    """The same request over openai's own way."""
    return await client.with_options(timeout=60).chat.completions.create(model="m", messages=ASK, **options)


async def test_it_is_a_real_openai_client(client):
    assert isinstance(client, openai.AsyncOpenAI)
    completion = await client.chat.completions.create(model="m", messages=ASK)
    assert isinstance(completion, openai.types.chat.ChatCompletion)
    choice = completion.choices[0]
    assert choice.message.content == "reply 1 é\U0001f600"
    assert choice.model_extra == {"sample_id": "s1", "step": 0}


async def test_both_ways_give_equal_replies_and_send_equal_bodies(client, double: Double):
    said = (await client.chat.completions.create(model="m", messages=ASK)).choices[0].message
    options = {
        "temperature": 0.5,
        "max_tokens": 3,
        "stop": openai.NOT_GIVEN,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "extra_body": {"seed": 7},
    }
    messages = (message for message in [*ASK, said, {"role": "user", "content": "y"}])
    short = await client.chat.completions.create(model="m", messages=messages, **options)
    long = await client.with_options(timeout=60).chat.completions.create(
        model="m", messages=[*ASK, said, {"role": "user", "content": "y"}], **options
    )
    assert double.bodies[1] == double.bodies[2]
    assert "x-stainless-lang" not in double.headers[1] and "x-stainless-lang" in double.headers[2]
    one, two = short.model_dump(), long.model_dump()
    for dumped in (one, two):
        dumped["choices"][0]["message"].pop("content")
        dumped["choices"][0].pop("sample_id")
    assert one == two


async def test_rollouts_are_named_on_both_ways(client, double: Double):
    with rollout_scope("mine"):
        await client.chat.completions.create(model="m", messages=ASK)
        await ordinary(client)
    await client.chat.completions.create(model="m", messages=ASK)
    assert double.rollouts == ["mine", "mine", None]


async def test_concurrent_rollouts_keep_their_names_and_replies(client, double: Double):
    async def rollout() -> tuple[str | None, str]:
        ids = [
            (await client.chat.completions.create(model="m", messages=ASK))
            .choices[0]
            .model_extra["sample_id"]
            for _ in range(3)
        ]
        return ids

    samples = await asyncio.gather(*(in_rollout(rollout()) for _ in range(50)))
    named = [{double.rollouts[int(sample[1:]) - 1] for sample in ids} for ids in samples]
    assert all(len(names) == 1 for names in named)
    assert len(set.union(*named)) == 50


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_queue_and_a_restarting_worker_are_waited_for(client, double: Double, status):
    double.refusals = [error(status, "not now", "overloaded", {"retry-after": "0.05"}) for _ in range(14)]
    completion = await client.chat.completions.create(model="m", messages=ASK)
    assert completion.choices[0].model_extra["sample_id"] == "s1"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, openai.BadRequestError), (404, openai.NotFoundError), (422, openai.UnprocessableEntityError)],
)
async def test_refusals_are_openai_s_errors(client, double: Double, status, kind):
    double.refusals = [error(status, "not like this", "bad_field")] * 2
    with pytest.raises(kind, match="not like this") as caught:
        await client.chat.completions.create(model="m", messages=ASK)
    assert caught.value.code == "bad_field"


async def test_a_full_disk_is_the_error_of_openai_and_ours_at_once(client, double: Double):
    """Each further try would be sampled and thrown away."""
    full = errors.DiskError("cannot write 1 samples: the disk is full")
    status, headers = status_of(full)
    sent = {name.decode(): value.decode() for name, value in headers}
    double.refusals = [JSONResponse(error_body(full), status, sent) for _ in range(2)]
    with pytest.raises(errors.DiskError, match="the disk is full") as caught:
        await client.chat.completions.create(model="m", messages=ASK)
    assert isinstance(caught.value, openai.InternalServerError)
    assert (caught.value.code, caught.value.status_code) == ("disk_error", 507)
    assert not double.refusals, "the lane's request and one of openai's"
    assert len(double.headers) == 2


@pytest.mark.parametrize(
    "lost",
    [
        errors.WorkerDiedError("the engine 'm' ended with exit code -9"),
        errors.WorkerStalledError("the engine 'm' does not answer"),
        errors.NodeLostError("the machine of the engine 'm' is gone"),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_a_worker_that_stays_away_is_the_error_of_openai_and_ours(client, double: Double, lost):
    status, _ = status_of(lost)
    double.refusals = [JSONResponse(error_body(lost), status, {"retry-after": "0.01"}) for _ in range(3)]
    with pytest.raises(errors.WorkerError, match="the engine 'm'") as caught:
        await client.with_options(max_retries=2).chat.completions.create(model="m", messages=ASK)
    assert isinstance(caught.value, openai.InternalServerError) and caught.value.status_code == status
    assert not double.refusals, "tried as often as openai does"


async def test_wrong_key(server):
    with pytest.raises(openai.AuthenticationError):
        await openai_client(base_url=f"{server}/v1", api_key="wrong").chat.completions.create(
            model="m", messages=ASK
        )


async def test_what_openai_refuses_is_refused(client):
    with pytest.raises(TypeError, match="temprature"):
        await client.chat.completions.create(model="m", messages=ASK, temprature=1)
    with pytest.raises(TypeError, match="messages"):
        await client.chat.completions.create(model="m")
    with pytest.raises(ValueError):
        await client.chat.completions.create(model="m", messages=ASK, temperature=float("nan"))


async def test_a_timeout_in_seconds_keeps_the_short_way(client, double: Double):
    await client.chat.completions.create(model="m", messages=ASK, timeout=30)
    assert "x-stainless-lang" not in double.headers[0]


async def test_raw_responses_and_own_headers_take_the_ordinary_way(client, double: Double):
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASK)
    assert raw.parse().choices[0].model_extra["sample_id"] == "s1"
    await client.chat.completions.create(model="m", messages=ASK, extra_headers={"x-own": "1"})
    assert double.headers[1]["x-own"] == "1"
    assert all("x-stainless-lang" in headers for headers in double.headers)


async def test_replies_the_short_way_cannot_read_come_the_ordinary_way(client, double: Double):
    double.chunked = True
    completion = await client.chat.completions.create(model="m", messages=ASK)
    assert completion.choices[0].message.content.startswith("reply")


async def test_cancelling_a_request_tells_the_server(client, double: Double):
    double.delay_s = 60.0
    task = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASK))
    await until(lambda: double.rollouts)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: double.abandoned)
    double.delay_s = 0.0
    assert await client.chat.completions.create(model="m", messages=ASK)


def test_one_client_in_several_event_loops(client, double: Double):
    for _ in range(3):
        asyncio.run(client.chat.completions.create(model="m", messages=ASK))
    assert len(double.rollouts) == 3


async def test_nobody_answers_the_server_is_revived(unused_tcp_port_factory, double: Double):
    revived = []

    async def revive() -> None:
        revived.append(1)
        raise art.errors.WorkerDiedError("it is dead")

    client = openai_client(
        base_url=f"http://127.0.0.1:{unused_tcp_port_factory()}/v1", api_key=KEY, revive=revive
    )
    with pytest.raises(art.errors.WorkerDiedError):
        await client.chat.completions.create(model="m", messages=ASK)
    assert revived == [1]


async def test_a_copy_names_rollouts_too(client, double: Double):
    with rollout_scope("mine"):
        await client.with_options(max_retries=0).chat.completions.create(model="m", messages=ASK)
    assert double.rollouts == ["mine"]


def test_other_hosts_and_https_take_the_ordinary_way(monkeypatch):
    assert openai_client(base_url="https://gpu.example.org/v1", api_key=KEY).lane is None
    assert openai_client(base_url="http://127.0.0.1:80/v1", api_key=KEY).lane is not None
    monkeypatch.setenv("http_proxy", "http://proxy.example.org:3128")
    assert openai_client(base_url="http://gpu.example.org/v1", api_key=KEY).lane is None


def test_a_text_or_call_that_was_changed_after_its_reply_is_found_out() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"n": 1}'}}
    message = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message, "sample_id": "s1"}
    told = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    texts, completion = SampledTexts(), ChatCompletion.model_validate(told)
    texts.observe({}, completion)
    (reply,) = completion.choices
    respelled = json.loads(json.dumps(choice))
    respelled["message"]["tool_calls"][0]["function"]["arguments"] = '{"n":1}'
    assert not texts.is_edited(reply) and not texts.is_edited(reply.model_dump())
    assert not texts.is_edited(respelled), "a client wrote the arguments again"
    assert not texts.is_edited({**choice, "sample_id": "of another program", "message": {"content": "?"}})
    reply.message.tool_calls[0].function.arguments = '{"n": 2}'
    assert texts.is_edited(reply)
    assert texts.is_edited({**choice, "message": {**message, "content": "I looked."}})
    assert texts.is_edited({**choice, "message": {**message, "tool_calls": []}})


@pytest.mark.parametrize("way", ["short", "ordinary"])
async def test_a_server_that_is_gone_without_a_word_is_noticed(
    server: str, double: Double, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SILENT_S", 1)
    monkeypatch.setattr(connection, "ASK_EVERY_S", 1)
    monkeypatch.setattr(connection, "GIVE_UP_S", 3)
    relay = Relay(int(server.rpartition(":")[2]))
    client = openai_client(base_url=f"http://127.0.0.1:{relay.port}/v1", api_key=KEY)
    double.delay_s = 600.0
    asked = client.chat.completions.create(model="m", messages=ASK) if way == "short" else ordinary(client)
    completion = asyncio.ensure_future(asked)
    await until(lambda: double.bodies)
    double.delay_s = 0.0
    relay.lose_connections()
    assert (await completion).choices[0].message.content.startswith("reply 2")
    relay.close()


def test_a_connection_to_a_machine_that_is_gone_ends_within_a_minute() -> None:
    options = {option: value for _, option, value in connection.silent_peer_options()}
    asked = options[socket.TCP_KEEPIDLE] + options[socket.TCP_KEEPINTVL] * options[socket.TCP_KEEPCNT]
    assert 1000 * asked == options[socket.TCP_USER_TIMEOUT] < 60_000


def test_the_newest_replies_are_remembered_in_memory_of_a_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a client keeps, eight times: those of the last two parts may be known, no other one is."""

    def reply_of(number: int, text: str) -> ChatCompletion:
        said = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": said, "sample_id": f"s{number}"}
        return ChatCompletion.construct(choices=[Choice.model_validate(choice)])

    assert 2 * 16 * openai_client_module.SLOTS == 2 * 1024 * 1024, "two tables"
    most = 1024
    monkeypatch.setattr(openai_client_module, "KEPT_REPLIES", most)
    monkeypatch.setattr(openai_client_module, "SLOTS", 2 * most)
    choice = reply_of(0, "").choices[0]
    said = ChatCompletion.construct(choices=[choice])
    held, total = [], 8 * most
    tracemalloc.start()
    try:
        texts = SampledTexts()
        for number in range(total):
            choice.sample_id, choice.message.content = f"s{number}", f"reply {number}"
            texts.observe({}, said)
            if number % most == most - 1:
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held) - held[0] < 1000, held
    arrays = [one for table in (texts._newer, texts._older) for one in (table._samples, table._texts)]
    assert sum(map(sys.getsizeof, arrays)) < 2 * 16 * 2 * most + 1000
    for number in range(total - most, total, 97):
        assert not texts.is_edited(reply_of(number, f"reply {number}").choices[0])
        assert texts.is_edited(reply_of(number, "another").choices[0])
    assert not any(
        texts.is_edited(reply_of(number, "another").choices[0]) for number in range(0, total - 2 * most, 97)
    )
