"""The first requests of the agents of the field, as their packages send them, are served as they are.

`record_first_requests.py` recorded them; each file names agent and version. Most have two: the question, and
what the agent sends when a tool of its own has run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import KEY, Live, run_gateway
from scripted_engine import Script, ScriptedEngine

from art.rendering.library import LibraryRenderer
from art.server.settings import LimitSettings
from waiting import DEADLINE_S

FOLDER = Path(__file__).parent / "first_requests"
RECORDED = sorted(path.stem for path in FOLDER.glob("*.json"))
AGENTS_OF_THE_FIELD = {
    *("aider", "claude-code", "cline", "codex", "continue", "mini-swe-agent", "mistral-vibe"),
    *("openai-agents", "opencode", "openhands-sdk", "pi-chat", "qwen-code"),
}
LEFT_OUT: dict[str, set[str]] = {
    "claude-code": set(),
    "claude-code-thinking": {"thinking.budget_tokens"},
    "claude-code-tool-search": {"thinking.display", "tools.defer_loading"},
    "codex": {"tools: web_search"},
    "codex-apply-patch": {"tools: web_search"},
    "codex-code-mode": {"reasoning.context"},
    "codex-sub-agents": {"tools: web_search"},
    "codex-tool-search": {"tools: web_search"},
    "openai-agents": {"tools: web_search"},
    "pi-messages": {"thinking.budget_tokens"},
}
"""What of each does not act; nothing of the others is left out."""


@pytest.fixture
async def wide(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[Live]:
    """A model with room for the tools of a coding agent."""
    async with run_gateway(
        tmp_path / "ledger.sqlite",
        ScriptedEngine(lambda request: Script(ids=renderer.encode("Done.<|im_end|>"))),
        renderer,
        max_context=200_000,
    ) as running:
        yield running


def function_names(tools: list[dict[str, Any]], namespace: str = "") -> list[str]:
    """Names of the tools that the agent runs, however its dialect declares them."""
    names: list[str] = []
    for tool in tools:
        if tool.get("type") == "namespace":
            # OpenAI's own formats write `functions` before every function: there it is no name.
            inner = "" if tool["name"] == "functions" else f"{tool['name']}__"
            names += function_names(tool["tools"], inner)
        elif tool.get("type") != "web_search":
            own = tool.get("function", tool).get("name", tool.get("type"))
            names.append(namespace + own)
    return names


def offered(body: dict[str, Any]) -> list[str]:
    added = [item for item in body.get("input", ()) if item.get("type") == "additional_tools"]
    return function_names([*body.get("tools", ()), *(tool for item in added for tool in item["tools"])])


def test_the_corpus_has_the_agents_of_the_field() -> None:
    assert set(RECORDED) >= LEFT_OUT.keys() | AGENTS_OF_THE_FIELD
    for agent in RECORDED:
        asked = [request for request in read_recorded(agent)["requests"] if request["method"] == "POST"]
        assert asked and all(request["body"]["model"] for request in asked), agent


def read_recorded(agent: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((FOLDER / f"{agent}.json").read_text(encoding="utf-8"))
    return recorded


@pytest.mark.parametrize("agent", RECORDED)
async def test_an_agent_s_first_requests_are_served(
    wide: Live, agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = read_recorded(agent)
    async with httpx.AsyncClient(base_url=wide.url, timeout=240) as client:
        for request in recorded["requests"]:
            if request["method"] == "HEAD":  # it asks if anybody is there, without a key
                assert (await client.head(request["path"])).status_code == 200
                continue
            body = {**request["body"], "model": "tiny"}
            reply = await client.post(request["path"], json=body, headers={"x-api-key": KEY})
            assert reply.status_code == 200, f"{recorded['agent']} {recorded['version']}: {reply.text}"
            prompt = wide.renderer.decode(wide.engine.requests[-1].prompt_ids)
            missing = [name for name in offered(body) if f'"name": "{name}"' not in prompt]
            assert not missing, "each tool that the agent runs is shown"
    kinds = {kind for _, kind in wide.app.counts.left_out}
    assert kinds == LEFT_OUT.get(agent, set())
    noted = [one.getMessage() for one in caplog.records if "does not act" in one.getMessage()]
    assert len(noted) == len(kinds), "each is logged once"
    counted = {name: number for (_, name), number in wide.app.counts.left_out.items()}
    posts = sum(request["method"] == "POST" for request in recorded["requests"])
    several = counted.pop("tools.defer_loading", posts)  # of each such tool
    assert set(counted.values()) <= {posts} and several >= posts


@pytest.mark.parametrize("agent", RECORDED)
async def test_a_field_that_the_agent_s_next_version_brings_is_no_outage(wide: Live, agent: str) -> None:
    request = next(one for one in read_recorded(agent)["requests"] if one["method"] == "POST")
    body = {**request["body"], "model": "tiny"}
    path = request["path"].partition("?")[0]
    async with httpx.AsyncClient(base_url=wide.url, headers={"x-api-key": KEY}, timeout=240) as client:
        for more in ({}, {"diagnostics_of_the_agent": {"turn": 1}}):
            reply = await client.post(request["path"], json={**body, **more})
            assert reply.status_code == 200, reply.text
    plain, newer = wide.engine.requests
    assert plain.sampling == newer.sampling and list(plain.prompt_ids) == list(newer.prompt_ids)
    assert wide.app.counts.left_out[path, "diagnostics_of_the_agent"] == 1


async def test_a_strict_server_refuses_what_others_leave_out(
    tmp_path: Path, renderer: LibraryRenderer
) -> None:
    body = read_recorded("codex")["requests"][0]["body"]
    limits = LimitSettings(strict_requests=True)
    async with run_gateway(
        tmp_path / "l.sqlite",
        ScriptedEngine(lambda request: Script(ids=renderer.encode("Done.<|im_end|>"))),
        renderer,
        limits=limits,
    ) as live:
        async with httpx.AsyncClient(
            base_url=live.url, headers={"x-api-key": KEY}, timeout=DEADLINE_S
        ) as client:
            reply = await client.post("/v1/responses", json={**body, "model": "tiny"})
    assert reply.status_code == 400 and "web_search" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/", "/r/any", "/r/any/v1"])
async def test_a_probe_of_a_base_url_is_answered_without_a_key(live: Live, path: str) -> None:
    async with httpx.AsyncClient(base_url=live.url, timeout=DEADLINE_S) as client:
        assert (await client.head(path)).status_code == 200
        for other in ("/v1/models", "/r/any/v1/models", "/art/models"):
            assert (await client.head(other)).status_code == 401
        if path != "/":
            assert (await client.get(path)).status_code == 401
