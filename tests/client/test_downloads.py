"""Checkpoints over HTTP: whole, checked, and nowhere but where they were asked for."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from art.client.http.connection import ServerConnection
from art.client.storage.checkpoint_download import fetch_checkpoint
from art.errors import CheckpointError, CheckpointMissingError, ConfigurationError, StepMissingError

MODEL = "/art/models/games/player"
CONTENT = {"adapter_model.safetensors": b"weights" * 300_000, "adapter_config.json": b"{}"}


class Shelf:
    """What the server has, and how it behaves."""

    def __init__(self) -> None:
        self.steps = [0, 1, 7]
        self.files = dict(CONTENT)
        self.manifest: dict[str, Any] = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            for name, data in CONTENT.items()
        }
        self.broken = 0
        """So many answers break off in the middle."""
        self.asked: list[str] = []


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    kept = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kept.asked.append(self.path)
            if self.path == MODEL:
                self._send(json.dumps(_info(kept.steps)).encode())
            elif self.path.endswith("/files"):
                self._send(json.dumps({"files": kept.manifest}).encode())
            else:
                self._send(kept.files[self.path.rpartition("/")[2]], breaks=True)

        def _send(self, body: bytes, breaks: bool = False) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if breaks and kept.broken:
                kept.broken -= 1
                body = body[: len(body) // 2]
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True).start()
    kept.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield kept
    server.shutdown()
    server.server_close()


def _info(steps: list[int]) -> dict[str, Any]:
    return {
        "project": "games",
        "name": "player",
        "base_model": "b",
        "inference_name": "player",
        "step": max(steps, default=0),
        "checkpoints": steps,
    }


async def fetch(shelf: Shelf, target: Path, step: Any = None) -> Path:
    async def address() -> tuple[str, str]:
        return shelf.url, "key"  # type: ignore[attr-defined]

    async def revive() -> None:
        return None

    connection = ServerConnection(address, revive)
    try:
        return await fetch_checkpoint(connection, MODEL, step, lambda found: target / f"{found:04d}")
    finally:
        await connection.close()


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
async def test_the_newest_step_comes_whole_over_broken_connections(shelf: Shelf, tmp_path: Path) -> None:
    shelf.broken = 2
    folder = await fetch(shelf, tmp_path)
    assert folder == tmp_path / "0007" and held(folder) == CONTENT
    asked = len(shelf.asked)
    await fetch(shelf, tmp_path, "latest")
    assert len(shelf.asked) == asked + 2, "files that are here are not fetched again"
    (folder / "adapter_config.json").write_bytes(b"[]")
    (folder / "mine").write_bytes(b"stays")
    assert held(await fetch(shelf, tmp_path, 7)) == {**CONTENT, "mine": b"stays"}
    assert os.listdir(tmp_path) == ["0007"]


@pytest.mark.parametrize("damage", [b"", b"other bytes", CONTENT["adapter_config.json"] + b" "])
async def test_a_file_that_is_not_what_the_manifest_says_is_refused(
    shelf: Shelf, tmp_path: Path, damage: bytes
) -> None:
    shelf.files["adapter_config.json"] = damage
    with pytest.raises(CheckpointError, match="but the manifest says 2 bytes"):
        await fetch(shelf, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "..", "", "a\\b"])
async def test_a_server_does_not_choose_where_its_files_go(shelf: Shelf, tmp_path: Path, name: str) -> None:
    shelf.manifest[name] = {"sha256": "0" * 64, "size": 0}
    with pytest.raises(CheckpointError, match="is a path"):
        await fetch(shelf, tmp_path)
    assert os.listdir(tmp_path) == []


async def test_steps_that_are_not_there_are_said_to_be_missing(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(StepMissingError, match=r"Available steps: \[0, 1, 7\]"):
        await fetch(shelf, tmp_path, 2)
    with pytest.raises(ConfigurationError, match="'newest'"):
        await fetch(shelf, tmp_path, "newest")
    shelf.steps = [0]
    with pytest.raises(CheckpointMissingError, match="not been trained yet"):
        await fetch(shelf, tmp_path)
    assert held(await fetch(shelf, tmp_path, 0)) == CONTENT
