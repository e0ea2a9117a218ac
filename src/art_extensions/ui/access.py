"""Access to the pages: one browser by a one-time token, known hosts only, reading only. A page may ask its
own origin for the few actions that there are.

    PrintedAccess   `art ui`: the address of the terminal opens the pages; then the next one is printed
    LinkAccess      a server: a link that was made for a key opens what the key opens

What a page shows was written by a model and is taken as hostile: no inline script, no inline style, no string
becomes markup in a script (Trusted Types), nothing is loaded from elsewhere, no other site may frame or read.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from starlette.datastructures import URL, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
TOKEN = "token"
VIEWER = "art.ui.viewer"
"""The key of a request's scope that holds its `Viewer`."""
_BYTES = 32


@dataclass(frozen=True)
class Viewer:
    """The person for whom files are read: one who sees all runs, or a tenant of the server."""

    tenant: str | None = None
    prefix: str = ""
    """The beginning of the tenant's project folders, which is left out of what it sees."""

    def in_own_names(self, value: Any) -> Any:
        """Returns what a file says in the tenant's own names."""
        if isinstance(value, dict):
            return {name: self.in_own_names(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.in_own_names(part) for part in value]
        return value.removeprefix(self.prefix) if isinstance(value, str) else value


EVERYBODY = Viewer()


class Access(Protocol):
    """The rule by which browsers get the pages."""

    cookie: str
    """The cookie's name."""
    path: str
    """The path below which the pages are."""
    advice: str
    """How a browser gets in."""

    def knows_host(self, host: str) -> bool:
        """Returns whether the pages are answered under this value of the Host header."""
        ...

    def viewer(self, request: Request) -> Viewer | None:
        """Returns for whom the browser reads; None: it has used no token."""
        ...

    def use(self, token: str, host: str) -> str | None:
        """Returns the cookie's value for a token that was not used before."""
        ...


class PrintedAccess:
    """The token of the address that was printed last, and the cookie of the browsers that used one."""

    path = "/"
    advice = (
        "The terminal where art ui runs prints a new address for each browser. Open that one. "
        "A browser that has opened one goes on"
    )

    def __init__(self, *, hosts: frozenset[str], cookie: str, on_use: Callable[[str], None]) -> None:
        """hosts: values of the Host header that are answered. on_use: is given the next token, whenever one
        was used up.
        """
        self.hosts, self.cookie = hosts, cookie
        self._secret = secrets.token_urlsafe(_BYTES)
        self._token = secrets.token_urlsafe(_BYTES)
        self._on_use = on_use
        self._lock = threading.Lock()

    @property
    def token(self) -> str:
        """The token that is good for one more browser."""
        return self._token

    def knows_host(self, host: str) -> bool:
        return host in self.hosts

    def viewer(self, request: Request) -> Viewer | None:
        sent = request.cookies.get(self.cookie, "").encode()
        return EVERYBODY if secrets.compare_digest(sent, self._secret.encode()) else None

    def use(self, token: str, host: str) -> str | None:
        with self._lock:
            if not secrets.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = secrets.token_urlsafe(_BYTES)
        self._on_use(self._token)
        return self._secret


LINK_SECONDS = 3600.0
"""Seconds for which a link can be opened."""
BROWSER_SECONDS = 7 * 86_400.0
"""Seconds for which the browser that opened it stays admitted."""
_MOST_KEPT = 64
"""Links, and browsers, of one owner; the oldest give way."""
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "[::1]"})

ProofOf = Callable[[str | None], bytes | None]
"""Tenant -> what its key is known by now; None: it has no key any more."""


@dataclass(frozen=True)
class _Admission:
    viewer: Viewer
    proof: bytes = field(repr=False)
    """What `ProofOf` returned for the tenant when the link was made; b"" without a key."""
    host: str
    until: float

    def fits(self, host: str) -> bool:
        """Returns whether the browser came by the name that the link was made for, or by this machine's."""
        return host == self.host or _is_this_machine(host)


