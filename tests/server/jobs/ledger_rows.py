"""Ledger records for the tests of this room."""

from __future__ import annotations

import dataclasses
from array import array
from functools import lru_cache

from art.engine.nano_models import resolve
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.server.ledger.schema import SampleRecord


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


def drawn(**sampling: object) -> SampleRecord:
    """A sample of the model with these sampling parameters."""
    return dataclasses.replace(record("games/player@7", 7), sampling=sampling)


@lru_cache(maxsize=1)
def nano() -> LibraryRenderer:
    return create_chat_renderer(resolve("art/nano-tools"), name="art/nano-tools")
