"""Where an input is tried: a folder for its files, and servers in this process that the first one starts."""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path

from chat_folder import write_chat_folder
from gateways import Gateway, TinkerGateway

from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer


class Place:
    """A folder; close it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def file(self, name: str, content: bytes) -> Path:
        """Returns a file of this content."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def empty(self, name: str) -> None:
        """Removes what an input before left."""
        shutil.rmtree(self.folder / name, ignore_errors=True)

    @cached_property
    def gateway(self) -> Gateway:
        """The server with all its routes, an operator and two tenants."""
        return Gateway(self.folder / "server")

    @cached_property
    def renderer(self) -> LibraryRenderer:
        """Qwen3's format over a tiny tokenizer."""
        return create_chat_renderer(write_chat_folder(self.folder / "tokenizer"), name="tiny")

    @cached_property
    def tinker(self) -> TinkerGateway:
        """Tinker's API, before a server that answers by a script."""
        return TinkerGateway(self.folder / "service")

    def close(self) -> None:
        """Ends what was started."""
        for name in {"gateway", "tinker"} & set(vars(self)):
            vars(self)[name].close()
