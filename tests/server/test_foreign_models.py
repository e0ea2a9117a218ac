"""Whose chat template has no end gets an error; everybody else is answered meanwhile."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from live import Live

from art.server.models.served import Serving

LOOP = (
    "{% for m in messages %}{% if m.content == 'go' %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
)


@pytest.mark.slow
async def test_a_template_that_loops_for_one_message_stops_nobody(live: Live) -> None:
    looping = live.renderer.told({}, template=LOOP).confined()
    live.catalog.serve_as("games", "player", Serving(renderer=looping, max_context=None))

    async def ask(text: str) -> openai.types.chat.ChatCompletion:
        return await live.client.chat.completions.create(
            model="player", messages=[{"role": "user", "content": text}], max_tokens=2
        )

    assert (await ask("hi")).choices
    stuck = asyncio.create_task(ask("go"))
    await asyncio.sleep(0.1)
    async with httpx.AsyncClient(trust_env=False) as anyone:
        for _ in range(5):
            assert (await anyone.get(f"{live.url}/health", timeout=30)).status_code == 200
    assert not stuck.done(), "the health was asked for while the template looped"
    with pytest.raises(openai.BadRequestError, match="exceeds what a rendering may use"):
        await stuck
    assert (await ask("hi again")).choices
