"""Why a sample is context and not trained: its distribution is none that the trainer computes.

The server counts by the reason's code, the client says what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

UntrainableReason = Literal["greedy", "penalties", "constraint", "teacher", "unknown"]

UNTRAINABLE: Mapping[str, str] = MappingProxyType(
    {
        "greedy": "drawn greedily (temperature 0, top_k 1 or min_p 1): there is no other choice to compare "
        "with; give the calls that are to learn a temperature above 0",
        "penalties": "drawn with frequency_penalty, presence_penalty, repetition_penalty or min_tokens, "
        "which the trainer does not compute; leave them out of the calls that are to learn",
        "constraint": "drawn under a constraint by another engine than the builtin one, whose masks the "
        "trainer does not know; leave response_format and the like out of the calls that are to learn",
        "teacher": "drawn from another distribution than the model's own, of which a teacher's server gives "
        "no logprobs; use temperature 1 without top_p, top_k, min_p, logit_bias and constraints",
        "unknown": "drawn from a distribution that the trainer does not compute; use temperature, top_p, "
        "top_k, min_p and logit_bias alone",
    }
)
"""What each reason means, and the remedy."""
