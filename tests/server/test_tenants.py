"""Several people on one server: what each is shown is as if the others were not there."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tenants_world import World, run_world, secret_of

from art.errors import ConfigurationError, RequestError
from art.rendering.library import LibraryRenderer
from art.server.ledger.stitching import Stitcher
from art.server.tenancy import external_name, internal_name, redact_for_tenant, tenant_of
from art.server.tenants import KeyCheck, TenantKeys, Tenants, digest_of_key
from waiting import until

PLAYER = {"model": "player", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 40}


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


async def say(world: World, who: str, **changes: Any) -> Any:
    reply = await world.clients[who].post("/v1/chat/completions", json={**PLAYER, **changes})
    return reply.json()


async def sample(world: World, who: str, reply: Any) -> Any:
    name = reply["choices"][0]["sample_id"]
    return (await world.clients[who].get(f"/v1/samples/{name}")).json()


# Names


@given(st.sampled_from(["alice", "al", "b-o.b"]), st.text("ab.-_9", min_size=1, max_size=8))
def test_a_name_goes_in_and_comes_out(tenant: str, name: str) -> None:
    assert (
        external_name(tenant, internal_name(tenant, name)) == name
        and tenant_of(internal_name(tenant, name)) == tenant
    )
    assert internal_name(None, name) == name and tenant_of(name) is None


@pytest.mark.parametrize(
    ("text", "alice_reads"),
    [
        ("model alice~games/player@3 is gone", "model games/player@3 is gone"),
        ("served: 'bob~games/player@3', 'x'", "served: '(hidden)', 'x'"),
        ("malice~games is another", "(hidden) is another"),
        ("/data/alice~games/models/p", "/data/games/models/p"),
        ("no tenant here ~", "no tenant here ~"),
    ],
)
def test_messages_name_nobody_else(text: str, alice_reads: str) -> None:
    assert redact_for_tenant("alice", text) == alice_reads
    assert redact_for_tenant(None, text) == text


# Keys


def test_a_key_is_shown_once_and_kept_as_a_digest(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path / "server" / "tenants.json")
    key = tenants.create("alice")
    kept = tenants.path.read_text()
    assert key not in kept and digest_of_key(key).hex() in kept
    assert stat.S_IMODE(tenants.path.stat().st_mode) == 0o600
    assert len(key) > 40 and tenants.create("bob") != key
    assert [record.name for record in tenants.list_tenants()] == ["alice", "bob"]
    with pytest.raises(ConfigurationError, match="revoke"):
        tenants.create("alice")
    tenants.revoke("alice")
    with pytest.raises(ConfigurationError, match="no tenant 'alice'; tenants with a key: bob"):
        tenants.revoke("alice")
    assert tenants.create("alice") != key
    assert stat.S_IMODE(tenants.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "a~b", "../x", "a/b", "-a", "x" * 101])
def test_a_tenant_has_a_name_that_is_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="is not a name"):
        Tenants(tmp_path / "tenants.json").create(name)


async def test_a_running_server_sees_each_change_of_the_file(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path / "tenants.json")
    running = TenantKeys(tenants.path)
    first = tenants.create("alice")
    assert running.owner(digest_of_key(first)) == "alice"
    # Two changes between two looks, the file as long as before: only its inode tells.
    tenants.revoke("alice")
    second = tenants.create("alice")
    await until(lambda: running.owner(digest_of_key(second)) == "alice")
    assert running.owner(digest_of_key(first)) is None
    tenants.path.write_text("{")
    await until(lambda: running.owner(digest_of_key(second)) is None)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        tenants.list_tenants()
    tenants.path.unlink()
    third = tenants.create("alice")
    await until(lambda: running.owner(digest_of_key(third)) == "alice")
    assert "alice" not in repr(KeyCheck("k" * 8, running))


async def test_a_revoked_key_is_refused_and_others_go_on(world: World) -> None:
    assert (await world.clients["alice"].get("/v1/models")).status_code == 200
    world.tenants.revoke("alice")

    async def refused() -> bool:
        return "invalid_api_key" in (await world.clients["alice"].get("/v1/models")).text

    await until(refused)
    assert (await world.clients["bob"].get("/v1/models")).status_code == 200


async def get_and_revoke(world: World, path: str, *, parts: int) -> list[Any]:
    """What alice is sent, whose key is revoked, and known to be, once the first `parts` are."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def refused() -> bool:
        return (await world.clients["alice"].get("/v1/models")).status_code == 401

    async def send(event: Any) -> None:
        sent.append(event)
        if len(sent) == parts:
            world.tenants.revoke("alice")
            await until(refused)

    request = world.clients["alice"].build_request("GET", path)
    scope = {
        "type": "http",
        "method": "GET",
        "path": request.url.path,
        "query_string": b"",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }
    await world.app(scope, receive, send)
    return sent


