"""The server's routes: one allow-list, and who may ask.

POST of a dialect                straight to its handler (`_dialects`): it is on the way of every sample
/r/{rollout}/v1/...              the same routes; the rollout is named by the address instead of a header
GET  /                           open, a few lines for who opens the address in a browser
GET  /health                     open, tells only that the server lives
GET  /ui/...                     the pages of the runs, an extension, for browsers that used a link
everything else                  a Starlette router: lookups, and the routes that `control` brings
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, Router

from art.errors import (
    ARTError,
    AuthenticationError,
    CanaryError,
    CheckpointError,
    NotFoundError,
    ParityError,
    RequestError,
    ServerError,
    require_extra,
)
from art.extensions import DIALECT, PAGES, load_extension, load_extensions
from art.process.files import disk_error, disk_trouble
from art.server.catalog import Catalog
from art.server.counts import NO_ROUTE, ControlCounts, CountedRequest, Counts
from art.server.dialects.chat_completions import ChatCompletions
from art.server.dialects.completion_service import CompletionService
from art.server.dialects.completions import Completions
from art.server.dialects.dialect import Dialect
from art.server.dialects.token_completions import TokenCompletions
from art.server.http import (
    BODY,
    BodyMemory,
    ClientGoneError,
    MethodNotAllowedError,
    Receive,
    Scope,
    Send,
    TenantThreads,
    send_error,
    send_json,
)
from art.server.ledger.face import SampleLedger
from art.server.ledger.stitching import Stitcher
from art.server.rollouts import ADDRESSED, ScopedRollouts, scoped_request
from art.server.routes.gateway_routes import TOKENIZATION, Lookups, rollout_routes, tokenization_routes
from art.server.routes.metrics import Metrics, nothing_controlled
from art.server.routes.openapi import openapi_route
from art.server.settings import LimitSettings
from art.server.tenancy import Tenant, internal_name, tenant_in, with_tenant
from art.server.tenants import Caller, KeyCheck, RefusalPace, TenantConcurrency, TenantKeys
from art.wire.models import UI_LINK_ROUTE, PagesLink
from art.wire.rollouts import RAW_ROLLOUT_HEADER

_log = logging.getLogger(__name__)

_BY_ADDRESS = "/r/"
_BASE_URL = re.compile(r"(?:/r/[^/]+)?(?:/v1)?/?")
_LANDING = """This is a server of ART, the Agent Reinforcement Trainer.

It speaks OpenAI's protocol under /v1 to those who have a key:

    curl -H "Authorization: Bearer $ART_API_KEY" <this address>/v1/models

/health tells whether it is up. /openapi.json lists its routes.
"""

UI_PATH = "/ui"
_PAGES = "the pages of the runs under /ui"


def is_of_pages(path: str) -> bool:
    """Returns whether a path is one of the pages of the runs."""
    return path == UI_PATH or path.startswith(f"{UI_PATH}/")


class LoadedPages(Protocol):
    """An application that answers browsers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        ...

    def close(self) -> None:
        """Closes the files that were read."""
        ...


class PagesOfRuns(Protocol):
    """The pages that an extension makes of a data folder, a path, proofs of keys and stored rows."""

    def link(self, tenant: Tenant, prefix: str, host: str) -> tuple[str, float]:
        """Returns a path that opens one browser, and for how many seconds it does. prefix: begins the names
        of the tenant's projects. host: by which the server was asked.
        """
        ...

    def load(self) -> LoadedPages:
        """Returns the application. Slow. Raises: MissingExtraError."""
        ...


