"""The gateway over real HTTP, in the test's own event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import openai
from scripted_engine import ScriptedEngine

from art.rendering.library import LibraryRenderer
from art.server.app import App
from art.server.catalog import Catalog
from art.server.connections import http_protocol
from art.server.ledger.ledger import Ledger
from art.server.ledger.stitching import Stitcher
from art.server.settings import LimitSettings
from serving import serving

KEY = "a-key-for-tests"


@dataclass(kw_only=True)
class Live:
    """A running gateway and what is inside it."""

    url: str
    app: App
    catalog: Catalog
    ledger: Ledger
    stitcher: Stitcher
    engine: ScriptedEngine
    renderer: LibraryRenderer
    client: openai.AsyncOpenAI


@contextlib.asynccontextmanager
async def run_gateway(
    path: Path,
    engine: ScriptedEngine,
    renderer: LibraryRenderer,
    *,
    max_context: int = 4096,
    limits: LimitSettings | None = None,
) -> AsyncIterator[Live]:
    """Serve base model `tiny` and model `games/player` at step 3 until the block ends."""
    limits = limits or LimitSettings()
    ledger = Ledger(path)
    catalog = Catalog()
    catalog.add_base("tiny", engine, renderer, max_context=max_context)
    engine.adapters.add("games/player@3")
    catalog.publish("games", "player", "tiny", 3, "games/player@3")
    stitcher = Stitcher(ledger, max_tokens=limits.remembered_tokens, ledger_is_empty=await ledger.is_empty())
    app = App(key=KEY, catalog=catalog, ledger=ledger, stitcher=stitcher, limits=limits)
    try:
        async with (
            listening(app, limits) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60) as client,
        ):
            yield Live(
                url=url,
                app=app,
                catalog=catalog,
                ledger=ledger,
                stitcher=stitcher,
                engine=engine,
                renderer=renderer,
                client=client,
            )
    finally:
        await ledger.close()


def listening(app: App, limits: LimitSettings) -> AbstractAsyncContextManager[str]:
    """The application behind a real socket: its address."""
    return serving(
        app, access_log=False, http=http_protocol(limits), timeout_keep_alive=int(limits.keep_alive)
    )
