"""The places in `src` where a parser reads, and where a server connects, found in the syntax of its files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[3] / "src"
PARSERS = {
    "json": {"loads", "load", "JSONDecoder"},
    "orjson": {"loads"},
    "tomllib": {"loads", "load"},
    "yaml": {"load", "safe_load", "compose", "parse", "scan"},
    "ast": {"literal_eval"},
    "gzip": {"open", "decompress", "GzipFile"},
    "zlib": {"decompress", "decompressobj"},
    "zstandard": {"ZstdDecompressor"},
    "tarfile": {"open", "TarFile"},
    "zipfile": {"ZipFile"},
    "Image": {"open"},
    "polars": {"read_parquet", "scan_parquet", "read_parquet_schema", "read_json", "read_ndjson", "read_csv"},
    "torch": {"load"},
    "np": {"load"},
    "csv": {"reader", "DictReader"},
}
"""Module -> functions that read a text or bytes of a format."""
ALONE = {
    *("model_validate_json", "validate_json", "raw_decode", "safe_open", "load_file", "ParseFromString"),
    *("FromString", "ParquetFile", "GGUFReader", "iter_batches", "fromstring", "unpackb"),
    *("parse_json", "open_foreign", "read_foreign", "decode_json", "read_body", "b64decode"),
}
"""Functions that read, whatever they are attributes of; the bounded readers of `art.process` among them."""


SERVING = (
    *(f"art/{name}" for name in ("server", "engine", "training", "rendering", "process", "batch")),
    *(f"art_extensions/{name}" for name in ("agent_apis", "cluster", "experts", "gguf", "optimizers")),
    *(f"art_extensions/{name}" for name in ("postgres", "preferences", "tinker", "ui", "vllm")),
)
"""The rooms that run in a server or beside it, and not in a user's own program."""
CONNECTORS = {
    *("AsyncClient", "ClientSession", "open_connection", "create_connection", "urlopen", "sock_connect"),
    *("hf_hub_download", "snapshot_download", "model_info", "AsyncOpenAI"),
}
BY_NAME = {("httpx", "get"), ("httpx", "post"), ("httpx", "request"), ("httpx", "Client")}
BY_NAME |= {("asyncpg", "connect"), ("websockets", "connect")}


def parser_uses() -> dict[str, set[str]]:
    """Returns `module:function` -> the parsers that are used there."""
    return _found(sorted(SRC.rglob("*.py")), _parser)


def connections() -> dict[str, set[str]]:
    """Returns `module:function` of a server's rooms -> what opens connections there."""
    return _found([path for room in SERVING for path in sorted((SRC / room).rglob("*.py"))], _connector)


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


Find = Callable[[ast.AST], str | None]


def _found(paths: list[Path], find: Find) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in paths:
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for function, name in uses_in(tree_of(path), find=find):
            found.setdefault(f"{module}:{function}", set()).add(name)
    return found


def _connector(node: ast.AST) -> str | None:
    """Returns what opens a connection, where it is called; None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    name = node.func
    if isinstance(name, ast.Attribute):
        of = name.value.id if isinstance(name.value, ast.Name) else ""
        return name.attr if name.attr in CONNECTORS or (of, name.attr) in BY_NAME else None
    if isinstance(name, ast.Name) and (name.id in CONNECTORS or name.id == "connect"):
        return name.id
    return None


def _parser(node: ast.AST) -> str | None:
    """Returns the parser that a name or an attribute is, called or handed on; None where it is none."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not (node.args or node.keywords)
    ):
        return "json()" if node.func.attr == "json" else None  # a reply's
    if isinstance(node, ast.Attribute):
        if node.attr in ALONE:
            return node.attr
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        return f"{of}.{node.attr}" if node.attr in PARSERS.get(of, ()) else None
    return node.id if isinstance(node, ast.Name) and node.id in ALONE else None


def uses_in(
    node: ast.AST, inside: tuple[str, ...] = (), *, find: Find = _parser
) -> Iterator[tuple[str, str]]:
    """Yields the function and the name of each use in a piece of a program."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from uses_in(inner, (*inside, inner.name), find=find)
            continue
        name = find(inner)
        if name is not None:
            yield ".".join(inside) or "-", name
        yield from uses_in(inner, inside, find=find)
