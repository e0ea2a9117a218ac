"""The pages, served on a port of loopback by a thread of the test's process."""

from __future__ import annotations

import html
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from art_extensions.ui.access import EVERYBODY, LinkAccess
from art_extensions.ui.app import guarded_pages, mounted_pages
from waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page


def words_of(page: str) -> str:
    """The words of a page, without its markup; the content of attributes is left out."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


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


class Watched:
    """A page of a browser that has a cookie, with all that its console said."""

    def __init__(self, context: BrowserContext, served: ServedPages) -> None:
        self.page: Page = context.new_page()
        self.served, self.reports = served, list[str]()
        self.page.on("console", lambda message: self.reports.append(message.text))
        self.page.on("pageerror", lambda error: self.reports.append(str(error)))
        self.page.goto(served.door)
        self.page.wait_for_url(f"{served.address}/")

    def open(self, path: str) -> Page:
        self.page.goto(self.served.address + path)
        self.page.wait_for_load_state("networkidle")
        return self.page

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, past the page's policy, as the developer's tools would."""
        session = self.page.context.new_cdp_session(self.page)
        found = session.send(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
        session.detach()
        return found["result"].get("value")
