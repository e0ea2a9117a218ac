"""An address in a request is never connected to: a tenant cannot make the server ask others for anything."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile_inputs import _places, corpus_of, documents_in, the_list
from parser_uses import connections
from places import Place
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from art.errors import ConfigurationError, ServerError
from art.server.jobs.http_teacher import HttpTeacher
from art.server.settings import TeacherSettings
from art.wire.algorithm import TeacherSpec
from serving import serving_in_a_thread
from waiting import DEADLINE_S

pytestmark = [pytest.mark.slow, pytest.mark.extension]

DIALECTS = {
    "chat_completions": "/v1/chat/completions",
    "completions": "/v1/completions",
    "generate": "/inference/v1/generate",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
PER_INPUT = 60
"""Values of an input that are replaced by the address, one after the other."""


def test_every_connection_of_a_server_has_an_address_that_no_tenant_gave() -> None:
    """A new one needs a row in outside.toml that says whose the address is."""
    listed = [place for row in the_list()["connection"] for place in row["places"]]
    assert len(listed) == len(set(listed))
    assert set(connections()) == set(listed)


def test_a_connection_is_seen(tmp_path: Path) -> None:
    with watched() as (address, asked):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=DEADLINE_S).close()
        assert asked


asked_for: list[tuple[Any, ...]] = []
watching = threading.Event()


def _hear(event: str, given: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.getaddrinfo") and watching.is_set():
        asked_for.append((event, *given[-2:]))


sys.addaudithook(_hear)  # for as long as the process lives


@contextmanager
def watched() -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Gives an address of this machine that listens, and what is connected to or looked up meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        asked_for.clear()
        watching.set()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked_for
        finally:
            watching.clear()


def with_address(value: Any, address: str) -> Iterator[Any]:
    """Yields the request with the address in place of each of its values, and beside them."""
    for number in range(min(PER_INPUT, len(list(_places(value))))):
        changed = json.loads(json.dumps(value))
        holder, key = list(_places(changed))[number]
        holder[key] = {"url": address} if isinstance(holder[key], dict) else address
        yield changed
    named = {
        "image_url": {"url": address},
        "tools": [{"type": "mcp", "server_label": "x", "server_url": address, "require_approval": "never"}],
        "mcp_servers": [{"type": "url", "url": address, "name": "x"}],
        "webhook": address,
        "callback_url": address,
        "teacher": {"kind": "server", "url": address, "model": "x"},
        "algorithm": {"teacher": {"kind": "server", "url": address, "model": "x"}},
        "base_model": address,
        "judge": address,
    }
    for name, one in named.items():
        yield {**value, name: one}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "input_image", "image_url": address},
        {"type": "input_file", "file_url": address},
        {"type": "image", "source": {"type": "url", "url": address}},
        {"type": "document", "source": {"type": "url", "url": address}},
    ]
    for name in ("messages", "input"):
        yield from ({**value, name: [{"role": "user", "content": [part]}]} for part in parts if name in value)


def test_no_request_of_a_tenant_makes_the_server_connect(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        place = Place(tmp_path)
        try:
            tried = ask_for_addresses(place)
        finally:
            place.close()
    assert tried > 500


def ask_for_addresses(place: Place) -> int:
    """Sends requests with addresses in them to every route. Returns how many."""
    place.gateway.ask("/v1/chat/completions", b"{}")
    tried = 0
    with watched() as (address, asked):
        for target, path in DIALECTS.items():
            for content in corpus_of(target).values():
                for value in documents_in(content) or ():
                    for changed in with_address(value, address):
                        place.gateway.ask(path, json.dumps(changed).encode())
                        tried += 1
        for content in corpus_of("other_routes").values():
            for value in documents_in(content) or ():
                for changed in with_address(value["body"], address):
                    place.gateway.ask("/" + value["path"], json.dumps(changed).encode())
                    tried += 1
        assert not asked
    return tried


async def test_a_teacher_that_the_operator_listed_cannot_send_the_server_elsewhere() -> None:
    """Not by a redirect either; and a tenant names no other one, on this machine or not."""

    async def completions(request: Request) -> Response:
        return RedirectResponse(elsewhere, status_code=307)

    app = Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])
    with watched() as (elsewhere, asked), serving_in_a_thread(app) as url:
        listed = f"{url}/v1"
        spec = TeacherSpec(kind="server", url=listed, model="x")
        teacher = HttpTeacher(spec, TeacherSettings(urls=[listed], attempts=1), listed_only=True)
        with pytest.raises(ServerError, match="answers 307"):
            await teacher.logprobs([[1, 2]])
        port = int(elsewhere.rpartition(":")[2])
        assert not [one for one in asked if port in (one[-1] if isinstance(one[-1], tuple) else (one[-1],))]
        for other in (elsewhere, "http://169.254.169.254/v1", "http://10.0.0.1/v1", f"{listed}@10.0.0.1"):
            with pytest.raises(ConfigurationError, match="may not send the server elsewhere"):
                HttpTeacher(
                    TeacherSpec(kind="server", url=other, model="x"),
                    TeacherSettings(urls=[listed]),
                    listed_only=True,
                )
