"""Targets: requests, as tenants and strangers send them."""

from __future__ import annotations

import json

import httpx
from places import Place

from art.errors import RequestError


class RefusedError(Exception):
    """The server refused a request, as it should."""


def accepted(reply: httpx.Response) -> int:
    """Returns the status. Raises RefusedError for one of 400 and more."""
    if reply.status_code >= 400:
        raise RefusedError(f"{reply.status_code}: {reply.text[:500]}")
    return reply.status_code


def chat_completions(content: bytes, place: Place) -> object:
    return accepted(place.gateway.ask("/v1/chat/completions", content))


def completions(content: bytes, place: Place) -> object:
    return accepted(place.gateway.ask("/v1/completions", content))


def generate(content: bytes, place: Place) -> object:
    return accepted(place.gateway.ask("/inference/v1/generate", content))


def responses(content: bytes, place: Place) -> object:
    return accepted(place.gateway.ask("/v1/responses", content))


def messages(content: bytes, place: Place) -> object:
    counted = place.gateway.ask("/v1/messages/count_tokens", content)
    return accepted(place.gateway.ask("/v1/messages", content)), counted


def other_routes(content: bytes, place: Place) -> object:
    """`{"path": ..., "body": ...}`: one input for each route that takes a body and is no dialect."""
    try:
        asked = json.loads(content)
        path, body = asked["path"], asked["body"]
        sent = json.dumps(body).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        path, sent = "/art/models", content
    return accepted(place.gateway.ask("/" + str(path).lstrip("/"), sent))


def gradients(content: bytes, place: Place) -> object:
    from art.batch.encode import decode_batch

    return decode_batch(content)


def headers(content: bytes, place: Place) -> object:
    """`{"method": ..., "path": ..., "headers": {...}}`, sent as they are, without a client's checks."""
    try:
        asked = json.loads(content)
        lines = [
            f"{asked['method']} {asked['path']} HTTP/1.1",
            *(f"{name}: {value}" for name, value in asked["headers"].items()),
        ]
        sent = "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + str(asked["body"]).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sent = content
    answer = place.gateway.send_bytes(sent)
    assert not answer.startswith(b"HTTP/1.1 500"), answer[:2000]
    if answer[9:10] != b"2":
        raise RefusedError(repr(answer[:200]))
    return answer


def tinker_batch(content: bytes, place: Place) -> object:
    """A first line with the encoding, then a body of protobuf."""
    from art_extensions.tinker.forward_backward import read_forward_backward

    encoding, _, body = content.partition(b"\n")
    return read_forward_backward(
        body,
        content_type="application/x-protobuf",
        content_encoding=encoding.decode("latin-1"),
        largest=1 << 20,
    )


def tinker_json_batch(content: bytes, place: Place) -> object:
    """A body of JSON, as clients up to release 0.22 send it."""
    from art_extensions.tinker.bodies import LARGEST_JSON, parse
    from art_extensions.tinker.forward_backward import read_forward_backward
    from art_extensions.tinker.older_clients import ForwardAsked, ForwardBackwardAsked, pack_batch

    if len(content) > LARGEST_JSON:
        raise RequestError("the route reads no more", status=413)
    if b"forward_input" in content:
        scored = parse(ForwardAsked, content)
        packed = pack_batch(scored, scored.forward_input, forward_only=True)
    else:
        asked = parse(ForwardBackwardAsked, content)
        packed = pack_batch(asked, asked.forward_backward_input, forward_only=False)
    return read_forward_backward(
        packed,
        content_type="application/x-protobuf",
        content_encoding=None,
        largest=1 << 20,
    )


def tinker_requests(content: bytes, place: Place) -> object:
    """`{"path": ..., "body": ...}` below /api/v1 of `art tinker`."""
    try:
        asked = json.loads(content)
        path, sent = str(asked["path"]), json.dumps(asked["body"]).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        path, sent = "create_session", content
    try:
        return accepted(place.tinker.ask(path, sent))
    except httpx.InvalidURL as error:
        raise RefusedError("no client can send this address") from error


def folder_manifest(content: bytes, place: Place) -> object:
    """What a node tells of a folder that another one fetches: a first line with its digest."""
    from art_extensions.cluster.folder_manifest import read_manifest

    digest, _, manifest = content.partition(b"\n")
    return read_manifest(manifest, digest[:64].decode("latin-1"))
