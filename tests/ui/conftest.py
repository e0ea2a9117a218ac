"""The pages served on a port of loopback, and a browser, where one is installed."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvicorn

from art.ui.app import guarded_pages
from waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


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
def served(root: Path) -> Iterator[ServedPages]:
    """The pages of the runs below a folder."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    found = ServedPages(f"http://127.0.0.1:{port}", [])
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


@pytest.fixture
def serve() -> Iterator[Callable[[Path], ServedPages]]:
    """Serves folders until the test has ended."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda root: stack.enter_context(served(root))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium. Not for the session: while it is there, an event loop runs in this thread."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed: run tests/ui/install_browser.sh")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
