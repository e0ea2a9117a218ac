"""A client may cut a stream into lines as `str.splitlines` does: no event is cut within."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from live import KEY, Live
from scripted_engine import Script

TEXT = "a\x85b\u2028c\u2029d\x1ce"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 64}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_characters_that_end_a_line_stand_within_an_event(
    live: Live, route: str, asked: dict[str, Any]
) -> None:
    live.engine.answer = lambda request: Script(ids=live.renderer.encode(TEXT + "<|im_end|>"), chunk=2)
    headers = {"authorization": f"Bearer {KEY}", "anthropic-version": "2023-06-01"}
    body = {"model": "player", "stream": True, **asked}
    told = []
    async with httpx.AsyncClient(base_url=live.url, headers=headers, timeout=240) as client:
        async with client.stream("POST", route, json=body) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                assert not line or line.startswith(("data: ", "event: ")), line
                if line.startswith("data: {"):
                    told.append(json.loads(line.removeprefix("data: ")))
    texts = {json.dumps(mark)[1:-1] for mark in TEXT if not mark.isalpha()}
    assert told and all(text in json.dumps(told) for text in texts)
