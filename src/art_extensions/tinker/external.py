"""Weights to download: URLs of a checkpoint's files that need no key, are signed and expire.

Clients of release 0.30 and older ask for one archive instead, of weights of any kind.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import io
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from art.errors import RequestError, ServerError
from art.wire.models import stays_in_folder
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.saved_weights import EXTERNAL, adapter_files, find_own
from art_extensions.tinker.sessions import KeyRing
from art_extensions.tinker.store import SavedCheckpoint, TinkerStore, now

VALID_S = 3600
"""How long a URL can be used."""
_MOST_DIGITS = 12
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
        saved = await self._find(run_id, EXTERNAL, name, owner)
        manifest = await (await self._keys.server(owner)).files(saved.model, saved.step)
        expires = int(now()) + VALID_S
        urls = {
            file: self._url(request, "external", owner, expires, (run_id, name, file))
            for file in adapter_files(manifest)
        }
        until = datetime.fromtimestamp(expires, UTC).isoformat()
        return JSONResponse({"urls": urls, "expires": until})

    async def download(self, request: Request) -> Response:
        """A file. Raises RequestError (403) for a URL that is not one of `urls`, or has expired."""
        run_id, name, file = place = tuple(request.path_params[part] for part in ("run_id", "name", "file"))
        owner = self._require_signature(request, "external", place)
        if not stays_in_folder(file):
            raise refusal(f"{file!r} is no file's name")
        saved = await self._find(run_id, EXTERNAL, name, owner)
        found = await (await self._server(owner)).file(saved.model, saved.step, file)
        return Response(found, media_type="application/octet-stream")

    async def archive_url(self, request: Request) -> Response:
        """Leads to an archive of the adapter, as PEFT has it."""
        owner = await self._owner_of(request)
        run_id, kind, name = place = tuple(request.path_params[part] for part in ("run_id", "kind", "name"))
        await self._find(run_id, kind, name, owner)
        expires = int(now()) + VALID_S
        url = self._url(request, "archives", owner, expires, place)
        until = format_datetime(datetime.fromtimestamp(expires, UTC), usegmt=True)
        return Response(status_code=302, headers={"Location": url, "Expires": until})

    async def archive(self, request: Request) -> Response:
        """The archive. Raises RequestError (403) for a URL that is not of `archive_url`, or has expired."""
        run_id, kind, name = place = tuple(request.path_params[part] for part in ("run_id", "kind", "name"))
        owner = self._require_signature(request, "archives", place)
        saved = await self._find(run_id, kind, name, owner)
        server = await self._server(owner)
        manifest = await server.files(saved.model, saved.step)
        found = {file: await server.file(saved.model, saved.step, file) for file in adapter_files(manifest)}
        return Response(await asyncio.to_thread(_packed, found), media_type="application/x-tar")

    async def _find(self, run_id: str, kind: str, name: str, owner: str) -> SavedCheckpoint:
        path = f"tinker://{run_id}/{kind}/{name}"
        return await self._store.run(lambda tables: find_own(tables, path, owner))

    async def _server(self, owner: str) -> ArtServer:
        try:
            async with asyncio.timeout(_KEY_S):
                return await self._keys.server(owner)
        except TimeoutError as error:
            raise ServerError("no request has had the owner's key since the start", status=503) from error

    def _url(self, request: Request, room: str, owner: str, expires: int, place: Sequence[str]) -> str:
        query = {"owner": owner, "expires": expires, "signature": self._sign(room, owner, expires, place)}
        path = "/".join(quote(part, safe="") for part in place)
        return f"{str(request.base_url).rstrip('/')}/api/v1/{room}/{path}?{urlencode(query)}"

    def _require_signature(self, request: Request, room: str, place: Sequence[str]) -> str:
        """Returns the owner whom the URL says. Raises RequestError (403)."""
        owner, given, until = (
            request.query_params.get(part, "") for part in ("owner", "signature", "expires")
        )
        expires = int(until) if until.isdecimal() and len(until) <= _MOST_DIGITS else 0
        right = self._sign(room, owner, expires, place)
        if not hmac.compare_digest(given.encode(), right.encode()) or expires < now():
            raise RequestError("the URL is not one of this server, or has expired", status=403)
        return owner

    def _sign(self, room: str, owner: str, expires: int, place: Sequence[str]) -> str:
        text = "\n".join((room, owner, *place, str(expires)))
        return hmac.new(self._keys.own.encode(), text.encode(), hashlib.sha256).hexdigest()


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def external_routes(
    store: TinkerStore, owner_of: Callable[[Request], Awaitable[str]], keys: KeyRing
) -> list[BaseRoute]:
    """Returns the routes."""
    made = ExternalWeights(store, owner_of, keys)
    checkpoint = "/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}"
    return [
        Route(f"{checkpoint}/external_weights_urls", made.urls, methods=["GET"]),
        Route("/api/v1/external/{run_id}/{name}/{file}", made.download, methods=["GET"]),
        Route(f"{checkpoint}/archive", made.archive_url, methods=["GET"]),
        Route("/api/v1/archives/{run_id}/{kind}/{name}", made.archive, methods=["GET"]),
    ]