class BrowserPages:
    """The pages of the runs, an extension that is loaded when first used. The server goes on without it."""

    def __init__(self, data_dir: Path, proof_of: Callable[[Tenant], bytes | None], stored: Any) -> None:
        """stored: reads the jobs and samples of the folder; None: they are files in it."""
        self._data_dir, self._proof_of, self._stored = data_dir, proof_of, stored
        self._mounted: PagesOfRuns | None = None
        self._loaded: LoadedPages | None = None
        self._problem: str | None = None

    def route(self) -> Route:
        """Returns the route that makes links, to be mounted behind the key check."""
        return Route(UI_LINK_ROUTE, self._link, methods=["POST"])

    async def _link(self, request: Request) -> Response:
        """A link for the owner of the request's key. Raises ServerError (501) without the extension."""
        try:
            require_extra("ui", _PAGES)
            mounted = self._mount()
        except ARTError as error:
            raise ServerError(str(error), status=501, code="pages_missing") from error
        tenant = tenant_in(request.scope)
        prefix = "" if tenant is None else internal_name(tenant, "")
        link, seconds = mounted.link(tenant, prefix, request.headers.get("host", ""))
        return Response(
            PagesLink(path=link, expires_in=seconds).model_dump_json(), media_type="application/json"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a browser."""
        if self._loaded is None and self._problem is None:
            try:
                self._loaded = await asyncio.to_thread(self._mount().load)
            except Exception as error:  # noqa: BLE001  whatever it is, rollouts and training go on
                self._problem = str(error) or type(error).__name__
                _log.warning("%s cannot be shown: %s", _PAGES, self._problem)
        if self._loaded is None:
            await PlainTextResponse(f"There are no pages here: {self._problem}\n", 501)(scope, receive, send)
            return
        await self._loaded(scope, receive, send)

    def close(self) -> None:
        """Closes the files that were read."""
        if self._loaded is not None:
            self._loaded.close()

    def _mount(self) -> PagesOfRuns:
        """Returns the pages with their links. Raises: ConfigurationError where no extension has them."""
        if self._mounted is None:
            mount = load_extension(PAGES, "runs")
            self._mounted = mount(self._data_dir, UI_PATH, self._proof_of, self._stored)
        return self._mounted


class _KeyRevokedError(Exception):
    """The key of a request was revoked while it was answered."""


class App:
    """The ASGI application."""

    log_file: Path | None = None
    """The file of this process's log, which errors name; None: standard error."""

    def __init__(
        self,
        *,
        key: str,
        catalog: Catalog,
        ledger: SampleLedger,
        stitcher: Stitcher,
        limits: LimitSettings,
        tenants: TenantKeys | None = None,
        control_routes: Sequence[BaseRoute] = (),
        control_health: Callable[[], dict[str, Any]] = dict,
        control_counts: Callable[[], Awaitable[ControlCounts]] = nothing_controlled,
        masked_by: str = "builtin",
        stored: Any = None,
    ) -> None:
        """stored: reads the jobs and samples for the pages; None: they are files in the data folder."""
        self._key = KeyCheck(key, tenants)
        self._catalog = catalog
        self._stitcher = stitcher
        self._data_dir = ledger.data_dir
        self._control_health = control_health
        self._version = version("agent-reinforcement-trainer")
        self.pages = BrowserPages(self._data_dir, self._key.proof_of, stored)
        self.rollouts = ScopedRollouts(
            ledger, catalog, self._key.rollouts, largest_text=limits.rollout_text_bytes
        )
        self.counts = Counts()
        self._sampler = CompletionService(
            catalog,
            ledger,
            stitcher,
            self.rollouts,
            in_flight=TenantConcurrency(limits.tenant_in_flight, "completions"),
            masked_by=masked_by,
            tokens=self.counts.tokens,
        )
        self._requests = TenantConcurrency(limits.tenant_in_flight, "requests")
        self._pace = RefusalPace()
        self.bodies = BodyMemory(limits.tenant_body_bytes, limits.body_bytes)
        self._dialects = _dialects(self._sampler, limits, self.counts.left_out)
        self._routes = Router(
            routes=[
                openapi_route(),
                *Lookups(catalog, ledger, self.rollouts).routes,
                Metrics(
                    self.counts, catalog=catalog, ledger=ledger, stitcher=stitcher, control=control_counts
                ).route(),
                *rollout_routes(self.rollouts),
                *tokenization_routes(catalog, stitcher, limits, self._version),
                *(route for dialect in self._dialects.values() for route in dialect.routes),
                self.pages.route(),
                *control_routes,
            ],
            redirect_slashes=False,
        )
        self._templates: dict[Any, str] = {
            route.endpoint: re.sub(r":\w+}", "}", route.path)
            for route in self._routes.routes
            if isinstance(route, Route)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; every failure has OpenAI's error shape."""
        if scope["type"] != "http":
            await self._routes(scope, receive, send)
            return
        seen = self.counts.requests.begin(scope["method"])
        try:
            await self._answer(scope, receive, seen.count_status(send), seen)
        finally:
            self.counts.requests.end(seen)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, seen: CountedRequest) -> None:
        anybody = asker = Caller(tenant=None)
        started = False

        async def watched(event: Any) -> None:
            nonlocal started
            # What ends a reply holds it back no more: a whole reply is not cut in two.
            if not _ends_reply(event) and not self._key.is_still_valid(scope, asker):
                raise _KeyRevokedError
            started = True
            await send(event)

        try:
            if scope["path"] == "/" or _is_probe(scope):
                seen.route = "/"
                await _greet(scope, receive, send)
                return
            if scope["path"] == "/health":
                seen.route = "/health"
                await self._tell_health(scope, send)
                return
            if is_of_pages(scope["path"]):
                seen.route = UI_PATH
                await self.pages(scope, receive, send)
                return
            asker = self._key.require(scope)
            with self.bodies.use(asker.tenant) as body:
                known = {**with_tenant(scope, asker.tenant), BODY: body}
                await self._dispatch(known, asker, receive, watched, seen)
        except (ARTError, HTTPException) as error:
            await self._pace.hold_back(error, asker.tenant)
            await self._refuse(scope, send, error, asker)
        except (ClientGoneError, ClientDisconnect):
            return
        except _KeyRevokedError:
            # A reply that has begun can only be broken off.
            if not started:
                await self._refusal(scope)(send, self._key.refusal(scope), None)
        except (Exception, asyncio.CancelledError) as error:
            log_file = self.log_file if asker is not anybody and asker.tenant is None else None
            failed = self._disk_failure(error) or _failure(scope, error, log_file)
            if started:
                raise
            await self._refusal(scope)(send, failed, asker.tenant)

    async def _refuse(self, scope: Scope, send: Send, error: ARTError | HTTPException, asker: Caller) -> None:
        # The error is no local of a frame that it came through: that cycle would keep the request's body.
        is_valid = self._key.is_still_valid(scope, asker)
        shown = _as_art_error(scope, error) if is_valid else self._key.refusal(scope)
        await self._refusal(scope)(send, shown, asker.tenant if is_valid else None)

    async def _dispatch(
        self, scope: Scope, asker: Caller, receive: Receive, send: Send, seen: CountedRequest
    ) -> None:
        if scope["path"].startswith(_BY_ADDRESS):
            scope = _named_rollout(scope)
        if asker.rollout_id is not None:
            scope = scoped_request(scope, asker.rollout_id)
        dialect = self._dialects.get(scope["path"])
        if dialect is None:
            # Having an application, the router raises what it refuses.
            routed = {**scope, "app": self}
            counted = scope["path"] in TOKENIZATION
            try:
                with self._requests.count_request(asker.tenant) if counted else contextlib.nullcontext():
                    await self._routes(routed, receive, send)
            finally:
                seen.route = self._templates.get(routed.get("endpoint"), NO_ROUTE)
            return
        seen.route = scope["path"]
        if scope["method"] != "POST":
            raise MethodNotAllowedError(scope, "POST")
        with self._requests.count_request(asker.tenant):
            await dialect(scope, receive, send)

    def _disk_failure(self, error: BaseException) -> ARTError | None:
        """Returns the response to an unforeseen error of the disk."""
        place = Path(str(getattr(error, "filename", None) or self._data_dir))
        if not isinstance(error, OSError) or disk_trouble(error, place) is None:
            return None
        _log.error("the disk failed a request", exc_info=error)
        return disk_error(error, place, "the request failed")

    def _refusal(self, scope: Scope) -> Callable[[Send, ARTError, Tenant], Awaitable[None]]:
        """Returns how errors look on this address: each dialect has its own."""
        path = scope["path"]
        if path.startswith(_BY_ADDRESS):
            path = path[path.find("/", len(_BY_ADDRESS)) :]
        dialect = self._dialects.get(path)
        return send_error if dialect is None else dialect.refuse

    async def _tell_health(self, scope: Scope, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowedError(scope, "GET, HEAD")
        await send_json(send, orjson.dumps(self._health(scope)))

    def _health(self, scope: Scope) -> dict[str, Any]:
        health: dict[str, Any] = {"status": "ok", "version": self._version}
        try:
            asker = self._key.require(scope)
        except AuthenticationError:
            return health
        if asker.rollout_id is not None:
            return health
        tenant = asker.tenant
        health["models"] = [row.id for row in self._catalog.served(tenant)]
        if tenant is None:
            health["stitched"] = self._stitcher.stitched
            health["forks"] = dict(self._stitcher.forks)
            health.update(self._control_health())
        return health


async def _greet(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers who opens the address in a browser, with the same words on each server."""
    if scope["method"] not in ("GET", "HEAD"):
        raise MethodNotAllowedError(scope, "GET, HEAD")
    await PlainTextResponse(_LANDING)(scope, receive, send)


def _is_probe(scope: Scope) -> bool:
    """Returns whether an agent only looks if somebody answers at the base URL that it was given."""
    return scope["method"] == "HEAD" and _BASE_URL.fullmatch(scope["path"]) is not None


def _dialects(
    service: CompletionService, limits: LimitSettings, left_out: Counter[tuple[str, str]]
) -> dict[str, Dialect]:
    """The ways to ask for completions, by address; `/r/{rollout}` may stand before each."""
    threads = TenantThreads()
    completions = Completions(service, limits, threads, left_out)
    found: dict[str, Dialect] = {
        "/v1/chat/completions": ChatCompletions(service, limits, threads, left_out),
        "/v1/completions": completions,
        "/inference/v1/generate": TokenCompletions(service, limits, threads, raw=completions.raw),
    }
    for extension in load_extensions(DIALECT).values():
        found |= extension.make(service, limits, threads, left_out)
    return found


def _named_rollout(scope: Scope) -> Scope:
    rollout, slash, rest = scope["path"].removeprefix(_BY_ADDRESS).partition("/")
    if not slash or not rest.startswith(("v1/", "inference/v1/")):
        raise NotFoundError(f"no such route: {scope['path']!r}", status=404, code="route_not_found")
    header = (RAW_ROLLOUT_HEADER, rollout.encode())
    headers = [header, *scope["headers"]]
    return {**scope, "path": f"/{rest}", "raw_path": None, "headers": headers, ADDRESSED: rollout}


def _ends_reply(event: Any) -> bool:
    return event["type"] == "http.response.body" and not event.get("more_body", False)


def _failure(scope: Scope, error: BaseException, log_file: Path | None) -> ServerError:
    if isinstance(error, asyncio.CancelledError):
        # The server ends, and waited for this request as long as it could.
        return ServerError("the server is closing: ask again when it runs", status=503, code="server_closing")
    _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
    place = "" if log_file is None else f": {log_file}"
    return ServerError(f"internal error; the traceback is in the server's log{place}", status=500)


def _as_art_error(scope: Scope, error: ARTError | HTTPException) -> ARTError:
    """Converts the router's errors to ART's."""
    if scope["path"].startswith("/art/"):  # trying again is of no use: the message says what is
        if isinstance(error, CheckpointError):
            return RequestError(str(error), status=409, code="checkpoint_unfit")
        if isinstance(error, CanaryError) and not isinstance(error, ParityError):
            return RequestError(str(error), status=409, code="canary_failed")
    if isinstance(error, ARTError):
        return error
    if error.status_code == 404:
        return NotFoundError(f"no such route: {scope['path']!r}", status=404, code="route_not_found")
    if error.status_code == 405:
        return MethodNotAllowedError(scope, (error.headers or {}).get("Allow", ""))
    return RequestError(f"{scope['method']} {scope['path']}: {error.detail}", status=error.status_code)
