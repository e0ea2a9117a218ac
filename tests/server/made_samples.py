"""Records of samples for the tests of ledgers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from art.server.ledger.schema import SampleRecord


def sample(
    name: str, prompt: Sequence[int] = (1, 2), completion: Sequence[int] = (3,), **more: object
) -> SampleRecord:
    logprobs = array("f", np.linspace(-9.1, -1e-7, len(completion), dtype=np.float32))
    record = SampleRecord(
        sample_id=name,
        rollout_id=None,
        project="games",
        model="player",
        base_model="tiny",
        step=3,
        adapter="games/player@3",
        parent_id=None,
        fork_reason=None,
        prompt_ids=array("i", prompt),
        completion_ids=array("i", completion),
        completion_logprobs=logprobs,
        sampling={"temperature": 1.0},
        finish_reason="stop",
        turn_key=name.encode(),
        tools_key=b"",
        created_at=1.5,
    )
    return replace(record, **more)  # type: ignore[arg-type]
