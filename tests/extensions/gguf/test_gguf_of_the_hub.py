"""`hf://OWNER/REPOSITORY/FILE.gguf`, downloaded by the hub's own client from a hub on this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from gguf_files import nano_model, write_gguf
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from art.engine.base_models import local_folder
from art.errors import ConfigurationError
from art_extensions.gguf.cache import converted_name, list_converted
from serving import serving_in_a_thread

pytestmark = pytest.mark.slow

NAME = "hf://owner/models/q4/small.gguf"


def test_a_file_of_the_hub_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_gguf(tmp_path / "small.gguf", nano_model()).read_bytes()
    digest, asked = hashlib.sha256(content).hexdigest(), list[str]()

    async def resolve(request: Request) -> Response:
        asked.append(f"{request.method} {request.path_params['file']}")
        headers = {"x-repo-commit": "c" * 40, "etag": f'"{digest}"', "x-linked-size": str(len(content))}
        if request.path_params["file"] != "q4/small.gguf":
            return JSONResponse({}, 404, headers={**headers, "x-error-code": "EntryNotFound"})
        return Response(content, headers=headers)

    hub = Starlette(routes=[Route("/owner/models/resolve/main/{file:path}", resolve)])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    phases = list[str]()
    with serving_in_a_thread(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        folder = Path(local_folder(NAME, phases.append))
        assert folder.name == converted_name(digest) and (folder / "config.json").is_file()
        assert phases[:2] == [f"downloading {NAME}", "reading small.gguf"]
        assert asked.count("GET q4/small.gguf") == 1
        with pytest.raises(ConfigurationError, match=r"hub does not give owner/models/q4/none.gguf: .*404"):
            local_folder("hf://owner/models/q4/none.gguf")
    # The hub is gone; what was downloaded is used.
    phases.clear()
    assert Path(local_folder(NAME, phases.append)) == folder and phases == []
    assert [one.source for one in list_converted()] == [NAME]
