"""Weights to download: URLs of a checkpoint's files that need no key, are signed and expire."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from art.errors import RequestError, ServerError
from art.wire.models import stays_in_folder
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.saved_weights import EXTERNAL, adapter_files, find_own
from art_extensions.tinker.sessions import KeyRing
from art_extensions.tinker.store import SavedCheckpoint, TinkerStore, now

VALID_S = 3600
"""How long a URL can be used."""
_KEY_S = 30.0
"""How long a download waits for the key of its owner, which this process may not have seen yet."""


class ExternalWeights:
    """The handlers."""

    def __init__(
        self, store: TinkerStore, owner_of: Callable[[Request], Awaitable[str]], keys: KeyRing
    ) -> None:
        self._store, self._owner_of, self._keys = store, owner_of, keys

    async def urls(self, request: Request) -> Response:
        """A URL for each file of the adapter, as PEFT has it."""
        owner = await self._owner_of(request)
        run_id, name = request.path_params["run_id"], request.path_params["name"]
        if request.path_params["kind"] != EXTERNAL:
            raise refusal(f"only weights of save_weights_external have URLs: tinker://RUN/{EXTERNAL}/NAME")
        saved = await self._find(run_id, name, owner)
        manifest = await (await self._keys.server(owner)).files(saved.model, saved.step)
        expires = int(now()) + VALID_S
        root = f"{str(request.base_url).rstrip('/')}/api/v1/external/{quote(run_id, safe='')}/{quote(name)}"
        urls = {
            file: f"{root}/{quote(file)}?" + urlencode(self._signed(owner, run_id, name, file, expires))
            for file in adapter_files(manifest)
        }
        until = datetime.fromtimestamp(expires, UTC).isoformat()
        return JSONResponse({"urls": urls, "expires": until})

    async def download(self, request: Request) -> Response:
        """A file. Raises RequestError (403) for a URL that is not one of `urls`, or has expired."""
        run_id, name, file = (request.path_params[part] for part in ("run_id", "name", "file"))
        owner, expires = (request.query_params.get(part, "") for part in ("owner", "expires"))
        right = self._signed(owner, run_id, name, file, int(expires) if expires.isdecimal() else 0)
        given = request.query_params.get("signature", "")
        if not hmac.compare_digest(given.encode(), right["signature"].encode()) or int(expires) < now():
            raise RequestError("the URL is not one of this server, or has expired", status=403)
        if not stays_in_folder(file):
            raise refusal(f"{file!r} is no file's name")
        saved = await self._find(run_id, name, owner)
        try:
            async with asyncio.timeout(_KEY_S):
                server = await self._keys.server(owner)
        except TimeoutError as error:
            raise ServerError("no request has had the owner's key since the start", status=503) from error
        found = await server.file(saved.model, saved.step, file)
        return Response(found, media_type="application/octet-stream")

    async def _find(self, run_id: str, name: str, owner: str) -> SavedCheckpoint:
        path = f"tinker://{run_id}/{EXTERNAL}/{name}"
        return await self._store.run(lambda tables: find_own(tables, path, owner))

    def _signed(self, owner: str, run_id: str, name: str, file: str, expires: int) -> dict[str, str]:
        text = "\n".join(("external weights", owner, run_id, name, file, str(expires)))
        signature = hmac.new(self._keys.own.encode(), text.encode(), hashlib.sha256).hexdigest()
        return {"owner": owner, "expires": str(expires), "signature": signature}


def external_routes(
    store: TinkerStore, owner_of: Callable[[Request], Awaitable[str]], keys: KeyRing
) -> list[BaseRoute]:
    """Returns the routes."""
    made = ExternalWeights(store, owner_of, keys)
    checkpoint = "/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}"
    return [
        Route(f"{checkpoint}/external_weights_urls", made.urls, methods=["GET"]),
        Route("/api/v1/external/{run_id}/{name}/{file}", made.download, methods=["GET"]),
    ]
