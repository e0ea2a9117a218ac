"""An `openai.AsyncOpenAI` that names the rollout with each request, and wastes no time to a server nearby."""

from __future__ import annotations

import ipaddress
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from openai.types.chat import ChatCompletion

from art.remote.http_client import http_client
from art.remote.lane import Lane
from art.remote.observed import ObservedOpenAI
from art.remote.short_way import Revive, ask, plain_body, request_head, seconds_of

MAX_RETRIES = 10
"""openai waits as `Retry-After` says, at most 8 s without one: enough for a long queue or a server's
restart.
"""


class RolloutOpenAI(ObservedOpenAI):
    """The ordinary client. Plain chat completions to a server on this machine take the short way (`Lane`).

    Streams, raw responses, own headers and every failure take the ordinary way, so that errors,
    retries and their classes are those of `openai`. `revive` is awaited when nobody answers: it may start the
    server again.
    """

    lane: Lane | None = None
    revive: Revive | None = None

    @cached_property
    def _head(self) -> bytes:
        return request_head(self)

    def copy(self, **options: Any) -> RolloutOpenAI:
        """As in `openai`; the copy also names rollouts. With options of its own it takes the ordinary way."""
        copied: RolloutOpenAI = super().copy(**options)
        copied.lane, copied.revive = (None if options else self.lane), self.revive
        return copied

    with_options = copy

    async def short_way(self, options: dict[str, Any]) -> ChatCompletion | None:
        """The completion over the lane; None when the ordinary way has to try."""
        if self.lane is None:
            return None
        seconds = seconds_of(options.get("timeout"))
        body = plain_body(options) if seconds is not None else None
        if body is None or seconds is None:
            return None
        return await ask(self.lane, self._head, body, timeout=seconds, revive=self.revive)


def _is_near(url: str) -> bool:
    """Whether the short way may be taken: plain HTTP to this machine, or to any host when no proxy is set."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        return False
    try:
        loopback = parts.hostname == "localhost" or ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        loopback = False
    return loopback or not getproxies()


def openai_client(*, base_url: str, api_key: str, revive: Revive | None = None) -> RolloutOpenAI:
    """A client for ART's server at `base_url` (".../v1"). Requests inside a rollout carry its id."""
    near, parts = _is_near(base_url), urlsplit(base_url)
    transport = http_client(trust_env=not near, name_rollouts=True)
    client = RolloutOpenAI(api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES, http_client=transport)
    transport.revive = revive
    client.lane = Lane(parts.hostname or "", parts.port or 80) if near else None
    client.revive = revive
    return client


class SharingOpenAI(RolloutOpenAI):
    """One over connections that others use, too: they are left open."""

    async def close(self) -> None:
        """Nothing: the connections are their owner's."""


def sharing(owner: RolloutOpenAI, *, base_url: str, api_key: str) -> SharingOpenAI:
    """A client for another address and key of the owner's server, over the owner's connections."""
    client = SharingOpenAI(
        api_key=api_key, base_url=base_url, max_retries=MAX_RETRIES, http_client=owner._client
    )
    client.lane, client.revive = owner.lane, owner.revive
    return client


def plain_client(
    *, base_url: str, api_key: str, most_bytes: int | None = None, follow_redirects: bool = True
) -> ObservedOpenAI:
    """A client for anybody's endpoint, with room for thousands of requests. most_bytes: of a whole reply."""
    transport = http_client(
        trust_env=True, name_rollouts=False, most_bytes=most_bytes, follow_redirects=follow_redirects
    )
    return ObservedOpenAI(api_key=api_key, base_url=base_url, http_client=transport)
