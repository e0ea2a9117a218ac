"""Scoped rollouts: programs that know nothing of us, through an address or a key."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from live import KEY, Live, run_gateway
from scripted_engine import Script, ScriptedEngine
from tenants_world import run_world

import art
from art.client.http.openai_client import openai_client
from art.engine.protocol import Delta, GenerateRequest
from art.errors import ConfigurationError, NotFoundError, RequestError, WorkerError
from art.rendering.library import LibraryRenderer
from art.server.catalog import Catalog
from art.server.ledger.ledger import Ledger
from art.server.rollouts import KEPT_CLOSED_S, ScopedRollouts
from art.server.settings import LimitSettings
from art.server.tenants import RolloutKeys
from art.trajectories import is_choice
from art.types import completion_call
from waiting import until

ASK = [{"role": "user", "content": "hello there"}]
PROGRAM = """
import json, os, sys, urllib.request
url, key, model = sys.argv[1:]
messages = [{"role": "user", "content": "hello there"}]
for _ in range(3):
    body = json.dumps({"model": model, "messages": messages}).encode()
    head = {"authorization": "Bearer " + key, "content-type": "application/json"}
    reply = json.load(urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, head)))
    said = {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
    messages += [said, {"role": "user", "content": "go on"}]
"""


@pytest.fixture
def engine(renderer: LibraryRenderer) -> ScriptedEngine:
    """Each reply is another one."""
    replies = (f"reply {number}<|im_end|>" for number in itertools.count())
    return ScriptedEngine(lambda request: Script(ids=renderer.encode(next(replies))))


@pytest.fixture
def model(live: Live) -> art.TrainableModel:
    return model_of(live.url)


def model_of(url: str, key: str = KEY) -> art.TrainableModel:
    known = art.TrainableModel(name="player", project="games", base_model="tiny")
    known.inference_base_url, known.inference_api_key = f"{url}/v1", key
    return known


def client(url: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


async def ask(url: str, key: str, messages: Any = ASK, model: str = "player", **options: Any) -> Any:
    async with client(url, key) as asked:
        return await asked.chat.completions.create(model=model, messages=messages, **options)


def histories(trajectory: art.Trajectory) -> Iterator[list[Any]]:
    for history in (trajectory, *trajectory.additional_histories):
        yield history.messages_and_choices


def samples(trajectory: art.Trajectory) -> list[str]:
    items = [item for history in histories(trajectory) for item in history if is_choice(item)]
    return [item.model_extra["sample_id"] for item in items]


@pytest.mark.slow
@pytest.mark.parametrize("named_by", ["address", "key"])
async def test_a_program_of_any_kind_is_named_by_the_address_or_by_the_key(
    live: Live, model: art.TrainableModel, named_by: str
) -> None:
    async with art.rollout(model) as r:
        plain = str(model.inference_base_url)
        url, key = (r.base_url, KEY) if named_by == "address" else (plain, r.api_key)
        command = [sys.executable, "-c", PROGRAM, url, key, "player"]
        done = await asyncio.to_thread(subprocess.run, command, timeout=240, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    told = [m["content"] for m in r.trajectory.messages()]
    assert told == ["hello there", "reply 0", "go on", "reply 1", "go on", "reply 2"]
    assert r.trajectory.additional_histories == [] and r.forks == {} and r.trajectory.metrics["forks"] == 0
    calls = [completion_call(item) for item in r.trajectory.messages_and_choices if is_choice(item)]
    moments = [call[name] for call in calls for name in ("started_at", "ended_at")]
    assert moments == sorted(moments)  # as the server saw them
    kept = await live.ledger.rollout(r.rollout_id)
    assert [call["prompt_tokens"] for call in calls] == [len(record.prompt_ids) for record in kept]
    assert [record.sample_id for record in kept] == samples(r.trajectory)
    assert [record.parent_id for record in kept] == [None, *samples(r.trajectory)[:2]]
    assert r.trajectory.initial_policy_version == r.trajectory.final_policy_version == 3


@pytest.mark.slow
async def test_the_key_opens_its_own_completions_alone(live: Live, model: art.TrainableModel) -> None:
    async with art.rollout(model) as one, art.rollout(model) as other:
        for path, method, status in (
            ("/art/models", "GET", 403),
            ("/art/rollouts", "POST", 403),
            (f"/art/rollouts/{one.rollout_id}", "GET", 403),
            ("/v1/samples/smp_1", "GET", 403),
            (f"/v1/rollouts/{one.rollout_id}", "GET", 403),
            (f"/r/{other.rollout_id}/v1/chat/completions", "POST", 403),
            (f"/r/{one.rollout_id}/v1/models", "GET", 200),
        ):
            async with client(live.url, one.api_key) as asked:
                reply = await asked._client.request(
                    method, live.url + path, json={}, headers={"authorization": f"Bearer {one.api_key}"}
                )
            assert reply.status_code == status, (path, reply.text)
        flipped = one.api_key[:-1] + ("0" if one.api_key[-1] != "0" else "1")
        for wrong in (flipped, one.api_key.partition(".")[0], "art-rollout-", "art-rollout-é.", KEY + "x"):
            with pytest.raises((openai.AuthenticationError, UnicodeEncodeError)):
                await ask(one.base_url, wrong)
        async with client(live.url, "none") as asked:  # as Anthropic's clients send it
            head = {"x-api-key": one.api_key}
            body = {"model": "player", "messages": ASK}
            reply = await asked._client.post(f"{live.url}/v1/chat/completions", json=body, headers=head)
            assert reply.status_code == 200
    assert len(samples(one.trajectory)) == 1 and samples(other.trajectory) == []
    assert KEY not in one.api_key and "key" not in repr(one)


@pytest.mark.slow
async def test_rollouts_with_the_same_words_stay_apart(live: Live, model: art.TrainableModel) -> None:
    ours = openai_client(base_url=str(model.inference_base_url), api_key=KEY)  # names the rollout by itself

    async def play() -> art.Trajectory:
        async with art.rollout(model) as r:
            reply = await ask(str(model.inference_base_url), r.api_key)
            said = {"role": "assistant", "content": reply.choices[0].message.content}
            await ours.chat.completions.create(model="player", messages=[*ASK, said, *ASK])
        return r.trajectory

    group = await art.TrajectoryGroup(play() for _ in range(6))
    found = [samples(trajectory) for trajectory in group]
    assert [len(one) for one in found] == [2] * 6 and len({name for one in found for name in one}) == 12
    for trajectory in group:
        kept = await live.ledger.rollout(str(trajectory.rollout_id))
        assert [record.sample_id for record in kept] == samples(trajectory)


@pytest.mark.slow
async def test_compaction_sub_agents_and_streams_become_histories(
    live: Live, model: art.TrainableModel
) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    async with art.rollout(model) as r:
        first = await ask(r.base_url, r.api_key, tools=tools)
        said = {"role": "assistant", "content": first.choices[0].message.content}
        sub = [{"role": "system", "content": "you help"}, *ASK]
        await ask(r.base_url, r.api_key, sub, n=2)
        async with client(r.base_url, r.api_key) as asked:
            stream = await asked.chat.completions.create(
                model="player", messages=[*ASK, said, *ASK], tools=tools, stream=True
            )
            async for _ in stream:
                pass
        compacted = [{"role": "user", "content": "so far: hello"}]
        await ask(r.base_url, r.api_key, compacted, tools=tools)
        kept = [record.sample_id for record in await live.ledger.rollout(r.rollout_id)]
        assert sorted(samples(await r.refresh())) == sorted(kept)
    main, *further = histories(r.trajectory)
    shapes = [[is_choice(item) for item in history] for history in (main, *further)]
    assert shapes == [[0, 1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1]]
    assert r.trajectory.tools == tools and [h.tools for h in r.trajectory.additional_histories] == [
        None,
        None,
        tools,
    ]
    assert len(set(samples(r.trajectory))) == 5


@pytest.mark.slow
async def test_which_names_mean_the_model(live: Live, model: art.TrainableModel) -> None:
    async with art.rollout(model, aliases=("gpt-4o-mini",)) as r:
        for name in ("player", "games/player", "player@3", "player:step3", "gpt-4o-mini", r.model_name):
            reply = await ask(r.base_url, r.api_key, model=name)
            assert reply.model == name and reply.choices[0].model_extra["step"] == 3
        with pytest.raises(
            openai.NotFoundError, match="'gpt-5' is not the model of this rollout: ask for 'games/pl"
        ):
            await ask(r.base_url, r.api_key, model="gpt-5")
        with pytest.raises(
            openai.NotFoundError, match=r"is a base model, which does not learn.*allow_base=True"
        ):
            await ask(r.base_url, r.api_key, model="tiny")
        async with client(r.base_url, r.api_key) as asked:
            assert [row.id async for row in asked.models.list()] == ["player", "gpt-4o-mini"]
            assert (await asked.models.retrieve("gpt-4o-mini")).id == "gpt-4o-mini"
            assert (await asked.models.retrieve("games/player:step3")).model_extra["step"] == 3
    assert len(samples(r.trajectory)) == 6
    async with art.rollout(model, aliases=("*",), allow_base=True) as r:
        assert (await ask(r.base_url, r.api_key, model="whatever")).choices[0].model_extra["step"] == 3
        base = await ask(r.base_url, r.api_key, model="tiny")
        assert base.choices[0].model_extra["step"] is None
    assert len(samples(r.trajectory)) == 1 and r.trajectory.metrics["base_samples"] == 1
    with pytest.raises(ConfigurationError, match="is one name; give a list"):
        art.rollout(model, aliases="gpt-4o-mini")
    with pytest.raises(ConfigurationError, match="a rollout is pinned to a step already"):
        art.rollout(model, step=3, pinned=True)


@pytest.mark.slow
async def test_the_newest_step_answers_unless_one_is_pinned(live: Live, model: art.TrainableModel) -> None:
    async with art.rollout(model) as free, art.rollout(model, pinned=True) as held:
        live.engine.adapters.add("games/player@4")
        live.catalog.publish("games", "player", "tiny", 4, "games/player@4")
        steps = [(await ask(r.base_url, r.api_key)).choices[0].model_extra["step"] for r in (free, held)]
        assert steps == [4, 3]
    async with art.rollout(model, step=3) as r:
        assert (await ask(r.base_url, r.api_key)).choices[0].model_extra["step"] == 3
    with pytest.raises(NotFoundError):
        async with art.rollout(model, step=9):
            pass


@pytest.mark.slow
async def test_after_the_block_nothing_is_added(live: Live, model: art.TrainableModel) -> None:
    live.engine.gate = asyncio.Event()
    with pytest.raises(ZeroDivisionError):
        async with art.rollout(model) as r:
            late = asyncio.create_task(ask(r.base_url, r.api_key))
            await until(lambda: bool(live.engine.requests))
            raise ZeroDivisionError
    live.engine.gate.set()
    with pytest.raises(
        openai.APIStatusError, match="is closed: its trajectory may already be trained"
    ) as told:
        await late
    assert told.value.status_code == 410
    for url, key in ((r.base_url, KEY), (str(model.inference_base_url), r.api_key)):
        with pytest.raises(openai.APIStatusError, match="is closed"):
            await ask(url, key)
    assert samples(r.trajectory) == [] and await live.ledger.rollout(r.rollout_id) == []
    assert "duration" in r.trajectory.metrics
    with pytest.raises(RequestError, match="is closed"):
        async with art.rollout(model, rollout_id=r.rollout_id):
            pass
    with pytest.raises(ConfigurationError, match="was entered before"):
        async with r:
            pass


@pytest.mark.slow
async def test_a_rollout_expires_and_a_clock_that_is_set_changes_nothing(
    live: Live, model: art.TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with art.rollout(model, expires_s=3600.0) as r:
        with monkeypatch.context() as clock:
            ahead = time.time() + 30 * 86_400.0
            clock.setattr(time, "time", lambda: ahead)
            await ask(r.base_url, r.api_key)
        scoped = live.app.rollouts.require(r.rollout_id, None)
        assert scoped.expires_at == pytest.approx(scoped.opened_at + 3600.0)
        scoped.expires_at = scoped.opened_at
        with pytest.raises(openai.APIStatusError, match=r"has expired: give .*expires_s"):
            await ask(r.base_url, r.api_key)
    assert len(samples(r.trajectory)) == 1


@pytest.mark.slow
async def test_what_was_delivered_is_kept_though_asked_again(live: Live, model: art.TrainableModel) -> None:
    async with art.rollout(model) as r:
        tries = [await ask(r.base_url, r.api_key) for _ in range(3)]  # the best of three is the second
        said = {"role": "assistant", "content": tries[1].choices[0].message.content}
        again = [*ASK, said, {"role": "user", "content": "more"}]
        await ask(r.base_url, r.api_key, again)  # did not parse: another try
        second = await ask(r.base_url, r.api_key, again)
        told = {"role": "assistant", "content": second.choices[0].message.content}
        await ask(r.base_url, r.api_key, [*again, told, *ASK])
    spoken = [
        [m["content"] for m in h.messages()] for h in (r.trajectory, *r.trajectory.additional_histories)
    ]
    assert spoken == [
        ["hello there", "reply 0"],
        ["hello there", "reply 1", "more", "reply 3"],
        ["hello there", "reply 2"],
        ["hello there", "reply 1", "more", "reply 4", "hello there", "reply 5"],
    ]
    assert "superseded_samples" not in r.trajectory.metrics
    kept = [record.sample_id for record in await live.ledger.rollout(r.rollout_id)]
    assert sorted(samples(r.trajectory)) == sorted(kept) and len(kept) == 6


@pytest.mark.slow
async def test_of_equal_replies_the_one_that_was_extended_is_continued(
    live: Live, model: art.TrainableModel
) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode("the same<|im_end|>"))
    async with art.rollout(model) as r:
        for _ in range(3):
            await ask(r.base_url, r.api_key)
        await ask(r.base_url, r.api_key, [*ASK, {"role": "assistant", "content": "the same"}, *ASK])
    kept = await live.ledger.rollout(r.rollout_id)
    chains = [[i.model_extra["sample_id"] for i in h if is_choice(i)] for h in histories(r.trajectory)]
    assert sorted(map(len, chains)) == [1, 1, 2] and len(set(samples(r.trajectory))) == 4
    assert [kept[3].parent_id, kept[3].sample_id] in chains


class HalfEngine(ScriptedEngine):
    """Of its first two completions the second does not end: it waits, then it fails."""

    def __init__(self, renderer: LibraryRenderer) -> None:
        replies = (f"reply {number}<|im_end|>" for number in itertools.count())
        super().__init__(lambda request: Script(ids=renderer.encode(next(replies))))
        self.fails = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        place = len(self.requests)
        async for delta in super().generate(request):
            yield delta
            if place == 1:
                await self.fails.wait()
                raise WorkerError("the engine is gone")


@pytest.mark.slow
@pytest.mark.parametrize("lost_by", ["the client that went away", "the stream that broke off"])
async def test_a_lost_reply_is_no_second_turn(
    tmp_path: Path, renderer: LibraryRenderer, lost_by: str
) -> None:
    engine = HalfEngine(renderer)
    async with (
        run_gateway(tmp_path / "ledger.sqlite", engine, renderer) as live,
        art.rollout(model_of(live.url)) as r,
        client(r.base_url, r.api_key) as asked,
    ):
        stream = await asked.chat.completions.create(model="player", messages=ASK, n=2, stream=True)
        async for chunk in stream:
            if any(choice.finish_reason for choice in chunk.choices):
                break  # this choice is in the ledger, and the reply is not at its end
        if lost_by == "the client that went away":
            await stream.close()
            await until(lambda: bool(engine.cancelled))
        else:
            engine.fails.set()
            with pytest.raises(openai.APIError, match="the engine is gone"):
                async for _ in stream:
                    pass
        assert len(samples(await r.refresh())) == 1
        second = await ask(r.base_url, r.api_key)
        said = {"role": "assistant", "content": second.choices[0].message.content}
        assert len(samples(await r.refresh())) == 2
        await ask(r.base_url, r.api_key, [*ASK, said, *ASK])
        assert len(await live.ledger.rollout(r.rollout_id)) == 3
    assert len(samples(r.trajectory)) == 2 and r.trajectory.additional_histories == []
    assert r.trajectory.metrics["superseded_samples"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": ASK, "n": 2}),
        ("completions", {"prompt": ["hello", "there"]}),
        ("responses", {"input": "hello"}),
        ("messages", {"messages": ASK, "max_tokens": 20}),
    ],
)
async def test_every_dialect_notes_what_it_delivered(
    live: Live, model: art.TrainableModel, path: str, body: dict[str, Any], stream: bool
) -> None:
    async with art.rollout(model) as r, client(r.base_url, r.api_key) as asked:
        whole = {"model": "player", "stream": stream, **body}
        head = {"authorization": f"Bearer {r.api_key}"}
        reply = await asked._client.post(f"{r.base_url}/{path}", json=whole, headers=head)
        assert reply.status_code == 200, reply.text
        told = await live.app.rollouts.exchanges(r.rollout_id, None)
    assert told.exchanges and all(one.delivered for one in told.exchanges)


@pytest.mark.slow
async def test_forks_are_told_with_their_reasons(live: Live, model: art.TrainableModel) -> None:
    async with art.rollout(model) as r:
        await ask(r.base_url, r.api_key)
        edited = [*ASK, {"role": "assistant", "content": "never said"}, *ASK]
        await ask(r.base_url, r.api_key, edited)
    assert r.forks == {"unknown_history": 1} and r.trajectory.metrics["forks"] == 1


@pytest.mark.slow
async def test_raw_prompts_are_conversations_of_their_own(live: Live, model: art.TrainableModel) -> None:
    async with art.rollout(model) as r, client(r.base_url, r.api_key) as asked:
        reply = await asked.completions.create(model="player", prompt="hello", n=2)
    said = [history[0]["content"] for history in histories(r.trajectory)]
    assert said == ["hello", "hello"] and len(samples(r.trajectory)) == 2 == len(reply.choices)


@pytest.mark.slow
async def test_long_conversations_are_kept_once(live: Live, model: art.TrainableModel) -> None:
    messages: list[Any] = [{"role": "user", "content": "x" * 2000}]
    async with art.rollout(model) as r:
        for turn in range(20):
            reply = await ask(r.base_url, r.api_key, messages, max_tokens=8)
            said = {"role": "assistant", "content": reply.choices[0].message.content}
            messages += [said, {"role": "user", "content": f"turn {turn}"}]
        ((size,),) = await live.ledger.rows(
            "SELECT SUM(size) FROM exchanges WHERE rollout_id = ?", (r.rollout_id,)
        )
    assert size < 2000 + 20 * 600
    assert [m["content"] for m in r.trajectory.messages()] == [m["content"] for m in messages[:-1]]


@pytest.mark.slow
async def test_a_rollout_with_too_much_text_is_refused(
    tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer
) -> None:
    limits = LimitSettings(rollout_text_bytes=2048)
    async with run_gateway(tmp_path / "ledger.sqlite", engine, renderer, limits=limits) as live:
        async with art.rollout(model_of(live.url)) as r:
            await ask(r.base_url, r.api_key, [{"role": "user", "content": "x" * 2500}])
            with pytest.raises(openai.APIStatusError, match=r"limits\.rollout_text_bytes"):
                await ask(r.base_url, r.api_key)


@pytest.mark.slow
async def test_a_server_takes_over_what_an_earlier_one_left(
    tmp_path: Path, engine: ScriptedEngine, renderer: LibraryRenderer
) -> None:
    path = tmp_path / "ledger.sqlite"
    async with run_gateway(path, engine, renderer) as live:
        r = art.rollout(model_of(live.url), rollout_id="kept")
        await r.__aenter__()
        await ask(r.base_url, r.api_key)
        closed = art.rollout(model_of(live.url), rollout_id="closed")
        async with closed:
            await ask(closed.base_url, closed.api_key)
    ledger = Ledger(path)
    keys = RolloutKeys(KEY, lambda tenant: None)
    successor = ScopedRollouts(ledger, Catalog(), keys, largest_text=10_000)
    await successor.load()
    assert keys.read(r.api_key) == (None, "kept") and keys.issue(None, "kept") == r.api_key
    kept = successor.open_one("kept", None)
    assert kept is not None and kept.text_bytes > 0 and kept.model == "games/player"
    with pytest.raises(RequestError, match="is closed"):
        successor.open_one("closed", None)
    told = await successor.close("kept", None)
    assert [one.delivered for one in told.exchanges] == [True]
    assert told == (await successor.close("kept", None)) and told.closed
    kept.closed_at = 0.0 - KEPT_CLOSED_S
    await successor._sweep()
    await successor.forget("closed", None)
    for table in ("exchanges", "delivered", "rollouts"):
        assert await ledger.rows(f"SELECT * FROM {table}") == []
    assert len(await ledger.rollout("kept")) == 1  # the samples stay
    with pytest.raises(NotFoundError, match="its texts are forgotten"):
        await successor.exchanges("kept", None)
    r._inside.close()
    await ledger.close()


@pytest.mark.slow
async def test_a_tenants_rollout_sees_its_own_models_and_dies_with_its_key(
    tmp_path: Path, renderer: LibraryRenderer
) -> None:
    async with run_world(tmp_path, renderer) as world:
        opened = (
            await world.clients["alice"].post("/art/rollouts", json={"project": "games", "name": "player"})
        ).json()
        body = {"model": "player", "messages": ASK, "max_tokens": 40}
        async with world.client(opened["api_key"]) as program:
            reply = (await program.post("/v1/chat/completions", json=body)).json()
            assert "alicesword" in reply["choices"][0]["message"]["content"]
            other = await program.post("/v1/chat/completions", json={**body, "model": "bob~games/player"})
            assert other.status_code == 404 and "~" not in other.text.replace("bob~games/player", "")
            assert "alice" not in opened["model"] and opened["model"] == "games/player"
            told = await world.clients["alice"].get(f"/art/rollouts/{opened['rollout_id']}")
            assert told.json()["project"] == "games" and len(told.json()["exchanges"]) == 1

            async def refused() -> bool:
                return (await program.post("/v1/chat/completions", json=body)).status_code == 401

            world.tenants.revoke("alice")
            await until(refused)
            async with world.client(world.tenants.create("alice")) as again:

                async def known() -> bool:
                    return (await again.get("/v1/models")).status_code == 200

                await until(known)
            assert await refused()


@pytest.mark.slow
async def test_a_capture_around_a_rollout_does_not_hear_it_too(live: Live, model: art.TrainableModel) -> None:
    async def program() -> None:
        async with art.rollout(model) as r:
            await ask(r.base_url, r.api_key)
        assert len(samples(r.trajectory)) == 1
        await ask(str(model.inference_base_url), KEY)

    assert len(samples(await art.capture_auto_trajectory(program()))) == 1


async def test_in_a_thread_without_a_loop(live: Live, model: art.TrainableModel) -> None:
    def script() -> art.Trajectory:
        with art.rollout(model) as r:
            sync = openai.OpenAI(base_url=r.env()["OPENAI_BASE_URL"], api_key=r.env()["OPENAI_API_KEY"])
            sync.chat.completions.create(model="player", messages=ASK)
        return r.trajectory

    assert len(samples(await asyncio.to_thread(script))) == 1
    with pytest.raises(ConfigurationError, match="use `async with"), art.rollout(model):
        pass
    json.dumps(art.rollout(model).trajectory.for_logging())
