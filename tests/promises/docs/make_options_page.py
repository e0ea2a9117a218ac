"""Prints the tables of the pages on options and on asynchronous training from the declarations.

Run it with: python tests/promises/docs/make_options_page.py

The text between the tables is written by hand, in the page. A keyword's row is the docstring below its field
in `art.backend` or `art_extensions.pipeline.settings`, a key's is its entry in `foreign_options`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from art.backend import TrainOptions
from art.client.options.declared_options import field_docstrings
from art.client.options.foreign_options import (
    ENGINE_ARGS,
    INIT_ARGS,
    PEFT_ARGS,
    SECTIONS,
    SERVER_ARGS,
    TINKER_ARGS,
    TRAINER_ARGS,
    ForeignOption,
    ForeignSection,
)
from art.client.options.train_options import KEYWORDS, REFUSED
from art_extensions.pipeline import settings as pipeline

DOCS = Path(__file__).parents[3] / "docs"
PAGE, PIPELINE_PAGE = DOCS / "reference" / "options.md", DOCS / "guides" / "asynchronous-training.md"
APPENDIX = "Appendix: options of other libraries that are not supported"
KEYS: Mapping[str, ForeignSection] = {
    "Sections": SECTIONS,
    "`init_args`": INIT_ARGS,
    "`peft_args`": PEFT_ARGS,
    "`trainer_args`": TRAINER_ARGS,
    "`tinker_args`": TINKER_ARGS,
    "`engine_args`": ENGINE_ARGS,
    "`server_args`": SERVER_ARGS,
}


def printed(page: str) -> str:
    """The page with the rows of its tables as the declarations have them."""
    page = _with_rows(page, "Keywords of `train`", keyword_rows())
    for title, keys in KEYS.items():
        if acting := list(key_rows(keys.options, "acts")):
            page = _with_rows(page, title, acting)
    return _with_rows(page, APPENDIX, refused_rows())


def refused_rows() -> Iterator[str]:
    """Keys that raise an error, of all sections."""
    for title, keys in KEYS.items():
        where = "`_internal_config`" if title == "Sections" else title
        yield from (f"| {where} {row}" for row in key_rows(keys.options, "refused"))


def printed_pipeline(page: str) -> str:
    """The pipeline's page with the rows of its table as the declarations have them."""
    return _with_rows(page, "Keywords of `PipelineTrainer`", pipeline_rows())


def pipeline_rows() -> Iterator[str]:
    does = field_docstrings(pipeline.PipelineOptions)
    for name in pipeline.OWN:
        yield f"| `{name}` | `{pipeline.KEYWORDS[name].default!r}` | {does[name]} |"


def _with_rows(page: str, title: str, rows: Iterable[str]) -> str:
    """The page with other rows in the first table below a heading."""
    start = page.index(f"# {title}\n")
    head = re.compile(r"^\|(---\|)+\n", re.MULTILINE).search(page, start)
    assert head, f"there is no table below {title!r}"
    old = re.compile(r"(\|.*\n)*").match(page, head.end())
    assert old
    return page[: head.end()] + "".join(f"{row}\n" for row in rows) + page[old.end() :]


def keyword_rows() -> Iterator[str]:
    does = field_docstrings(TrainOptions)
    for name, keyword in KEYWORDS.items():
        yield f"| `{name}` | `{keyword.default!r}` | {does[name]} |"
    for name, refused in REFUSED.items():
        yield f"| `{name}` | not supported | {_sentence(refused.instead)} |"


def key_rows(keys: Mapping[str, ForeignOption], effect: str) -> Iterator[str]:
    """Keys of this effect; those with one reason share a row."""
    shared: dict[tuple[object, ...], list[str]] = {}
    for name, key in keys.items():
        if key.effect != effect:
            continue
        shared.setdefault((key.effect, key.text, repr(key.neutral)), []).append(name)
    for names in shared.values():
        key = keys[names[0]]
        yield f"| {', '.join(f'`{name}`' for name in names)} | {_reason(key)} |"


def _reason(key: ForeignOption) -> str:
    text = _sentence(key.text)
    if key.effect == "refused" and key.neutral:
        text += f" Accepted: {', '.join(f'`{value!r}`' for value in key.neutral)}."
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


if __name__ == "__main__":
    for path, print_page in {PAGE: printed, PIPELINE_PAGE: printed_pipeline}.items():
        path.write_text(print_page(path.read_text(encoding="utf-8")), encoding="utf-8")
