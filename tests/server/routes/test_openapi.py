"""The OpenAPI document lists what exists, and the server keeps what it says."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
from dialect_bodies import DIALECTS
from live import listening
from tenants_world import OPERATOR, World, run_world

from art.rendering.library import LibraryRenderer
from art.server.chat.request_fields import RequestSchema
from art.server.routes.openapi import openapi_document, operations
from art.server.settings import LimitSettings


@pytest.fixture
async def world(tmp_path: Path, renderer: LibraryRenderer) -> AsyncIterator[World]:
    async with run_world(tmp_path, renderer) as running:
        yield running


def test_the_document_lists_exactly_the_routes_that_exist(world: World) -> None:
    """A new route must be written into `operations`."""
    routed = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in world.app._routes.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    dialects = {("POST", path) for path in world.app._dialects}
    assert routed | dialects | {("GET", "/"), ("GET", "/health")} == set(operations())


async def test_the_document_is_served_to_those_with_a_key(world: World) -> None:
    assert (await world.clients["alice"].get("/openapi.json")).json() == openapi_document()
    async with world.client("wrong") as stranger:
        assert (await stranger.get("/openapi.json")).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize("path", DIALECTS)
async def test_a_good_request_and_its_reply_fit_their_schemas(world: World, path: str) -> None:
    operation = operations()["POST", path]
    assert isinstance(operation.body, RequestSchema)
    assert isinstance(operation.reply, dict)
    jsonschema.validate(DIALECTS[path], operation.body.schema)
    reply = await world.clients["alice"].post(path, json=DIALECTS[path])
    jsonschema.validate(reply.json(), operation.reply)


CONFIG = """
[parameters]
"path.model" = "player"
"path.job_id" = "j"
"path.step" = 3
"path.file" = "adapter_model.safetensors"
"body.model" = "player"

[[operations]]
include-path = "/art/models/{project}/{name}/checkpoints/{step}/files"
parameters = { "path.project" = "games", "path.name" = "player" }

[[operations]]
include-path = "/art/models/{project}/{name}/checkpoints/{step}/files/{file}"
parameters = { "path.project" = "games", "path.name" = "player" }

[[operations]]
include-path = "/art/rollouts"
parameters = { "body.project" = "games", "body.name" = "player" }
"""
"""What exists, so that requests reach further than a 404. Nothing that would start a worker."""

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "ignored_auth",
    "unsupported_method",
)


@pytest.mark.slow
async def test_schemathesis_finds_no_failure_and_no_reply_that_breaks_the_schema(
    world: World, tmp_path: Path
) -> None:
    """Every phase of it, with bodies that fit the schemas and bodies that do not."""
    async with listening(world.app, LimitSettings()) as address:
        config = tmp_path / "schemathesis.toml"
        config.write_text(CONFIG)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
            *("run", f"{address}/openapi.json"),
            *("--header", f"Authorization: Bearer {OPERATOR}"),
            *("--checks", ",".join(CHECKS)),
            *("--phases", "examples,coverage,fuzzing,stateful"),
            *("--mode", "all", "--max-examples", "4", "--seed", "5", "--generation-database", "none"),
            *("--request-timeout", "60", "--suppress-health-check", "all", "--no-color"),
        ]
        running = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(900):
            output, _ = await running.communicate()
    assert running.returncode == 0, output.decode()
