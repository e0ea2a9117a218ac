"""The routes of the hub that an upload uses, behind a real socket; what was uploaded stays in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "hf_of_this_test"
LARGE = (".safetensors", ".gguf")


@dataclass
class Hub:
    """Repositories by name, the requests that made them, and their files."""

    created: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    """Large files by their sha256, as the hub keeps them."""
    licenses: dict[str, str] = field(default_factory=dict)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/repos/create", self.create, methods=["POST"]),
                Route("/api/validate-yaml", self.validate, methods=["POST"]),
                Route("/api/models/{owner}/{name}", self.info),
                Route("/api/models/{owner}/{name}/preupload/main", self.preupload, methods=["POST"]),
                Route("/api/models/{owner}/{name}/commit/main", self.commit, methods=["POST"]),
                Route("/{owner}/{name}.git/info/lfs/objects/batch", self.batch, methods=["POST"]),
                Route("/stored/{oid}", self.store, methods=["PUT"]),
            ]
        )

    def refusal(self, request: Request) -> Response | None:
        if request.headers.get("authorization") == f"Bearer {TOKEN}":
            return None
        return JSONResponse({"error": "Invalid user token."}, 401)

    async def create(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        asked = await request.json()
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.created:
            return JSONResponse({"error": "You already created this model repo", "url": name}, 409)
        self.created[name] = asked
        return JSONResponse({"url": f"{request.base_url}{name}"})

    async def validate(self, request: Request) -> Response:
        text = (await request.json())["content"]
        assert text.startswith("---\n")
        return JSONResponse({"errors": [], "warnings": []})

    async def info(self, request: Request) -> Response:
        name = "{owner}/{name}".format(**request.path_params)
        if name not in self.licenses:
            return JSONResponse({"error": "Repository not found"}, 404)
        return JSONResponse({"id": name, "cardData": {"license": self.licenses[name]}})

    async def preupload(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        names = [one["path"] for one in (await request.json())["files"]]
        modes = {True: "lfs", False: "regular"}
        files = [
            {"path": name, "uploadMode": modes[name.endswith(LARGE)], "shouldIgnore": False} for name in names
        ]
        return JSONResponse({"files": files})

    async def batch(self, request: Request) -> Response:
        objects = (await request.json())["objects"]
        found = [
            {**one, "actions": {"upload": {"href": f"{request.base_url}stored/{one['oid']}", "header": {}}}}
            for one in objects
        ]
        return JSONResponse({"transfer": "basic", "objects": found})

    async def store(self, request: Request) -> Response:
        body = await request.body()
        if hashlib.sha256(body).hexdigest() != request.path_params["oid"]:
            return Response(status_code=422)
        self.stored[request.path_params["oid"]] = body
        return Response()

    async def commit(self, request: Request) -> Response:
        if refused := self.refusal(request):
            return refused
        name = "{owner}/{name}".format(**request.path_params)
        kept = self.files.setdefault(name, {})
        for line in (await request.body()).splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                kept[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                kept[value["path"]] = self.stored[value["oid"]]
        return JSONResponse(
            {"commitUrl": f"{request.base_url}{name}/commit/1", "commitOid": "1", "success": True}
        )
