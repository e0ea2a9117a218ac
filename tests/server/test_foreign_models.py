"""Whose chat template has no end gets an error; everybody else is answered meanwhile."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from live import KEY, Live

from art.server.catalog import Serving
from waiting import DEADLINE_S

LOOP = (
    "{% for m in messages %}{% if m.content == 'go' %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/v1/messages/count_tokens"])
async def test_a_template_that_loops_for_one_message_stops_nobody(live: Live, path: str) -> None:
    looping = live.renderer.with_arguments({}, template=LOOP).confined()
    live.catalog.serve_as("games", "player", Serving(renderer=looping, max_context=None))

    async def ask(text: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"model": "player", "messages": [{"role": "user", "content": text}]}
        async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=300) as client:
            return await client.post(f"{live.url}{path}", json=body)

    assert (await ask("hi")).status_code == 200
    stuck = asyncio.create_task(ask("go"))
    await asyncio.sleep(0.1)
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as anyone:
        for _ in range(5):
            assert (await anyone.get(f"{live.url}/health", timeout=DEADLINE_S)).status_code == 200
    assert not stuck.done(), "the health was asked for while the template looped"
    refused = await stuck
    assert refused.status_code == 400 and "exceeds what a rendering may use" in refused.text
    assert (await ask("hi again")).status_code == 200
