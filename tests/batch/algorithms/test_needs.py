"""What a step must know, row by row and part by part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from art.batch.algorithms import TABLE, resolve
from art.batch.algorithms.facts import needs_first_pass, needs_proximal, needs_reference, needs_sequences
from art.wire.algorithm import Algorithm

BASE = {"kind": "base"}
SERVER = {"kind": "server", "url": "http://x", "model": "m"}


def rows(needs: Callable[[Algorithm], bool]) -> set[str]:
    return {name for name, row in TABLE.items() if needs(row.algorithm)}


def test_of_the_rows() -> None:
    assert rows(needs_sequences) == {"gspo", "gmpo", "vespo"}
    assert rows(needs_proximal) == {"gspo", "ppo_critic", "ppo_value", "turn_gae"}
    assert rows(needs_first_pass) == {"gspo", "ppo_critic", "ppo_value", "turn_gae"}
    assert rows(needs_reference) == set()


@pytest.mark.parametrize(
    ("name", "parts", "needed"),
    [
        ("grpo", {"mismatch": [{"kind": "geometric_mask", "high": 2}]}, {"sequences"}),
        ("grpo", {"mismatch": [{"kind": "token_mask", "high": 2}]}, set()),
        ("grpo", {"kl": {"coefficient": 1}}, {"reference"}),
        ("grpo", {"kl": {"coefficient": 1, "place": "reward"}}, {"reference", "first"}),
        (
            "grpo",
            {"kl": {"coefficient": 1, "place": "shaped_advantage", "reference": "sampler"}},
            {"first"},
        ),
        ("grpo", {"kl": {"coefficient": 1, "reference": "sampler"}}, set()),
        ("grpo", {"ratio_to": "trainer", "updates": {"epochs": 2}}, {"proximal", "first"}),
        (
            "grpo",
            {"ratio_to": "trainer", "mismatch": [{"kind": "token_truncate", "high": 2}]},
            set(),  # with one update, the pass that trains knows the trainer's logprobs
        ),
        ("distillation", {"teacher": BASE}, {"reference", "first"}),
        ("distillation", {"teacher": SERVER}, {"first"}),
        ("grpo", {"advantage": "gae", "critic": {}}, {"first"}),
        ("grpo", {"mismatch": [{"kind": "token_mask", "high": 2}], "masked": "drop"}, {"first"}),
        ("grpo", {"entropy": {"coefficient": 0.1}}, set()),
        ("grpo", {"top_entropy": 0.2}, {"first"}),
        ("grpo", {"kl": {"coefficient": 1, "reference": "average", "mixup": 0.5}}, {"reference"}),
    ],
)
def test_of_the_parts(name: str, parts: dict[str, Any], needed: set[str]) -> None:
    algorithm = resolve(name, **parts)
    found = {
        "sequences": needs_sequences(algorithm),
        "proximal": needs_proximal(algorithm),
        "first": needs_first_pass(algorithm),
        "reference": needs_reference(algorithm),
    }
    assert {need for need, yes in found.items() if yes} == needed
