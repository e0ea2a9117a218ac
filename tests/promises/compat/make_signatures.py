"""Makes signatures.json of published_api.txt: python tests/promises/compat/make_signatures.py

The text is what a person checks against the documentation; the table is what the tests read.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "published_api.txt"
TABLE = Path(__file__).parent / "signatures.json"
Function = ast.FunctionDef | ast.AsyncFunctionDef
KINDS = ("functions", "typed_dicts", "constants", "attributes", "different", "absent")


def table(text: str) -> dict[str, Any]:
    """The surface as data. Raises ValueError for a line that means nothing."""
    found: dict[str, Any] = {"modules": [], "names": [], "unbuilt": [], **{kind: {} for kind in KINDS}}
    for section in re.split(r"^#: ", text, flags=re.MULTILINE)[1:]:
        module, _, body = section.partition("\n")
        if module != "absent":
            found["modules"].append(module)
        prefix = "" if module == "absent" else f"{module}."
        for statement in ast.parse(body).body:
            _add(found, prefix, statement)
    return found


def _add(found: dict[str, Any], prefix: str, statement: ast.stmt) -> None:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            _function(found, prefix + statement.name, statement)
        case ast.ClassDef():
            _class(found, prefix + statement.name, statement)
        case ast.Assign(targets=[target], value=value):
            found["constants"][prefix + ast.unparse(target)] = ast.literal_eval(value)
        case ast.AnnAssign(target=target, annotation=ast.Name(id="Any")):
            found["names"].append(prefix + ast.unparse(target))
        case ast.AnnAssign(target=target, annotation=ast.Name(id="Unbuilt")):
            found["unbuilt"].append(prefix + ast.unparse(target))
        case ast.AnnAssign(target=target, annotation=ast.Subscript(value=ast.Name(id="Absent"), slice=why)):
            found["absent"][prefix + ast.unparse(target)] = ast.literal_eval(why)
        case _:
            raise ValueError(f"{prefix}: {ast.unparse(statement)!r} says nothing of a surface")


def _function(found: dict[str, Any], path: str, function: Function, *, drop_first: bool = False) -> None:
    marks = _marks(found, path, function)
    if drop_first or "classmethod" in marks:  # what a caller does not give
        _ = function.args.posonlyargs.pop(0) if function.args.posonlyargs else function.args.args.pop(0)
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    awaited = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    found["functions"][path] = f"{awaited}({ast.unparse(function.args)}){result}"


def _class(found: dict[str, Any], path: str, kind: ast.ClassDef) -> None:
    _marks(found, path, kind)
    if any(ast.unparse(base) == "TypedDict" for base in kind.bases):
        [keys] = kind.body
        assert isinstance(keys, ast.Assign)
        found["typed_dicts"][path] = " ".join(ast.literal_eval(keys.value).split())
        return
    members = []
    for statement in kind.body:
        if isinstance(statement, Function):
            made = statement.name == "__init__"
            _function(found, path if made else f"{path}.{statement.name}", statement, drop_first=made)
        else:
            assert isinstance(statement, ast.AnnAssign), ast.unparse(statement)
            members.append(ast.unparse(statement.target))
    if members:
        found["attributes"][path] = " ".join(members)


def _marks(found: dict[str, Any], path: str, marked: Function | ast.ClassDef) -> set[str]:
    names = set()
    for mark in marked.decorator_list:
        if isinstance(mark, ast.Call):
            reasons = {str(given.arg): ast.literal_eval(given.value) for given in mark.keywords}
            found["different"].setdefault(path, {}).update(reasons)
        else:
            names.add(ast.unparse(mark))
    if "unbuilt" in names:
        found["unbuilt"].append(path)
    return names


def as_json(surface: dict[str, Any]) -> str:
    """The table's file: one line for each entry, so that a change can be read."""
    return json.dumps(surface, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TABLE.write_text(as_json(table(SOURCE.read_text(encoding="utf-8"))), encoding="utf-8")
