"""How a step is computed can be told: the rows of logits at once, the tokens at once, the rate's factor."""

from __future__ import annotations

import pytest
import torch
from tiny_policies import games, request, trainer

from art.training.logprobs import LogitHead
from art.wire.training import ComputeSpec


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of logits of every call of the head, in order."""
    seen: list[int] = []
    whole = LogitHead.__call__

    def counted(self: LogitHead, hidden_PD: torch.Tensor) -> torch.Tensor:
        seen.append(len(hidden_PD))
        return whole(self, hidden_PD)

    monkeypatch.setattr(LogitHead, "__call__", counted)
    return seen


@pytest.mark.slow
def test_logit_rows_bound_the_rows_of_logits_and_change_no_number(chunks: list[int]) -> None:
    batch, found = games(), []
    for rows in (None, 3):
        made = trainer()
        chunks.clear()
        asked = request(batch).model_copy(update={"compute": ComputeSpec(logit_rows=rows)})
        metrics = made.train(batch.tree, batch.entries, asked)
        found.append((max(chunks), metrics["loss/train"], metrics["loss/grad_norm"]))
    assert found[0][0] > 3 == found[1][0]
    assert found[1][1:] == pytest.approx(found[0][1:], rel=1e-5)
    made.train(batch.tree, batch.entries, request(batch, 1))
    assert chunks[-1] > 3  # of one step only


@pytest.mark.slow
def test_max_length_bounds_the_tokens_forwarded_at_once() -> None:
    batch = games()
    counts = []
    for most in (None, 24):
        made = trainer(token_budget=9999)
        asked = request(batch).model_copy(update={"compute": ComputeSpec(max_length=most)})
        counts.append(made.train(batch.tree, batch.entries, asked)["data/micro_batches"])
    assert counts[0] < counts[1]


def test_the_rate_is_multiplied_by_the_factor() -> None:
    batch, made = games(), trainer()
    asked = request(batch, learning_rate=1e-3).model_copy(update={"rate_factor": 2.5})
    assert made.train(batch.tree, batch.entries, asked)["loss/learning_rate"] == pytest.approx(2.5e-3)
