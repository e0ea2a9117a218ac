"""What is known of an algorithm without computing it: its token term, and what a step needs for it (whole
sequences, other policies' logprobs, a pass before the first update).

The functions of the token terms are in `art.training.losses`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError
from art.extensions import LOSS, extension_points, load_extension
from art.wire.algorithm import Algorithm, KlSpec, RatioLevel

ANY: tuple[RatioLevel, ...] = ("token", "sequence", "average", "geometric_average")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossFacts:
    """The formula of a token term, its parameters, and the ratio levels that fit it."""

    formula: str
    """What is minimised. r: ratio, A: advantage, p: probability."""
    params: tuple[str, ...] = ()
    levels: tuple[RatioLevel, ...] = ANY
    why: str = ""
    """Why the other levels do not fit."""
    has_ratio: bool = True
    """It divides by the probability of another policy, so it may be trained on that policy's samples."""
    by_sequence: bool = False
    """Its term looks at more than its own token, so it is only right where a sequence is whole."""
    supervised: bool = False
    """It learns what is shown, so there is no advantage of one rollout over another."""
    reference: bool = False
    """Its term reads the logprobs of a reference, where a `kl` of place "term" names one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossExtension:
    """A loss that a package adds, by an entry point `loss.NAME`. It is loaded without torch."""

    facts: LossFacts
    """Their `params` are left out: they are the fields of `params`."""
    params: type[Any]
    """A frozen dataclass. Its fields are floats, bools or may be None, each with a default."""
    term: str
    """Where the token term is, as MODULE:FUNCTION. The trainer alone imports it. It takes `LossInputs` and an
    instance of `params`, and returns a `LossOutput` (`art.training.losses.base`)."""


_CLIP = LossFacts(
    formula="-min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)",
    params=("epsilon", "epsilon_high", "dual_clip", "delta"),
)

LOSSES: Mapping[str, LossFacts] = MappingProxyType(
    {
        "cispo": LossFacts(
            formula="-sg(clip(r, 1 - epsilon, 1 + epsilon_high)) A log p", params=("epsilon", "epsilon_high")
        ),
        "cross_entropy": LossFacts(
            formula="-log p",
            levels=("token",),
            why="it has no ratio",
            has_ratio=False,
            supervised=True,
        ),
        "dppo": LossFacts(
            formula="-r A, 0 where A > 0 and p - p' > high or A <= 0 and p' - p > low",
            params=("low", "high"),
            levels=("token",),
            why="it bounds the probability of one token",
        ),
        "dro": LossFacts(
            formula="-A log p + (beta / 2) (log r)^2",
            params=("beta",),
            levels=("token",),
            why="its penalty is on the ratio of one token",
        ),
        "gmpo": LossFacts(
            formula="-A exp(mean(clip(log r, -epsilon, epsilon_high)))",
            params=("epsilon", "epsilon_high"),
            levels=("geometric",),
            why="it takes the geometric mean of token ratios that it clips itself",
            by_sequence=True,
        ),
        "grpo": _CLIP,
        "gspo_token": LossFacts(
            formula="-min(s A, clip(s, 1 - epsilon, 1 + epsilon_high) A), s = sg(sequence's ratio / p) p",
            params=("epsilon", "epsilon_high"),
            levels=("token",),
            why="it takes the ratio of the sequence itself",
            by_sequence=True,
        ),
        "importance_sampling": LossFacts(formula="-r A"),
        "ppo": _CLIP,
        "reinforce": LossFacts(formula="-A log p", levels=("token",), why="it has no ratio", has_ratio=False),
        "sapo": LossFacts(formula="-A (4 / tau) sigmoid(tau (r - 1))", params=("tau", "tau_negative")),
        "vespo": LossFacts(
            formula="-sg(w^k exp(lam (1 - w))) A log p, w = product of r",
            params=("k", "lam", "k_negative", "lam_negative"),
            levels=("token",),
            why="it takes the product over the sequence itself",
            by_sequence=True,
        ),
    }
)


TOKEN_CORRECTIONS = frozenset({"token_truncate", "token_mask"})


def known_losses() -> list[str]:
    """Returns the names of all losses, those of installed extensions too."""
    return sorted({*LOSSES, *extension_points(LOSS)})


def loss_facts(name: str) -> LossFacts:
    """Returns what is known of a loss. Raises ConfigurationError for an unknown name."""
    if name in LOSSES:
        return LOSSES[name]
    if name not in extension_points(LOSS):
        raise ConfigurationError(f"Unknown loss {name!r}. Known: {', '.join(known_losses())}.")
    added: LossExtension = load_extension(LOSS, name)
    params = tuple(field.name for field in dataclasses.fields(added.params))
    return dataclasses.replace(added.facts, params=params)


def update_count(algorithm: Algorithm) -> int:
    """Optimizer steps on one batch; where its size decides it and is not known yet, two: more than one."""
    if algorithm.updates.sequences is not None:
        return 2 * algorithm.updates.epochs
    return algorithm.updates.minibatches * algorithm.updates.epochs


def needs_sequences(algorithm: Algorithm) -> bool:
    """A term looks at more than its own token, so the loss is only right where its sequence is whole."""
    return (
        algorithm.ratio != "token"
        or loss_facts(algorithm.loss.name).by_sequence
        or any(spec.kind not in TOKEN_CORRECTIONS for spec in algorithm.mismatch)
    )


def needs_proximal(algorithm: Algorithm) -> bool:
    """The ratio divides by the trainer's logprobs before the first update, and they are not those of the
    pass that trains: with a single update they are.
    """
    return algorithm.ratio_to == "trainer" and update_count(algorithm) > 1


def needs_first_pass(algorithm: Algorithm) -> bool:
    """Returns whether the step's first weights must compute something before they change: the ratio's
    denominator, the highest entropies, or advantages that depend on the policy's logprobs, on masks or on a
    critic's values.
    """
    return (
        needs_proximal(algorithm)
        or algorithm.critic is not None
        or algorithm.teacher is not None
        or algorithm.masked == "drop"
        or shapes_advantages(algorithm.kl)
        or algorithm.top_entropy is not None
    )


def shapes_advantages(kl: KlSpec | None) -> bool:
    """Returns whether a KL is taken off rewards or advantages, not a part of the loss."""
    return kl is not None and kl.place not in ("loss", "term")


def taken_off_rewards(algorithm: Algorithm) -> bool:
    """A KL is taken off the rewards of groups, so only the trainer, who computes it, knows the advantages."""
    kl = algorithm.kl
    return kl is not None and kl.place == "reward" and algorithm.advantage.kind != "gae"


def reshaped_by_trainer(algorithm: Algorithm) -> bool:
    """Only the trainer knows the advantages of groups: something is taken off their rewards, or rollouts that
    masks drop are to be left out of them. It needs the rewards.
    """
    return taken_off_rewards(algorithm) or algorithm.masked == "drop"


def needs_reference(algorithm: Algorithm) -> bool:
    """Another policy on the same base scores the batch: a KL term's reference, or a teacher that is the base
    or a step. What a sampler or a server has scored comes with the batch.
    """
    kl, teacher = algorithm.kl, algorithm.teacher
    return (kl is not None and kl.reference != "sampler") or (
        teacher is not None and teacher.kind != "server"
    )
