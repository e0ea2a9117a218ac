"""The house in figures: how many lines, pass-throughs, circles and knots `src` has.

    python tests/promises/house/figures.py          a table, and what each figure counts

`test_figures.py` holds the figures below; CONTRIBUTING.md says the same ones.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src"
TREES = ("art", "art_extensions")
MOST_PASS_THROUGHS = 7
"""The agreed figures; circles and knots: none. CONTRIBUTING.md says the same."""

Graph = dict[str, set[str]]
"""Module -> the modules that it imports."""


@dataclass(frozen=True)
class Figures:
    """What is counted in both trees."""

    lines: int
    pass_throughs: tuple[str, ...]  # methods that call one other object with the same arguments
    circles: tuple[tuple[str, ...], ...]  # files that import each other
    knots: tuple[tuple[str, ...], ...]  # rooms of one floor that import each other


@cache
def parse(path: Path) -> ast.Module:
    """Returns the syntax tree of a file, parsed once for all who ask."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Returns all nodes of a file's syntax tree."""
    return tuple(ast.walk(parse(path)))


def measure(source: Path = SOURCE) -> Figures:
    """Count everything anew from the files."""
    paths = modules(source)
    graph = imports(paths)
    return Figures(
        lines=sum(path.read_text().count("\n") for path in paths.values()),
        pass_throughs=tuple(sorted(_pass_throughs(paths))),
        circles=tuple(strong_components(graph)),
        knots=tuple(
            knot for package in _packages(paths) for knot in strong_components(rooms_of(package, graph))
        ),
    )


def modules(source: Path) -> dict[str, Path]:
    """Dotted name -> file, of all modules of the package; a folder without `__init__.py` holds data."""
    found = {}
    for path in sorted(path for tree in TREES for path in (source / tree).rglob("*.py")):
        if (path.parent / "__init__.py").exists():
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(paths: dict[str, Path]) -> Graph:
    """Who imports whom: at the top, in functions, and for type checkers only."""
    graph: Graph = {name: set() for name in paths}
    for name, path in paths.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in nodes(path):
            for imported in _imported(node, package):
                if imported in paths and imported != name:
                    graph[name].add(imported)
                elif (owner := imported.rpartition(".")[0]) in paths and owner != name:
                    graph[name].add(owner)
    return graph


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        yield from (f"{base}.{alias.name}" for alias in node.names)


def rooms_of(package: str, graph: Graph) -> Graph:
    """The children of a package, and which imports which; all that lies below a child counts as the child."""
    depth = package.count(".") + 1

    def child(name: str) -> str | None:
        if not name.startswith(package + "."):
            return None
        return ".".join(name.split(".")[: depth + 1])

    floor: Graph = {}
    for name, targets in graph.items():
        if (room := child(name)) is not None:
            others = {other for target in targets if (other := child(target)) is not None and other != room}
            floor.setdefault(room, set()).update(others)
    return floor


def strong_components(graph: Graph) -> list[tuple[str, ...]]:
    """Groups of more than one node that all reach each other (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            group = tuple(sorted(stack[cut:]))
            del stack[cut:]
            if len(group) > 1:
                found.append(group)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def _packages(paths: dict[str, Path]) -> Iterable[str]:
    return [name for name, path in paths.items() if path.name == "__init__.py"]


def _pass_throughs(paths: dict[str, Path]) -> Iterator[str]:
    for name, path in paths.items():
        for owner in nodes(path):
            if isinstance(owner, ast.ClassDef):
                for method in owner.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _passes_through(method):
                        yield f"{name}.{owner.name}.{method.name}"


def _passes_through(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether all that a method does is to call another object's method with its own arguments, in order."""
    body = [node for node in method.body if not _is_docstring(node)]
    if len(body) != 1 or method.decorator_list or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    call = call.value if isinstance(call, ast.Await) else call
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    if not (isinstance(call.func.value, ast.Attribute) and _root(call.func.value) == "self"):
        return False
    positional = [a.arg for a in method.args.args[1:]]
    keyword = [a.arg for a in method.args.kwonlyargs]
    given = [a.id if isinstance(a, ast.Name) else None for a in call.args]
    named = {k.arg: k.value.id if isinstance(k.value, ast.Name) else None for k in call.keywords}
    if not positional and not keyword:
        return False  # a question with another name for its answer is no passing on of arguments
    said = [*given, *[named.get(a) for a in positional[len(given) :]]]
    return (
        said == positional
        and all(named.get(a) == a for a in keyword)
        and len(named) + len(given) == len(positional) + len(keyword)
    )


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def main() -> None:
    figures = measure()
    for text, value in (
        ("lines", figures.lines),
        ("pass-through methods", len(figures.pass_throughs)),
        ("circles of files", len(figures.circles)),
        ("knots of rooms", len(figures.knots)),
    ):
        print(f"{value:>8,}  {text}")
    for title, rows in (
        ("pass-through", figures.pass_throughs),
        ("circle", figures.circles),
        ("knot", figures.knots),
    ):
        for row in rows:
            print(f"{title}: {row if isinstance(row, str) else ' '.join(row)}")


if __name__ == "__main__":
    main()
