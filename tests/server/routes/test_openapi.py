"""The OpenAPI document lists what exists, and the server keeps what it says."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
from dialect_bodies import DIALECTS
from generated_requests import generated_requests
from tenants_world import World, run_world

from art.rendering.library import LibraryRenderer
from art.server.chat.request_fields import RequestSchema
from art.server.routes.openapi import openapi_document, operations


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


@pytest.mark.parametrize("after", ["9223372036854775808", "9" * 5_000, "-1", "1.5", ""])
async def test_an_event_number_that_no_database_holds_is_refused(world: World, after: str) -> None:
    reply = await world.clients["alice"].get("/art/jobs/j/events", params={"after": after})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after"), reply.text


@pytest.mark.slow
async def test_schemathesis_finds_no_failure_and_no_reply_that_breaks_the_schema(
    world: World, tmp_path: Path
) -> None:
    """Every phase of it, with bodies that fit the schemas and bodies that do not. More: `make api-cases`."""
    told = await generated_requests(world.app, tmp_path, examples=4, seed=5)
    assert told.status == 0, told.output
    assert told.requests > 100 and not told.failures