async def test_a_whole_reply_that_has_begun_is_not_cut_in_two(world: World) -> None:
    start, body = await get_and_revoke(world, "/v1/models", parts=1)
    assert start["status"] == 200 and json.loads(body["body"])["data"]


async def test_a_reply_that_outlives_its_key_breaks_off(world: World) -> None:
    async def events(job_id: str, after: int) -> AsyncIterator[bytes]:
        while True:
            yield b"\n"
            await asyncio.sleep(0.02)

    world.control.jobs.events = events  # type: ignore[method-assign]
    sent = await get_and_revoke(world, "/art/jobs/j/events", parts=3)
    assert sent[0]["status"] == 200
    # No last part: to the client it is a connection that broke, not the end of the job.
    assert len(sent) >= 3 and all(event.get("more_body", True) for event in sent)


# What is seen


async def test_each_has_models_samples_and_rollouts_of_their_own(world: World) -> None:
    replies = {}
    for who in ("operator", "alice", "bob"):
        headers = {"x-art-rollout": "r1"}
        answer = await world.clients[who].post("/v1/chat/completions", json=PLAYER, headers=headers)
        replies[who] = answer.json()
        assert replies[who]["choices"][0]["message"]["content"] == secret_of(who)
        assert replies[who]["system_fingerprint"] == "games/player@3"
    for who, other in (("alice", "bob"), ("bob", "alice"), ("alice", "operator")):
        client = world.clients[who]
        assert (await sample(world, who, replies[who]))["project"] == "games"
        foreign = replies[other]["choices"][0]["sample_id"]
        assert (await client.get(f"/v1/samples/{foreign}")).status_code == 404
        rollout = (await client.get("/v1/rollouts/r1")).json()
        assert [one["sample_id"] for one in rollout["samples"]] == [replies[who]["choices"][0]["sample_id"]]
        assert {row["id"] for row in (await client.get("/v1/models")).json()["data"]} == {
            "tiny",
            "player",
            "player@3",
        }
        answer = await client.post("/v1/chat/completions", json={**PLAYER, "model": "player:step3"})
        assert answer.json()["choices"][0]["message"]["content"] == secret_of(who)
        foreign = {**PLAYER, "model": f"{other}~games/player:step3"}
        assert (await client.post("/v1/chat/completions", json=foreign)).status_code == 404
    everything = await world.clients["operator"].get("/v1/models")
    assert {"player", "alice~games/player", "bob~games/player@3"} <= {
        row["id"] for row in everything.json()["data"]
    }
    seen = await sample(world, "operator", replies["alice"])
    assert seen["project"] == "alice~games"


async def test_a_conversation_of_another_is_never_continued(world: World) -> None:
    first = await say(world, "alice", messages=[{"role": "user", "content": "x"}], model="tiny")
    answered = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "base"}]
    told_id = {**answered[1], "sample_id": first["choices"][0]["sample_id"]}
    for round_, history in enumerate((answered, [answered[0], told_id])):
        follow = {"model": "tiny", "messages": [*history, {"role": "user", "content": f"{round_}"}]}
        for who, stitched in (("bob", False), ("operator", False), ("alice", True)):
            headers = {"x-art-rollout": f"r{round_}"}
            reply = await world.clients[who].post("/v1/chat/completions", json=follow, headers=headers)
            record = await sample(world, who, reply.json())
            assert (record["parent_id"] is not None) == stitched
            assert record["fork_reason"] is None


