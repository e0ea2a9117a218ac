"""The pages, served on a port of loopback by a thread of the test's process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from art.ui.access import LinkAccess
from art.ui.app import guarded_pages, mounted_pages
from art.ui.run_files import EVERYBODY
from waiting import eventually


@dataclass
class ServedPages:
    """Pages that are served."""

    address: str
    tokens: list[str]
    """The last one opens a browser."""

    @property
    def door(self) -> str:
        return f"{self.address}/?token={self.tokens[-1]}"


@contextmanager
def served(root: Path, mount: str = "") -> Iterator[ServedPages]:
    """The pages of the runs below a folder. mount: the path below which a server has them."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    found = ServedPages(f"http://127.0.0.1:{port}{mount}", [])
    if mount:
        access = LinkAccess(path=mount, proof_of=lambda tenant: b"")
        pages = mounted_pages(root, access)
        found.tokens.append(access.link(EVERYBODY, "localhost").partition("=")[2])
    else:
        pages = guarded_pages(root, port=port, on_use=found.tokens.append)
        found.tokens.append(pages.access.token)
    server = uvicorn.Server(uvicorn.Config(pages, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: server.started)
        yield found
    finally:
        server.should_exit = True
        thread.join()
        pages.close()
        listener.close()
