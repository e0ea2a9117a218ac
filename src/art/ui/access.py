"""Access to the pages: one browser by a one-time token, this machine's names only, reading only.

What a page shows was written by a model and is taken as hostile: no inline script, no inline style, no string
becomes markup in a script (Trusted Types), nothing is loaded from elsewhere, no other site may frame or read.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping

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
_BYTES = 32


class BrowserAccess:
    """The tokens of the addresses that were printed, and the cookie of the browsers that used one."""

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

    def has_cookie(self, request: Request) -> bool:
        """Returns whether the browser has used a token of this process."""
        return secrets.compare_digest(request.cookies.get(self.cookie, "").encode(), self._secret.encode())

    def use(self, token: str) -> str | None:
        """Returns the cookie's value for a token that was not used before."""
        with self._lock:
            if not secrets.compare_digest(token.encode(), self._token.encode()):
                return None
            self._token = secrets.token_urlsafe(_BYTES)
        self._on_use(self._token)
        return self._secret


class GuardedPages:
    """An ASGI application behind the checks of `BrowserAccess`, each response with the headers above."""

    def __init__(self, app: ASGIApp, access: BrowserAccess, *, on_close: Callable[[], None]) -> None:
        self._app, self.access, self.close = app, access, on_close

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
        if host not in self.access.hosts:
            return PlainTextResponse(
                f"These pages are not served as {host[:100]!a}. Open the address that art ui printed.\n",
                status_code=421,
            )
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("These pages are for reading: use GET.\n", 405, {"allow": "GET, HEAD"})
        if (token := request.query_params.get(TOKEN)) is not None:
            return self._enter(request.url, token)
        if not self.access.has_cookie(request):
            return _doorstep(request.url, 401, "This browser has not opened the address that art ui printed.")
        return None

    def _enter(self, url: URL, token: str) -> Response:
        value = self.access.use(token)
        if value is None:
            return _doorstep(url, 401, "This address was used before, or is of an earlier start of art ui.")
        # No redirect: a browser that came from another site's link would not send a strict cookie along.
        response = _doorstep(url, 200, "Opening the runs.")
        response.set_cookie(self.access.cookie, value, httponly=True, samesite="strict", path="/")
        return response


def _doorstep(url: URL, status: int, words: str) -> HTMLResponse:
    """A page of fixed words with a link to the address without its token."""
    from markupsafe import escape

    clean = url.remove_query_params(TOKEN)
    # One slash: two would be another site's address.
    path = escape("/" + clean.path.lstrip("/\\") + (f"?{clean.query}" if clean.query else ""))
    next_page = (
        f'<meta http-equiv="refresh" content="0; url={path}">'
        if status == 200
        else "<p>The terminal where art ui runs prints a new address for each browser. Open that one. "
        f'A browser that has opened one goes on <a href="{path}">here</a>.</p>'
    )
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
    return HTMLResponse(
        f"{head}<title>ART</title><main><h1>{escape(words)}</h1>{next_page}</main></html>\n", status
    )
