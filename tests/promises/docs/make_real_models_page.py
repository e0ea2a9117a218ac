"""Prints the tables of docs/guides/real-models.md from the memory plan.

Run it with: python tests/promises/docs/make_real_models_page.py

The text between the tables is written by hand, in the page. `STEPS` is the advice; the rest is computed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from make_hardware_page import gib, planned, table_head, table_row

from art.wire.training import LoraSpec
from art_extensions.doctor.hardware import GIB, HardwarePlan

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "real-models.md"
CHOICES = {
    24: (("Qwen3-1.7B", 16, "vllm"), ("Qwen3-4B", 4, "builtin")),
    80: (("Qwen3-8B", 16, "vllm"), ("Qwen3-14B", 16, "vllm")),
}
"""Models of a card: name, bits of a weight, engine."""
RANK = LoraSpec().r


@dataclass(frozen=True, kw_only=True)
class StepAdvice:
    """What a step of a kind of task has. Lengths are tokens, and the most that a reply or a turn may have."""

    task: str
    prompt: int
    turns: int
    reply: int
    observed: int
    """What a turn after the first adds to the conversation: a tool's result, another player's move."""
    scenarios: int
    rollouts: int

    @property
    def sampled(self) -> int:
        """Of one rollout, behind its prompt."""
        return self.turns * self.reply + (self.turns - 1) * self.observed

    @property
    def context(self) -> int:
        """The longest rollout, rounded up to a power of two."""
        return int(2 ** math.ceil(math.log2(self.prompt + self.sampled)))

    @property
    def tree(self) -> int:
        """Tokens of a step: the rollouts of a scenario share its prompt."""
        return self.scenarios * (self.prompt + self.rollouts * self.sampled)


STEPS = (
    StepAdvice(task="one answer", prompt=256, turns=1, reply=256, observed=0, scenarios=16, rollouts=8),
    StepAdvice(
        task="a game of turns", prompt=512, turns=10, reply=128, observed=128, scenarios=8, rollouts=8
    ),
    StepAdvice(
        task="an agent with tools", prompt=1024, turns=8, reply=256, observed=512, scenarios=8, rollouts=8
    ),
)


def printed(page: str) -> str:
    """The page with its tables as the memory plan has them."""
    tables = {"A step": step_rows(), **{f"A GPU of {size} GB": card_rows(size) for size in CHOICES}}
    for title, rows in tables.items():
        found = re.search(rf"^## {re.escape(title)}\n.*?(^\|.*?\n)(?!\|)", page, re.M | re.S)
        assert found is not None, f"the page has no table under {title!r}"
        page = page[: found.start(1)] + "\n".join(rows) + "\n" + page[found.end(1) :]
    return page


def step_rows() -> Iterator[str]:
    yield from table_head(
        "task",
        "scenarios",
        "rollouts of each",
        "turns",
        "`max_tokens`",
        "longest rollout",
        "tokens of a step",
    )
    for one in STEPS:
        lengths = f"{one.context:,}", f"{one.tree:,}"
        yield table_row(one.task, one.scenarios, one.rollouts, one.turns, one.reply, *lengths)


def card_rows(size: int) -> Iterator[str]:
    yield from table_head(
        "model",
        "engine",
        "task",
        "rank",
        "needs",
        "micro-batch",
        "passes",
        "conversations",
    )
    for model, bits, engine in CHOICES[size]:
        for one in STEPS:
            plan = planned(model, rank=RANK, context=one.context, engine=engine, bits=bits)
            yield table_row(
                f"{model}#{bits}bit" if bits < 16 else model,
                engine,
                one.task,
                RANK,
                gib(plan.needed),
                *of_card(plan, size, one),
            )


def of_card(plan: HardwarePlan, size: int, one: StepAdvice) -> Iterator[str]:
    """Yields what the card does: tokens of a pass, passes of a step, whole rollouts in the engine's cache."""
    card = plan.card(size)
    assert card.fits, f"{plan.model} with {one.task} does not fit {size} GB: choose another"
    budget = card.step.token_budget
    yield f"{budget:,}" + (", twice" if card.step.way.checkpointing else "")
    yield f"{math.ceil(one.tree / budget)}"
    free = size * GIB - plan.trainer_at_rest - plan.engine_weights
    yield f"{int(free // (one.context * plan.shape.cached)):,}"


if __name__ == "__main__":
    PAGE.write_text(printed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
