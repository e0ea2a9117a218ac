"""A field that nobody here knows stops no program: it is left out, noted once and counted, and never recorded
as if it had acted. One that is known to change a reply, or looks like one, is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from dialect_bodies import DIALECTS, refusal
from live import KEY, Live, run_gateway
from scripted_engine import Script, ScriptedEngine

from art.rendering.library import LibraryRenderer
from art.server.chat.request_fields import MOST_UNKNOWN
from art.server.settings import LimitSettings
from waiting import DEADLINE_S

PATHS = ("/v1/chat/completions", "/v1/completions")
STRICT_ROUTE = "/inference/v1/generate"
NEW: dict[str, Any] = {"nucleus_floor": 0.5, "agent_trace": {"session": "s"}}
IN_STREAMS = {"include_usage": True, "include_costs": True}


def asking(live: Live) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(base_url=live.url, headers=headers, timeout=DEADLINE_S)


@pytest.mark.parametrize("path", PATHS)
async def test_a_field_of_a_later_version_is_left_out_noted_once_and_counted(
    live: Live, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(live) as client:
        plain = await client.post(path, json=DIALECTS[path])
        replies = [await client.post(path, json={**DIALECTS[path], **NEW}) for _ in range(3)]
        metrics = (await client.get("/metrics")).text
    assert {reply.status_code for reply in replies} == {200}, replies[0].text
    assert all(reply.json().keys() == plain.json().keys() for reply in replies)
    assert live.app.counts.left_out == {(path, name): 3 for name in NEW}
    assert metrics.count("\nart_left_out_total{") == len(NEW)
    noted = [one.getMessage() for one in caplog.records if "does not act" in one.getMessage()]
    assert sorted(noted) == sorted(
        f"{path}: {name!r} does not act: no field of this name is known here (said once)" for name in NEW
    )


@pytest.mark.parametrize("path", PATHS)
async def test_a_sample_is_recorded_as_it_was_drawn_without_what_was_left_out(live: Live, path: str) -> None:
    drawn = {"temperature": 0.7, "top_k": 3, "seed": 7}
    bodies = ({**DIALECTS[path], **drawn}, {**DIALECTS[path], **drawn, **NEW})
    async with asking(live) as client:
        replies = [(await client.post(path, json=body)).json() for body in bodies]
    first, second = live.engine.requests
    assert first.sampling == second.sampling and list(first.prompt_ids) == list(second.prompt_ids)
    plain, other = await live.ledger.samples([reply["choices"][0]["sample_id"] for reply in replies])
    assert plain.sampling == other.sampling and not [name for name in NEW if name in repr(other)]
    assert {name: other.sampling[name] for name in drawn} == drawn


@pytest.mark.parametrize("path", PATHS)
async def test_an_option_of_streams_that_is_new_is_left_out_too(live: Live, path: str) -> None:
    body = {**DIALECTS[path], "stream": True, "stream_options": IN_STREAMS}
    async with asking(live) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200 and '"completion_tokens"' in reply.text, reply.text
    assert live.app.counts.left_out == {(path, "stream_options.include_costs"): 1}


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("temprature", 0.5, "temperature"),
        ("max_token", 9, "max_tokens"),
        ("stops", ["x"], "stop"),
        ("max_new_tokens", 9, "max_tokens"),
        ("repeat_penalty", 1.3, "repetition_penalty"),
        ("stop_sequences", ["x"], "stop"),
        ("temp", 0.1, "temperature"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_a_name_that_looks_like_a_known_one_is_refused_with_that(
    live: Live, path: str, name: str, value: Any, meant: str
) -> None:
    async with asking(live) as client:
        reply = await client.post(path, json={**DIALECTS[path], **NEW, name: value})
    error = refusal(reply, path)
    assert (reply.status_code, error["param"], error["code"]) == (400, name, "unsupported_parameter")
    assert f"{name!r} is not supported (did you mean {meant!r}?)" in error["message"]
    assert not live.engine.requests


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("/v1/chat/completions", "prompt", "hello"),
        ("/v1/chat/completions", "system", "Be brief."),
        ("/v1/chat/completions", "instructions", "Be brief."),
        ("/v1/chat/completions", "max_output_tokens", 9),
        ("/v1/chat/completions", "thinking", {"type": "disabled"}),
        ("/v1/chat/completions", "reasoning", {"effort": "low"}),
        ("/v1/chat/completions", "enable_thinking", False),
        ("/v1/chat/completions", "regex", "a*"),
        ("/v1/completions", "messages", []),
        ("/v1/completions", "tools", []),
        ("/v1/completions", "chat_template_kwargs", {"enable_thinking": False}),
        ("/v1/completions", "reasoning_effort", "low"),
        ("/v1/completions", "input", "hello"),
    ],
)
async def test_what_acts_on_another_route_is_refused(live: Live, path: str, name: str, value: Any) -> None:
    async with asking(live) as client:
        reply = await client.post(path, json={**DIALECTS[path], name: value})
    assert (reply.status_code, refusal(reply, path)["param"]) == (400, name), reply.text
    assert not live.engine.requests


@pytest.mark.parametrize("path", PATHS)
async def test_more_unknown_fields_than_can_be_meant_are_refused(live: Live, path: str) -> None:
    most = {f"field_{n}": n for n in range(MOST_UNKNOWN)}
    async with asking(live) as client:
        assert (await client.post(path, json={**DIALECTS[path], **most})).status_code == 200
        reply = await client.post(path, json={**DIALECTS[path], **{f"field_{n}": n for n in range(300)}})
    assert (reply.status_code, refusal(reply, path)["param"]) == (400, "body")


async def test_the_route_of_ids_knows_its_fields(live: Live) -> None:
    async with asking(live) as client:
        reply = await client.post(STRICT_ROUTE, json={**DIALECTS[STRICT_ROUTE], **NEW})
    assert (reply.status_code, refusal(reply, STRICT_ROUTE)["param"]) == (400, "nucleus_floor")


async def test_a_strict_server_refuses_what_others_leave_out(
    tmp_path: Path, renderer: LibraryRenderer
) -> None:
    engine = ScriptedEngine(lambda request: Script(ids=renderer.encode("hi<|im_end|>")))
    limits = LimitSettings(strict_requests=True)
    async with (
        run_gateway(tmp_path / "l.sqlite", engine, renderer, limits=limits) as live,
        asking(live) as client,
    ):
        for path in PATHS:
            for change, param in (
                (NEW, "nucleus_floor"),
                ({"stream_options": IN_STREAMS}, "stream_options.include_costs"),
            ):
                reply = await client.post(path, json={**DIALECTS[path], "stream": True, **change})
                assert (reply.status_code, refusal(reply, path)["param"]) == (400, param), reply.text
    assert not engine.requests
