"""Planted secrets, and the search for them in whatever a program wrote.

Every kind is in promises/hostile/secrets.toml.
"""

from __future__ import annotations

import base64
import gzip
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

THE_LIST = Path(__file__).parent / "promises" / "hostile" / "secrets.toml"
OF_A_RUN = "run"
"""The scan of a whole run, in tests/flow/test_no_key_written.py."""
_LEAST_IN_BASE64 = 12


@cache
def the_list() -> dict[str, list[dict[str, Any]]]:
    """The rows of the list: those of secrets, and what only looks like one."""
    return tomllib.loads(THE_LIST.read_text())


def variables(scan: str | None = None) -> list[str]:
    """Returns the environment variables that hold secrets; scan: those that this one plants."""
    rows = [row for row in the_list()["secret"] if scan is None or scan in row["scans"]]
    return [name for row in rows for name in row.get("variables", ())]


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields a file and what is packed in it, each with its name."""
    content = path.read_bytes()
    yield str(path), content
    if content[:2] == b"\x1f\x8b":
        yield f"{path}, unpacked", gzip.decompress(content)
    if zipfile.is_zipfile(BytesIO(content)):
        with zipfile.ZipFile(BytesIO(content)) as archive:
            yield from ((f"{path}, {name}", archive.read(name)) for name in archive.namelist())


def secrets_in(content: bytes, secrets: Mapping[str, str]) -> Iterator[str]:
    """Yields the names of those in a text, as they are or within a word of base64."""
    for name, secret in secrets.items():
        if any(form in content for form in _forms(secret)):
            yield name


def secrets_in_files(paths: Iterable[Path], secrets: Mapping[str, str]) -> Iterator[tuple[str, Path, str]]:
    """Yields the name of a secret, the file, and the part of it that holds the secret."""
    for path in paths:
        for place, content in contents(path):
            yield from ((name, path, place) for name in secrets_in(content, secrets))


@cache
def _forms(secret: str) -> tuple[bytes, ...]:
    """What is the same in base64 wherever the secret begins: three bytes are four letters."""
    plain = secret.encode()
    if len(plain) < _LEAST_IN_BASE64:
        return (plain,)
    shifted = (plain[start : start + (len(plain) - start) // 3 * 3] for start in range(3))
    return (plain, *(base64.b64encode(one) for one in shifted))
