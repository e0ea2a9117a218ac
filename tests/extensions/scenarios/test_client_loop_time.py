"""No callback of a client's loop works through a reply, however large it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from art.client.http.openai_client import MOST_VALUES, openai_client
from art.errors import ARTError, LlmUnavailableError
from art.rewards.llm import resolve_llm
from art.rewards.llm.request import Request
from art_extensions.scenarios.mcp import connect
from loop_time import watched_callbacks
from serving import serving_in_a_thread

pytestmark = [pytest.mark.slow, pytest.mark.extension]
HI: list[Any] = [{"role": "user", "content": "hi"}]
REPLY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","usage":null,"choices":[%b{"index":0,'
    b'"finish_reason":"stop","message":{"role":"assistant","content":"%b"},"logprobs":{"content":[%b]}}]}'
)
TOKEN = b'{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}'
MCP_PROGRAM = """
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    told = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "initialize":
        told["result"] = {"protocolVersion": asked["params"]["protocolVersion"]}
        told["result"] |= {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif asked["method"] == "tools/list":
        tool = {"name": "f", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        told["result"] = {"tools": [tool]}
    elif asked["method"] == "tools/call":
        count, size = asked["params"]["arguments"]["count"], asked["params"]["arguments"]["size"]
        told["result"] = {"content": [{"type": "text", "text": "x" * size}] * count}
    else:
        told["error"] = {"code": -32601, "message": "no such method"}
    print(json.dumps(told), flush=True)
"""


@pytest.fixture
def replies() -> Iterator[tuple[str, list[bytes]]]:
    """An address that answers each request with the bytes in the list."""
    body: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body[0]))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body[0]})

    with serving_in_a_thread(app) as url:
        yield f"{url}/v1", body


async def test_a_reply_with_the_probabilities_of_many_tokens(replies: tuple[str, list[bytes]]) -> None:
    url, body = replies
    body.append(REPLY % (b"", b"a" * 100_000, b",".join([TOKEN] * 100_000)))
    async with openai_client(base_url=url, api_key="k3y-of-a-server") as client:
        assert client.lane is not None
        with watched_callbacks() as found:
            reply = await client.chat.completions.create(model="m", messages=HI)
            assert reply.choices[0].logprobs is not None
            assert len(reply.choices[0].logprobs.content or ()) == 100_000
            assert not found.too_long()


@pytest.mark.parametrize(
    ("before", "text", "message"),
    [
        (b'{"message":{}},' * 200_000, b"", f"more than {MOST_VALUES} values"),
        (b"", b"more, {and} more. " * 200_000, ""),
        (b"", b"\\u00e9" * 600_000, ""),
        (b"", b"x" * 20_000_000, "longer than"),
    ],
)
async def test_a_judge_s_reply(
    replies: tuple[str, list[bytes]], before: bytes, text: bytes, message: str
) -> None:
    url, body = replies
    body.append(REPLY % (before, text, b""))
    judge = resolve_llm("judge", base_url=url, api_key="k3y-of-a-judge")
    with watched_callbacks() as found:
        if message:
            with pytest.raises(LlmUnavailableError, match=message):
                await judge.complete(Request(messages=tuple(HI)))
        else:
            assert len((await judge.complete(Request(messages=tuple(HI)))).text) >= 600_000
    assert not found.too_long()


async def test_what_an_mcp_server_answers(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(MCP_PROGRAM)
    with watched_callbacks() as found:
        async with connect([sys.executable, str(program)]) as session:
            assert len((await session.call("f", {"count": 1, "size": 8_000_000})).text) == 8_000_000
            assert len((await session.call("f", {"count": 2_400, "size": 100})).text) >= 240_000
            with pytest.raises(ARTError, match="200000 items"):
                await session.call("f", {"count": 200_000, "size": 10})
    assert not found.too_long()
