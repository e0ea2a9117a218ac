"""Threads that need a library at the same moment get it, whichever part of it each asks for first."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from waiting import DEADLINE_S

SOURCE = Path(__file__).parents[2] / "src"
HEAVY = {
    *("torch", "transformers", "peft", "tokenizers", "renderers", "unsloth", "bitsandbytes", "llguidance"),
    *("openai", "litellm", "langchain_core", "langchain_openai", "langgraph", "PIL", "huggingface_hub"),
}
"""Libraries whose parts import each other, and which threads load when they need them."""

LOCK = ast.dump(ast.Name(id="import_lock", ctx=ast.Load()))

RACE = """
import sys, threading
from art.engine.base_models import resolve_base
from art.engine.constraints import read_vocabulary
from art.process.imports import import_lock
from art.rendering.confined_template import prepare

sys.setswitchinterval(1e-5)
folder = str(resolve_base("art/nano-games").source)
failed, start = [], threading.Barrier(3)

def render():
    with import_lock:
        from art.rendering.registry import create_chat_renderer
    create_chat_renderer(folder)

def run(work):
    start.wait()
    try:
        work()
    except BaseException as error:
        failed.append(f"{work}: {error!r}")

works = [render, lambda: read_vocabulary(folder), lambda: prepare(b"")]
threads = [threading.Thread(target=run, args=(work,)) for work in works]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*failed, sep="\\n")
"""


@pytest.mark.slow
def test_threads_that_import_a_library_at_once_all_get_it(tmp_path: Path) -> None:
    program = tmp_path / "race.py"
    program.write_text(RACE)
    # Without the lock nine of ten such processes fail; two leave no doubt.
    racers = [
        subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [racer.communicate(timeout=DEADLINE_S) for racer in racers]
    ended = [(racer.returncode, out) for racer, (out, _) in zip(racers, printed, strict=True)]
    assert ended == [(0, "\n")] * 2


def unlocked_imports(source: str) -> list[str]:
    """Returns the heavy libraries that the functions of a file import without the lock, with their lines."""

    def visit(node: ast.AST, lazy: bool, locked: bool) -> Iterator[str]:
        names: list[str] = []
        match node:
            case ast.Import():
                names = [one.name for one in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module]
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module))],
            ):
                names = [module]
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                lazy = True
            case ast.With():
                locked = locked or any(ast.dump(one.context_expr) == LOCK for one in node.items)
        if lazy and not locked:
            yield from (f"{name}:{node.lineno}" for name in names if name.split(".")[0] in HEAVY)  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy, locked)

    return list(visit(ast.parse(source), lazy=False, locked=False))


@pytest.mark.slow
def test_a_heavy_library_is_imported_under_the_lock() -> None:
    found = {
        str(file.relative_to(SOURCE)): names
        for file in sorted(SOURCE.rglob("*.py"))
        if (names := unlocked_imports(file.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_an_import_without_the_lock_is_found() -> None:
    assert unlocked_imports("def f():\n    import litellm") == ["litellm:2"]
    assert unlocked_imports("def f():\n    to_thread(importlib.import_module('litellm'))") == ["litellm:2"]
    assert unlocked_imports("import torch\ndef f():\n    with import_lock:\n        import litellm") == []
