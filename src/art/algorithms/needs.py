"""What a combination asks of the step that runs it: passes before the first update, and whole sequences."""

from __future__ import annotations

from art.wire.algorithm import Algorithm

SEQUENCE_MASKS = frozenset(
    {"sequence_truncate", "sequence_mask", "geometric_mask", "outlier_mask", "negative_mask"}
)


def needs_sequences(algorithm: Algorithm) -> bool:
    """Whether a token's term depends on the other tokens of its rollout."""
    return algorithm.ratio != "token" or any(one.kind in SEQUENCE_MASKS for one in algorithm.mismatch)


def needs_reference(algorithm: Algorithm) -> bool:
    """Whether another policy on the same base scores the batch: for a KL term, or as the teacher."""
    by_kl = algorithm.kl is not None and algorithm.kl.reference in ("base", "step")
    return by_kl or (algorithm.teacher is not None and algorithm.teacher.kind in ("base", "step"))


def needs_first_pass(algorithm: Algorithm) -> bool:
    """Whether the policy's own logprobs, or a critic's values, must be known before the first update.

    With one update the policy before it is the policy in it, so a ratio to the trainer alone needs no pass.
    """
    updates = algorithm.updates.minibatches * algorithm.updates.epochs
    in_advantage = algorithm.kl is not None and algorithm.kl.place != "loss"
    return (
        (algorithm.ratio_to == "trainer" and updates > 1)
        or in_advantage
        or algorithm.teacher is not None
        or algorithm.critic is not None
    )
