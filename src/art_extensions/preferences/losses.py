"""The losses of preferences, as the door has them: their facts and parameters. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from art.batch.algorithms.facts import LossExtension, LossFacts
from art.wire.algorithm import AdvantageSpec, AggregationSpec, Algorithm, KlSpec, LossSpec

TERMS = "art_extensions.preferences.terms"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferenceParams:
    """The parameters of the loss of a pair."""

    beta: float = 0.1
    """How strongly the reference is held to: what log ratios are multiplied by."""
    label_smoothing: float = 0.0
    """The share of pairs whose label is thought to be wrong (cDPO)."""
    ipo: bool = False
    """The squared distance of the margin to 1 / (2 beta), in place of the logistic loss."""
    length_normalised: bool = False
    """Each side's log ratio is its mean over tokens, not its sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KtoParams:
    """The parameters of the loss of a labelled reply."""

    beta: float = 0.1
    """What log ratios are multiplied by."""
    reference_point: float = 0.0
    """The estimate of KL(policy || reference), in nats: what a reply's log ratio is compared with."""


PREFERENCE_LOSS = LossExtension(
    facts=LossFacts(
        formula="-log sigmoid(beta (d of chosen - d of rejected)), d = log p - log q",
        levels=("token",),
        why="it takes the sum over each side of a pair itself",
        has_ratio=False,
        by_sequence=True,
        supervised=True,
        reference=True,
    ),
    params=PreferenceParams,
    term=f"{TERMS}:preference",
)
KTO_LOSS = LossExtension(
    facts=LossFacts(
        formula="sigmoid(-beta (d - z)) where desirable, sigmoid(beta (d - z)) where not, d = log p - log q",
        levels=("token",),
        why="it takes the sum over the reply itself",
        has_ratio=False,
        by_sequence=True,
        supervised=True,
        reference=True,
    ),
    params=KtoParams,
    term=f"{TERMS}:kto",
)


def preference_algorithm(name: str, loss: LossSpec, kl: KlSpec | None) -> Algorithm:
    """Returns what an update minimises: the mean over pairs, or labelled replies.

    The aggregation divides by their number; by their lengths the terms divide, in full precision.
    """
    return Algorithm(
        name=name,
        advantage=AdvantageSpec(kind="none"),
        loss=loss,
        aggregation=AggregationSpec(kind="constant", length=1),
        kl=kl,
        zero_advantage="count",
    )
