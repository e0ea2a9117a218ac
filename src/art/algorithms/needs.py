"""What a step must know for an algorithm: whole sequences, other policies' logprobs, a pass before the first
update.
"""

from __future__ import annotations

from art.wire.algorithm import Algorithm

SEQUENCE_LOSSES = frozenset({"gmpo", "vespo"})
TOKEN_CORRECTIONS = frozenset({"token_truncate", "token_mask"})


def update_count(algorithm: Algorithm) -> int:
    """Optimizer steps on one batch; where its size decides it and is not known yet, two: more than one."""
    if algorithm.updates.sequences is not None:
        return 2 * algorithm.updates.epochs
    return algorithm.updates.minibatches * algorithm.updates.epochs


def needs_sequences(algorithm: Algorithm) -> bool:
    """A term looks at more than its own token, so the loss is only right where its sequence is whole."""
    return (
        algorithm.ratio != "token"
        or algorithm.loss.name in SEQUENCE_LOSSES
        or any(spec.kind not in TOKEN_CORRECTIONS for spec in algorithm.mismatch)
    )


def needs_proximal(algorithm: Algorithm) -> bool:
    """The ratio divides by the trainer's logprobs before the first update, and they are not those of the
    pass that trains: with a single update they are.
    """
    return algorithm.ratio_to == "trainer" and update_count(algorithm) > 1


def needs_first_pass(algorithm: Algorithm) -> bool:
    """Something must be computed with the step's first weights before they move: the ratio's denominator, or
    advantages that depend on the policy's logprobs or a critic's values.
    """
    return (
        needs_proximal(algorithm)
        or algorithm.critic is not None
        or algorithm.teacher is not None
        or (algorithm.kl is not None and algorithm.kl.place != "loss")
    )


def taken_off_rewards(algorithm: Algorithm) -> bool:
    """A KL is taken off the rewards of groups, so only the trainer, who computes it, knows the advantages."""
    kl = algorithm.kl
    return kl is not None and kl.place == "reward" and algorithm.advantage.kind != "gae"


def needs_reference(algorithm: Algorithm) -> bool:
    """Another policy on the same base scores the batch: a KL term's reference, or a teacher that is the base
    or a step. What a sampler or a server has scored comes with the batch.
    """
    kl, teacher = algorithm.kl, algorithm.teacher
    return (kl is not None and kl.reference != "sampler") or (
        teacher is not None and teacher.kind != "server"
    )
