"""Rules that a reviewer would otherwise have to remember, checked on the syntax tree of every source file."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from figures import nodes, parse

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "art"
EXTENSIONS = ROOT / "src" / "art_extensions"
ENVIRONMENT_READERS = (SOURCE / "server" / "settings.py", SOURCE / "process" / "environment.py")
TORCH_ROOMS = (
    SOURCE / "training",
    SOURCE / "engine" / "builtin",
    EXTENSIONS / "audit",
    EXTENSIONS / "cluster",
    EXTENSIONS / "cuda_graphs",
    EXTENSIONS / "doctor",
    EXTENSIONS / "experts",
    EXTENSIONS / "gguf",
    EXTENSIONS / "optimizers",
    EXTENSIONS / "preferences" / "terms.py",
    EXTENSIONS / "publish" / "merging",
    EXTENSIONS / "replay",
    EXTENSIONS / "tinker" / "custom_loss",
    EXTENSIONS / "token_views",
)
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve", "cloudpickle", "joblib"}
KNOTTED_LIBRARIES = {
    "bitsandbytes",
    "gguf",
    "huggingface_hub",
    "jinja2",
    "llguidance",
    "openai",
    "peft",
    "PIL",
    "renderers",
    "tokenizers",
    "torch",
    "transformers",
}
"""Their parts import each other, and functions of ours import several parts."""
RIDDLES = re.compile(
    r"(What|Where|Who|Whoever|Whose|Which|How|Why|Whether|When|If|That|Those|It|Its|They|Nobody|Nothing|"
    r"Whatever|Everything|Something|None|As|Of|From|By|For|To|In|Inside|On|At|With|Without|Until|Behind|Between)\b"
)
"""First words of a docstring that leave a reader to guess the subject or the verb."""


FILES = [*sorted(SOURCE.rglob("*.py")), *sorted(EXTENSIONS.rglob("*.py"))]


@pytest.fixture(scope="module", autouse=True)
def parsed() -> None:
    """Once for all rules, and so on the account of none."""
    for path in FILES:
        nodes(path)


def imported_roots(found: Iterable[ast.AST]) -> set[str]:
    roots = set()
    for node in found:
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            roots.add(node.module.split(".")[0])
    return roots


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_what_returns_none_is_not_documented_to_return() -> None:
    found = [
        f"{path}:{node.lineno}: {node.name}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.returns, ast.Constant)
        and node.returns.value is None
        and (ast.get_docstring(node) or "").startswith("Returns")
    ]
    assert not found, found


def test_a_text_with_a_name_is_declared_in_one_file() -> None:
    """Numbers may be equal by chance, texts and sets of texts are not."""
    places: dict[tuple[str, str], set[str]] = {}
    for path in FILES:
        for node in ast.iter_child_nodes(parse(path)):
            if not isinstance(node, ast.Assign) or "skeleton" in path.parts:
                continue
            name, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
            if name.strip("_").isupper() and re.search(r"['\"]\w{3}", value) and "TypeVar" not in value:
                places.setdefault((name.strip("_"), value), set()).add(str(path.relative_to(ROOT)))
    assert not {one: found for one, found in places.items() if len(found) > 1}


def test_only_two_files_read_the_environment() -> None:
    readers = [
        str(path.relative_to(ROOT))
        for path in FILES
        if path not in ENVIRONMENT_READERS
        and any(dotted(node) in {"os.environ", "os.getenv", "os.environb"} for node in nodes(path))
    ]
    assert not readers, readers


def test_torch_stays_in_its_rooms() -> None:
    strays = [
        str(path.relative_to(ROOT))
        for path in FILES
        if imported_roots(nodes(path)) & {"torch", "peft"}
        and not any(room in (path, *path.parents) for room in TORCH_ROOMS)
    ]
    assert not strays, strays


@pytest.mark.slow
def test_what_threads_import_lazily_they_import_under_one_lock() -> None:
    """`art/process/imports.py` says why."""
    found = []
    for path in FILES:
        functions = [n for n in nodes(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        lazy = {
            id(n): n for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)
        }
        for node in nodes(path):
            if isinstance(node, ast.With) and dotted(node.items[0].context_expr) == "import_lock":
                for line in node.body:
                    lazy.pop(id(line), None)
        found += [
            f"{path}:{node.lineno}: {ast.unparse(node)}"
            for node in lazy.values()
            if imported_roots([node]) & KNOTTED_LIBRARIES
        ]
    assert not found, found


def test_nothing_can_execute_what_it_reads() -> None:
    found = []
    for path in FILES:
        found += [f"{path}: imports {name}" for name in imported_roots(nodes(path)) & UNSAFE_MODULES]
        for node in nodes(path):
            if isinstance(node, ast.Call) and dotted(node.func) in {"eval", "exec", "torch.load", "compile"}:
                found.append(f"{path}:{node.lineno}: calls {dotted(node.func)}")
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                    found.append(f"{path}:{node.value.lineno}: trust_remote_code")
            if isinstance(node, ast.keyword) and node.arg == "shell":
                found.append(f"{path}:{node.value.lineno}: shell=")
    assert not found, found


def test_no_global_statement_and_no_swallowed_exception() -> None:
    found = []
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.Global):
                found.append(f"{path}:{node.lineno}: global {', '.join(node.names)}")
            if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
                found.append(
                    f"{path}:{node.lineno}: except ...: pass (say it with contextlib.suppress, and why)"
                )
    assert not found, found


def test_no_module_level_mutable_state() -> None:
    """A module-level list, dict or set is a constant: its name is upper case, and nothing ever changes it."""
    found = []
    mutable = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    for path in FILES:
        for node in parse(path).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if not isinstance(value, mutable):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[union-attr]
            names = [dotted(target) for target in targets]
            found += [
                f"{path}:{node.lineno}: {name}" for name in names if name != "__all__" and not name.isupper()
            ]
    assert not found, found


def test_no_function_reads_its_local_variables_for_its_options() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Call) and dotted(node.func) in {"locals", "vars"} and not node.args
    ]
    assert not found, found


def test_no_wait_loses_a_cancellation() -> None:
    """`asyncio.wait_for` of Python 3.11 returns the result and drops a cancellation beside it."""
    found = [
        f"{path}:{node.lineno}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Call) and dotted(node.func) == "asyncio.wait_for"
    ]
    assert not found, f"use asyncio.timeout: {found}"


def test_there_is_no_drawer() -> None:
    names = {"utils", "util", "helpers", "misc", "common"}
    found = [
        str(path)
        for path in (ROOT / "src").rglob("*")
        if path.stem in names and "art-stubs" not in path.parts
    ]
    assert not found, found


@pytest.mark.slow
def test_the_project_speaks_of_itself_alone() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile(r"\.\./shared|/work/|shared/reference|DESIGN\.md")
    found = []
    for name in listed:
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ""}
            and path.is_file()
            and path != Path(__file__)
        ):
            found += [f"{name}: {match}" for match in set(pattern.findall(path.read_text(errors="replace")))]
    assert not found, found


@pytest.mark.slow
def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their names alone."""
    listed = subprocess.run(
        ["git", "ls-files", "tests"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    names = [Path(path).name for path in listed if path.endswith(".py") and (ROOT / path).exists()]
    twice = {name for name in names if names.count(name) > 1 and name not in {"conftest.py", "__init__.py"}}
    assert not twice, twice


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(body: Iterable[ast.stmt]) -> Iterable[Definition]:
    """Classes and functions of a module, and those in its classes."""
    for node in body:
        if isinstance(node, Definition):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body)


def test_a_docstring_begins_with_a_subject_or_a_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {node.name}: {line}"
        for path in FILES
        for node in definitions(parse(path).body)
        if RIDDLES.match(line := (ast.get_docstring(node) or "").partition("\n")[0])
    ]
    assert not found, "write 'Returns ...', 'Sets ...' or 'The ...':\n" + "\n".join(found)


def test_a_docstring_without_a_subject_is_seen() -> None:
    assert RIDDLES.match("What is kept of a key.") and RIDDLES.match("Of one token.")
    assert not RIDDLES.match("Returns what is kept of a key.") and not RIDDLES.match("Items of a list.")
