"""Folders to hand around, and shelves that are served on loopback addresses of their own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.shelf_app import NodeShelf, ShelfServer
from art_extensions.cluster.sources import PullLimits, Source

PLENTY = 1 << 30
QUICK = PullLimits(total=240.0, connect=10.0, silence=30.0, rounds=2, pause=0.01)


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def random_adapter(folder: Path, size: int = 3_000_000) -> Path:
    return write_folder(
        folder,
        {"adapter_model.safetensors": os.urandom(size), "adapter_config.json": b"{}", "sub/empty": b""},
    )


def read_folder(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@dataclass
class Node:
    """One shelf with its server, and the server's view of it."""

    shelf: Shelf
    server: ShelfServer
    view: NodeShelf

    @property
    def source(self) -> Source:
        return self.server.address.source


@contextlib.asynccontextmanager
async def served_shelf(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    limit_bytes: int = PLENTY,
    limits: PullLimits = QUICK,
    keep_s: float = 900.0,
) -> AsyncIterator[Node]:
    shelf = Shelf(folder, limit_bytes, limits=limits, keep_s=keep_s)
    server = await ShelfServer.start(shelf, host, takes_orders=True)
    view = NodeShelf(server.address)
    try:
        yield Node(shelf, server, view)
    finally:
        await view.close()
        await server.stop()
        await shelf.close()
