"""Another process of a node: it fetches a copy, says where it is, and ends with its standard input.

python shelf_process.py '{"folder": ..., "limit": ..., "digest": ..., "sources": [...]}'
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from art.errors import ARTError
from art_extensions.cluster.shelf import Shelf
from art_extensions.cluster.sources import PullLimits, Source


async def main() -> None:
    order = json.loads(sys.stdin.readline())
    shelf = Shelf(Path(order["folder"]), order["limit"], limits=PullLimits(total=120.0))
    print("begun", flush=True)
    try:
        sources = [Source.model_validate(source) for source in order["sources"]]
        print(await shelf.fetch(order["digest"], sources), flush=True)
    except ARTError as error:
        print(f"failed: {error}", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await shelf.close()


if __name__ == "__main__":
    asyncio.run(main())
