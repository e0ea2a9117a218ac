"""Random requests of several people with the same names: each reads what it would read alone."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tenants_world import World, run_world, secret_of

from art.rendering.library import LibraryRenderer
from art.server.chat.messages import SAMPLE_PREFIX

WHO = st.sampled_from(["alice", "bob", "operator"])
STEP = st.one_of(
    st.tuples(
        st.just("start"), WHO, st.sampled_from(["player", "games/player@3", "tiny"]), st.integers(0, 1)
    ),
    st.tuples(st.just("continue"), WHO, st.sampled_from(["player", "tiny"]), st.integers(0, 9)),
    st.tuples(st.just("steal"), WHO, st.sampled_from(["player", "tiny"]), st.integers(0, 9)),
    st.tuples(st.just("sample"), WHO, WHO, st.integers(0, 9)),
    st.tuples(
        st.just("get"),
        WHO,
        st.sampled_from(
            [
                "/v1/models",
                "/art/models",
                "/v1/rollouts/r0",
                "/v1/rollouts/r1",
                "/v1/models/nobody",
                "/art/models/games/player",
                "/art/jobs",
                "/art/jobs?model=games/player&limit=1",
                "/art/jobs?before=bob~j",
                "/art/jobs/j",
                "/art/jobs/bob~j",
                "/art/models/bob~games/player",
            ]
        ),
        st.just(0),
    ),
    st.tuples(st.just("health"), WHO, st.just(""), st.just(0)),
    st.tuples(st.just("delete"), WHO, st.just(""), st.integers(0, 5)),
)
Step = tuple[str, str, str, int]
NOBODYS = f"{SAMPLE_PREFIX}{'0' * 24}"


class Program:
    """Requests of several, and what alice was answered."""

    def __init__(self, world: World, alone: bool) -> None:
        self.world, self.alone = world, alone
        self.said: dict[str, list[tuple[list[dict[str, Any]], str]]] = {}
        self.samples: dict[str, list[str]] = {"alice": [], "bob": [], "operator": []}
        self.heard: list[str] = []

    async def run(self, steps: list[Step]) -> list[str]:
        for step in steps:
            if not self.alone or step[1] == "alice":
                await self._step(*step)
        return self.heard

    async def _step(self, verb: str, who: str, what: str, number: int) -> None:
        client, other = self.world.clients[who], "bob" if who == "alice" else "alice"
        if verb == "start":
            await self._chat(who, what, [{"role": "user", "content": f"{secret_of(who)} {number}"}], number)
        elif verb in ("continue", "steal"):
            mine = self.said.get(who, [])
            if not mine:
                return
            history, sample_id = mine[number % len(mine)]
            if verb == "steal":  # the same text, said to be the answer that another was given
                stolen = self.samples[other] or [NOBODYS]
                sample_id = stolen[number % len(stolen)]
            reply = {**history[-1], "sample_id": sample_id}
            follow = [*history[:-1], reply, {"role": "user", "content": "go on"}]
            await self._chat(who, what, follow, number % 2)
        elif verb == "sample":
            ids = self.samples[what] or [NOBODYS]
            asked = ids[number % len(ids)]
            self._hear(who, await client.get(f"/v1/samples/{asked}"), asked)
        elif verb == "get":
            self._hear(who, await client.get(what))
        elif verb == "health":
            self._hear(who, await client.get("/health"))
        elif verb == "delete" and number == 0 and who != "alice":
            await client.delete("/art/models/games/player")

    async def _chat(self, who: str, model: str, messages: list[dict[str, Any]], rollout: int) -> None:
        body = {"model": model, "messages": messages, "max_tokens": 40}
        headers = {"x-art-rollout": f"r{rollout}"}
        reply = await self.world.clients[who].post("/v1/chat/completions", json=body, headers=headers)
        self._hear(who, reply)
        if reply.status_code != 200:
            return
        choice = reply.json()["choices"][0]
        self.samples[who].append(choice["sample_id"])
        plain = [{"role": one["role"], "content": one["content"]} for one in messages]
        answer = {"role": "assistant", "content": choice["message"]["content"]}
        self.said.setdefault(who, []).append(([*plain, answer], choice["sample_id"]))
        info = await self.world.clients[who].get(f"/v1/samples/{choice['sample_id']}")
        self._hear(who, info)

    def _hear(self, who: str, reply: Any, foreign: str | None = None) -> None:
        """What alice was answered, with her own samples numbered and the clock taken out."""
        if who != "alice":
            return
        text = reply.text
        if foreign is not None and foreign not in self.samples["alice"]:
            text = text.replace(foreign, "foreign")
        for number, own in enumerate(self.samples["alice"]):
            text = text.replace(own, f"own-{number}")
        text = re.sub(rf"{SAMPLE_PREFIX}[0-9a-f]{{24}}", "fresh", text)
        text = re.sub(r'"(created|created_at|started_at|ended_at|updated_at)": ?[0-9.e+]+', "", text)
        self.heard.append(f"{reply.status_code} {text}")


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEP, min_size=8, max_size=30))
def test_what_alice_reads_is_as_if_she_were_alone(
    steps: list[Step], tmp_path_factory: pytest.TempPathFactory, renderer: LibraryRenderer
) -> None:
    async def heard(alone: bool) -> tuple[list[str], list[str]]:
        folder = tmp_path_factory.mktemp("world")
        async with run_world(folder, renderer, ("alice",) if alone else ("alice", "bob")) as world:
            program = Program(world, alone)
            return await program.run(steps), program.samples["bob"] + program.samples["operator"]

    async def both() -> None:
        among, ids = await heard(alone=False)
        alone, _ = await heard(alone=True)
        assert among == alone
        told_all = "\n".join(among)
        for word in (secret_of("bob"), secret_of("operator"), *ids):
            assert word not in told_all

    asyncio.run(both())
