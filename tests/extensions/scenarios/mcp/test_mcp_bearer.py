"""A server that lets in only who has its token, asked on the command line, and what it offers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import JSONResponse
from typer.testing import CliRunner

from art.cli.main import app
from serving import serving
from troublesome import create_server

TOKEN = "s3cret-token"


@pytest.fixture
async def guarded() -> AsyncIterator[str]:
    """Its address."""
    application = create_server().streamable_http_app()

    async def gate(scope: Any, receive: Any, send: Any) -> None:
        told = dict(scope.get("headers", ())).get(b"authorization")
        known = scope["type"] != "http" or told == f"Bearer {TOKEN}".encode()
        answer = application if known else JSONResponse({"error": "invalid_token"}, status_code=401)
        await answer(scope, receive, send)

    async with serving(gate, ws="none", lifespan="auto", timeout_graceful_shutdown=1) as url:
        yield f"{url}/mcp"


def inspect(*words: str) -> Any:
    return CliRunner().invoke(app, ["mcp", "inspect", *words])


@pytest.mark.slow
async def test_the_token_comes_from_a_variable(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", f"{TOKEN}\n")  # as it comes from a file
    told = await asyncio.to_thread(inspect, "--bearer", "MY_TOKEN", "--", guarded)
    assert told.exit_code == 0, told.output
    assert "1 resources, 1 resource templates, 1 prompts" in told.stdout
    assert "  trouble://{kind}/news  What is new about one." in told.stdout and TOKEN not in told.stdout

    as_json = await asyncio.to_thread(inspect, "--json", "--bearer", "MY_TOKEN", "--", guarded)
    (template,) = json.loads(as_json.stdout)["resource_templates"]
    assert template["uri_template"] == "trouble://{kind}/news" and template["name"] == "news"

    monkeypatch.setenv("MY_TOKEN", "another")
    for words in (["--bearer", "MY_TOKEN"], []):
        refused = await asyncio.to_thread(inspect, *words, "--", guarded)
        assert refused.exit_code == 1 and "HTTP status 401" in refused.stderr


@pytest.mark.extension
@pytest.mark.parametrize("value", ["two\nlines", "\u0442\u0435\u0441\u0442", "  "])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", value)
    for words in (["--bearer", "MY_TOKEN"], ["--header", "Authorization=MY_TOKEN"]):
        refused = inspect(*words, "--", "http://127.0.0.1:1/mcp")
        assert refused.exit_code == 1 and "'MY_TOKEN', whose value no HTTP header can hold" in refused.stderr
        assert value not in refused.stderr or not value.strip()
