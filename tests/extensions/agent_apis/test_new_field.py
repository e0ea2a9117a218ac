"""A field of a request is declared once: from one line follow its check, its refusal and its JSON schema."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import pytest
from dialect_bodies import DIALECTS
from source_files import files_that_name

import art
from art.errors import RequestError
from art.server.routes import openapi
from art.wire.request_values import Whole
from art_extensions.agent_apis.responses_items import ResponseStore

SOURCE = Path(art.__file__).parents[1]
Reader = Callable[[Any, Any], Any]
NEW: dict[str, tuple[str, str, str, str, Reader]] = {
    "/v1/chat/completions": (
        "art.server.chat.chat_request",
        "    include_usage: bool = False\n",
        "    made_up: Annotated[int, RequestField(Whole(-3, 9))] = 0\n",
        "CHAT",
        lambda module, body: module.read_chat_request(body, max_n=1).made_up,
    ),
    "/v1/completions": (
        "art.server.dialects.completions_request",
        "    samples: bool = True\n",
        "    made_up: Annotated[int, RequestField(Whole(-3, 9))] = 0\n",
        "COMPLETIONS",
        lambda module, body: module.read_completions_request(body, max_n=1).made_up,
    ),
    "/v1/responses": (
        "art_extensions.agent_apis.responses_request",
        '    "instructions": RequestField(TEXT),\n',
        '    "made_up": RequestField(Whole(-3, 9)),\n',
        "RESPONSES",
        lambda module, body: module.read_responses_request(body, ResponseStore(max_bytes=99), None).sent[
            "made_up"
        ],
    ),
    "/v1/messages": (
        "art_extensions.agent_apis.anthropic_request",
        '    "stream": RequestField(FLAG, _put),\n',
        '    "made_up": RequestField(Whole(-3, 9), _put),\n',
        "MESSAGES",
        lambda module, body: module.chat_body(body)["made_up"],
    ),
}
"""Of a path: the module, before which of its lines the new one stands, that line, and how a body is read."""


def declared(monkeypatch: pytest.MonkeyPatch, module: str, line: str, new: str) -> Any:
    """The module with one more line, beside the one that the server uses."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert source.count(line) == 1, line
    spec.name = f"{module}_with_a_new_field"
    made = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)
    made.__dict__["Whole"] = Whole  # a file without it would import it
    exec(compile(source.replace(line, new + line), spec.origin, "exec", dont_inherit=True), made.__dict__)
    return made


@pytest.mark.parametrize("path", NEW)
def test_a_new_field_is_one_line_for_check_refusal_and_document(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    module, line, new, schema, read = NEW[path]
    made = declared(monkeypatch, module, line, new)
    assert read(made, {**DIALECTS[path], "made_up": 5}) == 5
    for wrong in (10, True, "5"):
        with pytest.raises(RequestError, match="made_up must be a whole number from -3 to 9") as refused:
            read(made, {**DIALECTS[path], "made_up": wrong})
        assert refused.value.param == "made_up" and refused.value.code == "invalid_value"
    at = "POST", path
    operation = replace(openapi.operations()[at], body=getattr(made, schema))
    monkeypatch.setitem(openapi.operations(), at, operation)
    post = openapi.openapi_document()["paths"][path]["post"]
    told = post["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert told["made_up"] == {
        "anyOf": [{"type": "integer", "minimum": -3, "maximum": 9}, {"type": "null"}],
    }
    # What agents send nobody here can edit: what a dialect does not know it leaves out.
    assert post["requestBody"]["content"]["application/json"]["schema"]["additionalProperties"]


@pytest.mark.parametrize("name", ["best_of", "return_tokens_as_token_ids", "stop_sequences"])
def test_a_field_of_one_dialect_or_two_stands_in_at_most_four_files(name: str) -> None:
    files = files_that_name(name, SOURCE)
    server = {path for path in files if path.startswith(("art/server/", "art_extensions/agent_apis/"))}
    assert server and len(server) <= 4 and "art/server/routes/openapi_schemas.py" not in server, server
