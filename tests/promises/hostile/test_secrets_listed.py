"""Nothing in `src` holds a secret of a kind that no scan plants: the list is secrets.toml."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_inputs import find_object
from parser_uses import SRC, tree_of
from pydantic import BaseModel

from art.wire.nested import SECRETS
from secret_scan import OF_A_RUN, secrets_in, the_list, variables

pytestmark = [pytest.mark.slow, pytest.mark.extension]

ROOT = Path(__file__).parents[3]
WORD = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b")
VARIABLE = re.compile(
    r"(KEY|KEY_ID|TOKENS?|PASSWORD|PASSWD|SECRETS?|HEADERS|CREDENTIALS?|PASSPHRASE|DATABASE_URL|DSN)$"
)
FIELD = re.compile(
    r"(^|_)(keys?|tokens?|passwords?|secrets?|headers|env|authorization|cookie|proof|credentials?|dsn)$"
)
TEXT = re.compile(r"\b(str|bytes|Mapping|dict|list)\b")
COUNTS = re.compile(r"\b(int|float|bool)\b")
VALUE = "a-planted-secret-of-the-list"


def is_unshown(value: ast.expr | None) -> bool:
    """Returns whether a field is left out of the repr of its class: its author took it for a secret."""
    return isinstance(value, ast.Call) and any(
        one.arg == "repr" and isinstance(one.value, ast.Constant) and one.value.value is False
        for one in value.keywords
    )


def fields_in(module: str, tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yields fields of classes that may hold secrets, and whether their class is a dict or a protocol."""
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        shape = any(ast.unparse(base).split("[")[0] in ("TypedDict", "Protocol") for base in owner.bases)
        for one in owner.body:
            if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                continue
            kind = ast.unparse(one.annotation)
            is_text = TEXT.search(kind) and not COUNTS.search(kind)
            if is_text and (FIELD.search(one.target.id) or is_unshown(one.value)):
                yield f"{module}:{owner.name}.{one.target.id}", shape


def variables_in(tree: ast.AST) -> set[str]:
    """Returns the words of texts that may be environment variables with secrets."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    words = {word for text in texts if isinstance(text, str) for word in WORD.findall(text)}
    return {word for word in words if ("_" in word and VARIABLE.search(word)) or word == "PGPASSWORD"}


def modules() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SRC.rglob("*.py")):
        yield ".".join(path.relative_to(SRC).with_suffix("").parts), tree_of(path)


def listed(kind: str) -> list[str]:
    return [name for row in the_list()["secret"] for name in row.get(kind, ())]


def others() -> list[str]:
    assert all(row["reason"] for row in the_list()["other"])
    return [name for row in the_list()["other"] for name in row["names"]]


def test_every_variable_with_a_secret_is_planted() -> None:
    """A new one needs a line in the list."""
    known = [*variables(), *others()]
    assert len(known) == len(set(known))
    found = set().union(*(variables_in(tree) for _, tree in modules()))
    assert not found - set(known), "add them to tests/promises/hostile/secrets.toml"
    assert not set(variables()) - set(listed("of_libraries")) - found, "they are listed, and not in src"


def test_every_field_with_a_secret_is_in_the_list() -> None:
    found = {name: shape for module, tree in modules() for name, shape in fields_in(module, tree)}
    known = {*listed("fields"), *others()}
    missing = {
        name
        for name, shape in found.items()
        if name not in known and not (shape and name.rpartition(".")[2] in {*SECRETS, "key"})
    }
    assert not missing, "add them to tests/promises/hostile/secrets.toml"


@pytest.mark.parametrize("name", listed("fields"))
def test_what_holds_a_secret_does_not_show_it(name: str) -> None:
    path, _, field = name.rpartition(".")
    holder: Any = find_object(path)
    if isinstance(holder, type) and issubclass(holder, BaseModel):
        assert field in holder.model_fields
        made: Any = holder.model_construct(**{field: VALUE})
    else:
        names = [one.name for one in dataclasses.fields(holder)]
        assert field in names
        made = object.__new__(holder)
        for one in names:
            object.__setattr__(made, one, VALUE if one == field else None)
    for text in (repr(made), str(made), repr([made])):
        assert VALUE not in text


def test_every_kind_has_its_scan() -> None:
    for row in the_list()["secret"]:
        assert row["scans"], row["what"]
        for scan in row["scans"]:
            if scan == OF_A_RUN:
                continue
            file, _, test = scan.partition("::")
            names = {n.name for n in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(n, "name")}
            assert test in names, scan


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('NAME = "ART_NEW_KEY"', "variable"),
        ("def read(): return environ['NEW_SERVICE_TOKEN']", "variable"),
        ("class A:\n    webhook_secret: str", "field"),
        ("class A:\n    address: str = field(repr=False)", "field"),
        ("class A:\n    headers: dict[str, str] | None = None", "field"),
    ],
)
def test_a_new_kind_of_secret_is_seen(text: str, kind: str) -> None:
    tree = ast.parse(text)
    found = variables_in(tree) if kind == "variable" else dict(fields_in("m", tree))
    assert len(found) == 1


@pytest.mark.parametrize("prefix", ["", "u", "us", "user:"])
def test_a_secret_is_seen_in_any_form(prefix: str) -> None:
    import base64

    for content in (f"x{VALUE}y".encode(), base64.b64encode(f"{prefix}{VALUE}".encode())):
        assert list(secrets_in(content, {"it": VALUE})) == ["it"]
    assert not list(secrets_in(VALUE[1:].encode(), {"it": VALUE}))
