"""What the ledger tells: one sample, one rollout."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from art.wire.strict import Strict


class SampleInfo(Strict):
    """GET /v1/samples/{sample_id}: one completion as it was sampled."""

    sample_id: str
    rollout_id: str | None
    project: str | None
    model: str
    """The name the request asked for."""
    step: int | None
    """Adapter version that sampled it; None for the base model."""
    parent_id: str | None
    """The sample whose ids this prompt extends, or None."""
    fork_reason: str | None
    """Why the prompt does not extend an earlier sample of the same conversation, or None."""
    prompt_ids: list[int]
    completion_ids: list[int]
    completion_logprobs: list[float]
    sampling: dict[str, Any]
    finish_reason: str
    created_at: float
    """Unix seconds."""


class RolloutInfo(Strict):
    """GET /v1/rollouts/{rollout_id}: its samples in the order of their creation."""

    rollout_id: str
    samples: list[SampleInfo]
    forks: dict[str, int] = Field(default_factory=dict)
