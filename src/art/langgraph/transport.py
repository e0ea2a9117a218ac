"""HTTP clients whose requests go where the rollout that runs says."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import openai

from art.langgraph.endpoint import Endpoint
from art.remote.http_client import CONNECT_TIMEOUT_S, AnyLoopClient

NOWHERE = "http://rollout.invalid/v1"
"""The address that requests are made for, before they are told where to go."""

TIMEOUT_S = 600.0


def routed_clients(where: Callable[[], Endpoint]) -> tuple[Any, Any]:
    """A synchronous and an asynchronous client for openai's classes; `where` is asked at each request."""
    package = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.split(".")[0])

    def route(request: Any) -> None:
        endpoint = where()
        rest = request.url.path.removeprefix(urlsplit(NOWHERE).path)
        request.url = package.URL(endpoint.base_url.rstrip("/") + rest)
        request.headers["host"] = request.url.netloc.decode()
        request.headers["authorization"] = f"Bearer {endpoint.api_key}"

    async def route_later(request: Any) -> None:
        route(request)

    timeout = package.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    waiting = openai.DefaultHttpxClient(timeout=timeout, event_hooks={"request": [route]})
    asynchronous = AnyLoopClient(
        verify=package.create_ssl_context(), timeout=timeout, event_hooks={"request": [route_later]}
    )
    return waiting, asynchronous