class LinkAccess:
    """Links that were made for the keys of a server, and the browsers that opened one.

    A browser sees what the key opens, and nothing once the key is revoked. Hosts are this machine's names,
    and the one by which the link was asked for: whoever has the key reaches the server by it. One event loop
    owns it.
    """

    def __init__(self, *, path: str, proof_of: ProofOf) -> None:
        self.path = path
        self.cookie = f"art-ui-{secrets.token_hex(4)}"  # of this process: a cookie knows no port
        self.advice = (
            "Make a new link with `art ui --url` and the server's address, or with POST /art/ui-link. "
            "A browser that has opened one goes on"
        )
        self._proof_of = proof_of
        self._links = _Kept(LINK_SECONDS)
        self._browsers = _Kept(BROWSER_SECONDS)

    def link(self, viewer: Viewer, host: str) -> str:
        """Returns the path and the token that open one browser. host: by which the server was asked."""
        proof = self._proof_of(viewer.tenant) or b""
        return f"{self.path}/?{TOKEN}={self._links.add(viewer, proof, host.lower())}"

    def knows_host(self, host: str) -> bool:
        return _is_this_machine(host) or self._links.has_host(host) or self._browsers.has_host(host)

    def viewer(self, request: Request) -> Viewer | None:
        found = self._browsers.find(request.cookies.get(self.cookie, ""))
        if found is None or not found.fits(request.headers.get("host", "").lower()):
            return None
        return found.viewer if self._is_valid(found) else None

    def use(self, token: str, host: str) -> str | None:
        found = self._links.find(token)
        if found is None or not found.fits(host) or not self._is_valid(found):
            return None
        self._links.remove(token)
        return self._browsers.add(found.viewer, found.proof, found.host)

    def _is_valid(self, found: _Admission) -> bool:
        proof = self._proof_of(found.viewer.tenant)
        return proof is not None and secrets.compare_digest(proof, found.proof)


class _Kept:
    """Admissions by the digests of their secrets, each for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: OrderedDict[bytes, _Admission] = OrderedDict()

    def add(self, viewer: Viewer, proof: bytes, host: str) -> str:
        """Returns the secret of a new one."""
        now = time.monotonic()
        self._kept = OrderedDict((key, one) for key, one in self._kept.items() if one.until > now)
        ours = [key for key, one in self._kept.items() if one.viewer == viewer]
        for key in ours[: max(0, len(ours) - _MOST_KEPT + 1)]:
            del self._kept[key]
        secret = secrets.token_urlsafe(_BYTES)
        self._kept[_digest(secret)] = _Admission(viewer, proof, host, now + self._seconds)
        return secret

    def find(self, secret: str) -> _Admission | None:
        found = self._kept.get(_digest(secret))
        return found if found is not None and found.until > time.monotonic() else None

    def remove(self, secret: str) -> None:
        self._kept.pop(_digest(secret), None)

    def has_host(self, host: str) -> bool:
        return any(one.host == host for one in self._kept.values())


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def _is_this_machine(host: str) -> bool:
    """Returns whether a host is a name of this machine, at any port: one may be forwarded from elsewhere."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host) in _THIS_MACHINE


A = TypeVar("A", bound=Access)


class GuardedPages(Generic[A]):
    """An ASGI application behind the checks of an `Access`, each response with the headers above."""

    def __init__(
        self,
        app: ASGIApp,
        access: A,
        *,
        on_close: Callable[[], None],
        actions: frozenset[str] = frozenset(),
    ) -> None:
        """actions: the last parts of addresses that take POST, from pages of the same origin."""
        self._app, self.access, self.close, self._actions = app, access, on_close, actions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """The response to a request that the pages do not get; None: they do."""
        host = request.headers.get("host", "").lower()
        if not self.access.knows_host(host):
            advice = self.access.advice.partition(" A browser")[0]
            return PlainTextResponse(f"These pages are not served as {host[:100]!a}. {advice}\n", 421)
        acts = request.method == "POST" and request.url.path.rpartition("/")[2] in self._actions
        if request.method not in ("GET", "HEAD") and not acts:
            return PlainTextResponse("These pages are for reading: use GET.\n", 405, {"allow": "GET, HEAD"})
        token = request.query_params.get(TOKEN)
        if token is not None and request.method == "GET":
            return self._enter(request, token, host)
        if (viewer := self.access.viewer(request)) is None:
            return self._doorstep(request.url, 401, "This browser has not opened a link to these pages.")
        if acts and request.headers.get("origin", "").lower() != f"{request.url.scheme}://{host}":
            return PlainTextResponse("Only a page of the same origin may ask for this.\n", 403)
        request.scope[VIEWER] = viewer
        return None

    def _enter(self, request: Request, token: str, host: str) -> Response:
        value = self.access.use(token, host)
        if value is None:
            return self._doorstep(request.url, 401, "This link was used before, or it is too old.")
        # No redirect: a browser that came from another site's link would not send a strict cookie along.
        response = self._doorstep(request.url, 200, "Opening the runs.")
        response.set_cookie(
            self.access.cookie,
            value,
            path=self.access.path,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    def _doorstep(self, url: URL, status: int, words: str) -> HTMLResponse:
        """A page of fixed words with a link to the address without its token."""
        from markupsafe import escape

        clean = url.remove_query_params(TOKEN)
        # One slash: two would be another site's address.
        path = escape("/" + clean.path.lstrip("/\\") + (f"?{clean.query}" if clean.query else ""))
        next_page = (
            f'<meta http-equiv="refresh" content="0; url={path}">'
            if status == 200
            else f'<p>{escape(self.access.advice)} <a href="{path}">here</a>.</p>'
        )
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
        return HTMLResponse(
            f"{head}<title>ART</title><main><h1>{escape(words)}</h1>{next_page}</main></html>\n", status
        )
