"""`art.process.files` makes files and folders, private ones, wherever they may hold prompts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from figures import nodes

SOURCE = Path(__file__).parents[3] / "src"
EXTENSIONS = (
    *("buckets", "evaluation", "gguf", "judge_checks", "langgraph", "logs", "postgres", "publish", "sandbox"),
    *("scenarios", "sinks", "ui"),
)
ROOMS = (
    *(f"art_extensions/{room}" for room in EXTENSIONS),
    *(f"art/{room}" for room in ("client", "rewards", "runs", "server", "tracking", "training")),
)
MAKING = {"mkdir", "makedirs", "write_text", "write_bytes"}
FOR_OTHERS = {
    "art_extensions/gguf/conversion.py": "base models are public",
    "art_extensions/publish/export.py": "an export is made for another program",
    "art_extensions/publish/merging/merge.py": "an export is made for another program",
    "art_extensions/sandbox/confined/isolation.py": "folders of a sandbox",
    "art_extensions/sandbox/confined/work.py": "a file in a sandbox",
    "art_extensions/scenarios/mcp/cassette.py": "a recording that a program names, for its tests",
    "art_extensions/buckets/store.py": "a bucket of a store, not a folder here",
    "art/runs/quickstart_report.py": "the file that --json names",
    "art/training/checkpoint.py": "closed before the checkpoint is in its place",
    "art/training/device_memory.py": "a file of the kernel",
    "art/training/lora.py": "closed before the checkpoint is in its place",
}


def makes_files(node: ast.AST) -> bool:
    """Whether a call makes a file or a folder and says nothing of who may read it."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in MAKING:
        own = isinstance(function.value, ast.Name) and function.value.id == "self"
        return not own and not any(word.arg == "mode" for word in node.keywords)
    if isinstance(function, ast.Name) and function.id == "open" and len(node.args) > 1:
        mode = node.args[1]
        writes = isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax")
        return bool(writes) and not any(word.arg == "opener" for word in node.keywords)
    return False


@pytest.mark.slow
def test_files_that_may_hold_prompts_keys_or_weights_are_made_private() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for room in ROOMS
        for path in sorted((SOURCE / room).rglob("*.py"))
        for node in nodes(path)
        if makes_files(node)
    }
    files = {place.partition(":")[0] for place in found}
    assert sorted(place for place in found if place.partition(":")[0] not in FOR_OTHERS) == []
    assert files == set(FOR_OTHERS), "the list of exceptions is as long as it has to be"
