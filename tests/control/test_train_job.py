"""Which samples may train a model: its own, of its recent steps."""

from __future__ import annotations

from array import array

import pytest

from art.errors import RequestError
from art.server.ledger_schema import SampleRecord
from art.server.train_job import check_origin


def record(adapter: str | None, step: int | None) -> SampleRecord:
    return SampleRecord(
        sample_id="s1",
        rollout_id=None,
        project="games",
        model="player",
        base_model="org/base",
        step=step,
        adapter=adapter,
        parent_id=None,
        fork_reason=None,
        prompt_ids=array("i", [1]),
        completion_ids=array("i", [2]),
        completion_logprobs=array("f", [-0.5]),
        sampling={},
        finish_reason="stop",
        turn_key=b"",
        tools_key=b"",
        created_at=0.0,
    )


@pytest.mark.parametrize("adapter", ["games/player@7", "games/player@7#1"])
def test_its_own_recent_samples_train_a_model(adapter: str) -> None:
    check_origin(record(adapter, 7), "r1", "games/player", oldest=7)


@pytest.mark.parametrize(
    ("adapter", "step", "problem", "code"),
    [
        (None, None, "base model 'org/base'", "sample_of_other_model"),
        ("games/other@7", 7, "'games/other@7'", "sample_of_other_model"),
        ("home/player@7", 7, "'home/player@7'", "sample_of_other_model"),
        ("games/player@6", 6, "step 6, older than the oldest allowed, 7", "sample_too_old"),
    ],
)
def test_any_other_sample_is_refused_by_name(
    adapter: str | None, step: int | None, problem: str, code: str
) -> None:
    with pytest.raises(RequestError, match=f"sample 's1' of rollout 'r1'.*{problem}") as refused:
        check_origin(record(adapter, step), "r1", "games/player", oldest=7)
    assert refused.value.code == code
