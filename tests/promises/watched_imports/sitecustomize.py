"""Watches a program for imports that would stop its event loop: put this folder on PYTHONPATH.

What is slow to load is written to stderr as `stalled by NAME` where it is imported while a loop runs in
that thread. Processes that the program starts are not watched.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HEAVY = frozenset(
    "torch transformers tokenizers vllm litellm wandb weave numpy polars pandas pyarrow matplotlib seaborn "
    "scipy langchain_core langgraph mcp ray fsspec s3fs".split()
)


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if event != "import" or arguments[0] not in HEAVY:
        return
    asyncio = sys.modules.get("asyncio")
    running = getattr(asyncio, "_get_running_loop", None)
    if running is not None and running() is not None:
        sys.stderr.write(f"stalled by {arguments[0]}\n")


os.environ.pop("PYTHONPATH", None)
if "ART_TESTS_FORK_SERVER" in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    __import__("fork_server").adopt()
    del sys.path[0]
sys.addaudithook(watch)
