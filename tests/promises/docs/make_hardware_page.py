"""Prints the tables of docs/guides/hardware.md from the memory plan.

Run it with: python tests/promises/docs/make_hardware_page.py

The text between the tables is written by hand, in the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from art_extensions.doctor.hardware import CARDS, GIB, CardPlan, HardwarePlan, cards, plan_hardware

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "hardware.md"
MODELS = ("Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B", "Llama-3.1-8B")
ONE = "Qwen3-8B"
HEAD = ("trainer", "engine", "one GPU", *(f"{size} GB" for size in CARDS))


def printed(page: str) -> str:
    """The page with its tables as the memory plan has them."""
    for title, rows in (
        ("Model size", model_rows()),
        ("Rank and context", rank_rows()),
        ("Engine", engine_rows()),
    ):
        found = re.search(rf"^## {re.escape(title)}\n.*?(^\|.*?\n)(?!\|)", page, re.M | re.S)
        assert found is not None, f"the page has no table under {title!r}"
        page = page[: found.start(1)] + "\n".join(rows) + "\n" + page[found.end(1) :]
    return page


def model_rows() -> Iterator[str]:
    yield from table_head("model", "bits", *HEAD, "CPU")
    for model in MODELS:
        for bits in (16, 4):
            on_cpu = planned(model, bits=bits, cuda=False)
            yield table_row(model, bits, *cells(planned(model, bits=bits)), gib(on_cpu.needed))


def rank_rows() -> Iterator[str]:
    yield from table_head("rank", "context", *HEAD)
    for rank, context in ((8, 8192), (16, 2048), (16, 8192), (16, 32768), (64, 8192)):
        yield table_row(rank, f"{context:,}", *cells(planned(ONE, rank=rank, context=context, bits=4)))


def engine_rows() -> Iterator[str]:
    yield from table_head("engine", "bits", *HEAD)
    for engine, bits in (("builtin", 16), ("builtin", 8), ("builtin", 4), ("vllm", 16)):
        yield table_row(engine, bits, *cells(planned(ONE, engine=engine, bits=bits)))


def table_head(*columns: str) -> Iterator[str]:
    yield table_row(*columns)
    yield f"|{'---|' * len(columns)}"


def table_row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def cells(plan: HardwarePlan) -> Iterator[str]:
    yield from map(gib, (plan.trainer, plan.engine_weights + plan.cache, plan.needed))
    yield from map(fit, cards(plan))


def gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def fit(card: CardPlan) -> str:
    if not card.fits:
        return "no"
    return "yes, twice" if card.step.way.checkpointing else "yes"


def planned(
    model: str,
    *,
    rank: int = 16,
    context: int = 8192,
    engine: str = "builtin",
    bits: int = 16,
    cuda: bool = True,
) -> HardwarePlan:
    return replace(_measured(model, rank, cuda), context=context, engine=engine, bits=bits)


@cache
def _measured(model: str, rank: int, cuda: bool) -> HardwarePlan:
    return plan_hardware(model, rank=rank, cuda=cuda)


if __name__ == "__main__":
    PAGE.write_text(printed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
