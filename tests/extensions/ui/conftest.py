"""The pages served on a port of loopback, and a browser, where one is installed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "server"))
sys.path.append(str(Path(__file__).parents[2] / "rendering"))

from gateway_fixtures import engine, renderer  # noqa: F401  fixtures
from served_pages import ServedPages, Watched, served, words_of
from starlette.testclient import TestClient

from art_extensions.ui.app import RunPages
from waiting import DEADLINE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE_MS = 1000 * DEADLINE_S
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def serve() -> Iterator[Callable[..., ServedPages]]:
    """Serves folders until the test has ended."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda root, mount="": stack.enter_context(served(root, mount))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium. Not for the session: while it is there, an event loop runs in this thread."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed: run tests/install_programs.sh")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield started
        started.close()


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The words of a page, without its markup; the content of attributes is left out."""
    pages = RunPages(tmp_path)
    client = TestClient(pages.app(), raise_server_exceptions=True)

    yield lambda path: words_of(client.get(path).text)
    pages.reader.close()


@pytest.fixture
def watch(browser: Browser, serve: Callable[..., ServedPages]) -> Iterator[Callable[..., Watched]]:
    contexts = []

    def watched(root: Path, mount: str = "", **options: Any) -> Watched:
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        return Watched(context, serve(root, mount))

    yield watched
    for context in contexts:
        context.close()
