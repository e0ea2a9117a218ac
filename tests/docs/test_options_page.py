"""docs/options.md has a row for every keyword and every key, as the code has them, and no others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from art.remote.backend import RemoteBackend
from art.remote.config.engine import ENGINE_ARGS, SERVER_ARGS
from art.remote.config.keys import Key, Keys
from art.remote.config.model import INIT_ARGS, PEFT_ARGS, SECTIONS, TINKER_ARGS
from art.remote.config.trainer import TRAINER_ARGS
from art.remote.keywords import KEYWORDS, REFUSED

PAGE = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
TABLES: dict[str, Keys] = {
    "Sections": SECTIONS,
    "`init_args`": INIT_ARGS,
    "`peft_args`": PEFT_ARGS,
    "`trainer_args`": TRAINER_ARGS,
    "`tinker_args`": TINKER_ARGS,
    "`engine_args`": ENGINE_ARGS,
    "`server_args`": SERVER_ARGS,
}


def rows_of(title: str) -> list[str]:
    """The rows of the table below a heading."""
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]  # its head


def keyword_rows() -> Iterator[str]:
    defaults = inspect.signature(RemoteBackend.train).parameters
    for name, keyword in KEYWORDS.items():
        yield f"| `{name}` | `{defaults[name].default!r}` | {keyword.does} |"
    for name, refused in REFUSED.items():
        yield f"| `{name}` | refused | {refused.instead[0].upper()}{refused.instead[1:]} |"


def key_rows(keys: Keys) -> Iterator[str]:
    """Keys with one reason share a row."""
    shared: dict[tuple[object, ...], list[str]] = {}
    for name, key in keys.items():
        shared.setdefault((key.effect, key.text, repr(key.neutral)), []).append(name)
    for names in shared.values():
        key = keys[names[0]]
        yield f"| {', '.join(f'`{name}`' for name in names)} | {key.effect} | {told(key)} |"


def told(key: Key) -> str:
    text = key.text[0].upper() + key.text[1:] + ("" if key.text.endswith(".") else ".")
    if key.effect == "refused" and key.neutral:
        text += f" Accepted: {', '.join(f'`{value!r}`' for value in key.neutral)}."
    return text.replace("|", "\\|")


def test_every_keyword_has_its_row() -> None:
    assert rows_of("Keywords of `train`") == list(keyword_rows())


@pytest.mark.parametrize("title", TABLES)
def test_every_key_has_its_row(title: str) -> None:
    assert rows_of(title) == list(key_rows(TABLES[title]))