@pytest.mark.parametrize(("who", "stitched"), [("bob", False), ("operator", False), ("alice", True)])
async def test_nor_after_a_restart(
    tmp_path: Path, renderer: LibraryRenderer, who: str, stitched: bool
) -> None:
    async with run_world(tmp_path, renderer) as world:
        question = {"role": "user", "content": "x"}
        first = await say(world, "alice", messages=[question], model="tiny")
        reply = {"role": "assistant", "content": "base", "sample_id": first["choices"][0]["sample_id"]}
        # What a server knows that has just been started: the ledger, and nothing in memory.
        sampler = world.app._sampler
        sampler._stitcher = Stitcher(world.ledger, max_tokens=10_000, ledger_is_empty=False)
        follow = await say(world, who, model="tiny", messages=[question, reply, question])
        assert ((await sample(world, who, follow))["parent_id"] is not None) == stitched


async def test_base_models_are_seen_by_those_who_train_on_them(world: World) -> None:
    assert (await say(world, "alice", model="tiny"))["choices"]
    refused = await say(world, "alice", model="idle")
    assert refused["error"]["code"] == "model_not_found" and "'tiny'" in refused["error"]["message"]
    assert (await say(world, "operator", model="idle"))["choices"]
    fresh = world.client(world.tenants.create("guest"))

    async def known() -> bool:
        return (await fresh.get("/v1/models")).status_code == 200

    await until(known)
    assert (await fresh.get("/v1/models")).json()["data"] == []
    assert (await fresh.get("/art/models")).json()["models"] == []
    assert "nothing yet" in (await fresh.post("/v1/chat/completions", json=PLAYER)).text
    await fresh.aclose()


@pytest.mark.parametrize(
    "base",
    [
        "/etc",
        "./x",
        "../x",
        "~/x",
        "a/b/c",
        "C:\\x",
        "alice~games/models/player/checkpoints/0003",
        "/etc#4bit",
    ],
)
async def test_a_tenant_trains_no_folder_of_the_machine(world: World, base: str) -> None:
    body = {"project": "p", "name": "m", "base_model": base}
    reply = await world.clients["bob"].post("/art/models", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["code"] == "base_model_not_allowed"


@pytest.mark.parametrize("project", ["alice~games", "~", "a~b", "server"])
async def test_nobody_can_spell_a_project_of_another(world: World, project: str) -> None:
    body = {"project": project, "name": "m", "base_model": "art/nano"}
    for who in ("operator", "alice", "bob"):
        reply = await world.clients[who].post("/art/models", json=body)
        assert reply.status_code == 400 and reply.json()["error"]["code"] == "invalid_name"


async def test_health_tells_a_tenant_about_itself(world: World) -> None:
    health = (await world.clients["alice"].get("/health")).json()
    assert set(health) == {"status", "version", "models"}
    assert health["models"] == ["tiny", "player", "player@3"]
    assert "workers" in (await world.clients["operator"].get("/health")).json()
    anonymous = await world.client("wrong").get("/health")
    assert set(anonymous.json()) == {"status", "version"}


async def test_jobs_and_paths_are_told_to_their_owners(world: World) -> None:
    job = (await world.clients["alice"].get("/art/jobs/j")).json()
    assert job["job_id"] == "j" and job["model"] == "games/player"
    assert job["result"]["checkpoint_path"] is None
    events = (await world.clients["alice"].get("/art/jobs/j/events")).text.splitlines()
    assert [json.loads(line)["type"] for line in events] == ["state", "result"]
    assert "~" not in "".join(events)
    own = (await world.clients["operator"].get("/art/jobs/j")).json()
    assert own["model"] == "games/player" and own["result"]["checkpoint_path"]
    seen = (await world.clients["operator"].get("/art/jobs/bob~j")).json()
    assert seen["model"] == "bob~games/player"
    info = (await world.clients["bob"].get("/art/models/games/player")).json()
    assert info["entity"] == "bob" and info["checkpoint_dir"] is None and info["inference_name"] == "player"
