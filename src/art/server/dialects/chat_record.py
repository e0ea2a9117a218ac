"""What the ledger keeps of a completion."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion
from art.server.ledger.schema import SampleRecord, float_array, int_array

_NEUTRAL: Mapping[str, float] = MappingProxyType(
    {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
)
"""Kept where they say something."""


def record_of(
    prepared: Prepared, prompt: array[int], completion: Completion, message: dict[str, Any], engine: str
) -> SampleRecord:
    """The ledger's row of a completion. `engine`: the name of what sampled it."""
    target, stitched = prepared.target, prepared.stitched
    return SampleRecord(
        sample_id=completion.sample_id,
        rollout_id=prepared.rollout_id,
        tenant=prepared.tenant,
        project=target.project,
        model=prepared.request.model,
        base_model=target.base_model,
        step=target.step,
        adapter=target.adapter,
        parent_id=stitched.parent_id,
        fork_reason=stitched.fork_reason,
        shared=stitched.shared,
        prompt_ids=prompt,
        completion_ids=int_array(completion.token_ids),
        completion_logprobs=float_array(completion.logprobs),
        sampling=_recorded(prepared, completion, engine),
        finish_reason=completion.finish_reason or "stop",
        turn_key=stitched.conversation.key_with(message),
        tools_key=prepared.request.tools_key,
        created_at=prepared.created_at,
        candidates=b"".join(completion.candidates),
    )


def _recorded(prepared: Prepared, completion: Completion, engine: str) -> dict[str, Any]:
    request = prepared.request
    sampling: dict[str, Any] = {
        "max_tokens": prepared.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
    }
    for name, neutral in _NEUTRAL.items():
        if (value := getattr(request, name)) != neutral:
            sampling[name] = value
    for name in ("seed", "stop", "metadata"):
        value = getattr(request, name)
        if value:
            sampling[name] = value
    if request.ignore_eos:
        sampling["ignore_eos"] = True
    if request.logit_bias:
        sampling["logit_bias"] = [list(pair) for pair in request.logit_bias]
    if prepared.constraint is not None:
        constraint = prepared.constraint
        sampling["constraint"] = {"kind": constraint.kind, "text": constraint.text, "by": engine}
        sampling["stop_token_ids"] = list(prepared.stop_token_ids)
    if completion.stop_string is not None:
        sampling["stop_string"] = completion.stop_string
    return sampling
