"""The pages served on a port of loopback, and a browser, where one is installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from served_pages import ServedPages, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
        pytest.skip("no Chromium is installed: run tests/ui/install_browser.sh")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()
