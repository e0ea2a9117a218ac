"""Nothing in `src` reads a format, and no route takes a body, without a row in the list of what comes in."""

from __future__ import annotations

import ast

import pytest
from hostile_inputs import corpus_of, documents_in, outside, the_list
from parser_uses import SRC, parser_uses, tree_of, uses_in

pytestmark = [pytest.mark.slow, pytest.mark.extension]


def test_every_use_of_a_parser_is_read_by_a_target_or_has_a_reason() -> None:
    """A new reader needs a target, or a place under `[[internal]]` with the reason why it needs none."""
    listed = [place for row in outside().values() for place in row.places]
    listed += [place for row in the_list()["internal"] for place in row["places"]]
    assert all(row["reason"] for row in the_list()["internal"])
    assert len(listed) == len(set(listed)), sorted(place for place in listed if listed.count(place) > 1)
    found = parser_uses()
    assert not set(found) - set(listed), "add them to tests/promises/hostile/outside.toml"
    assert not set(listed) - set(found), "they are in the list, and not in src"


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        ("import json\ndef read(x): return json.loads(x)", "json.loads"),
        ("def read(x): return map(parse_json, x)", "parse_json"),
        ("class A:\n    def read(self, x): return B.model_validate_json(x)", "model_validate_json"),
        ("async def read(reply): return reply.json()", "json()"),
        ("def read(x): return tomllib.loads(x)", "tomllib.loads"),
        ("def read(x):\n    with zipfile.ZipFile(x) as f: return f", "zipfile.ZipFile"),
        ("def read(x): return polars.read_parquet(x)", "polars.read_parquet"),
    ],
)
def test_a_new_reader_is_seen(text: str, parser: str) -> None:
    assert [found for _, found in uses_in(ast.parse(text))] == [parser]


def test_no_reader_has_another_name_for_a_parser() -> None:
    """`from json import loads` would hide a use from the search."""
    hidden = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path in sorted(SRC.rglob("*.py"))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        and node.module
        in ("json", "orjson", "tomllib", "yaml", "gzip", "zlib", "tarfile", "zipfile", "polars")
        and any(one.name in ("loads", "load", "open", "decompress", "read_parquet") for one in node.names)
    ]
    assert not hidden, hidden


def test_every_route_that_takes_a_body_is_tried() -> None:
    """The server's own: what its OpenAPI document says; Tinker's: what its application routes."""
    from art.server.routes.openapi import operations

    asked = {
        str(one["path"])
        for content in corpus_of("other_routes").values()
        for one in documents_in(content) or ()
        if isinstance(one, dict) and "path" in one
    }
    dialects = {"/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/v1/responses"}
    dialects |= {"/v1/messages", "/v1/messages/count_tokens"}
    left = {
        path
        for (_, path), operation in operations().items()
        if operation.body is not None
        and path not in dialects
        and path.replace("{project}", "games").replace("{name}", "player").lstrip("/") not in asked
        and path.replace("{project}", "games").replace("{name}", "copy").lstrip("/") not in asked
    }
    assert not left, "add an input for each to tests/promises/hostile/corpus/other_routes"
