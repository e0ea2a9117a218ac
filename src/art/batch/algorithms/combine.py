"""Exchanges parts of a named algorithm, and checks which parts fit each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from art.batch.algorithms.facts import TOKEN_CORRECTIONS, LossFacts, loss_facts, update_count
from art.batch.algorithms.table import DEFAULT, find_row, spelling_hint
from art.errors import ConfigurationError
from art.wire.algorithm import OF_CRITIC, OF_TURNS, Algorithm, MismatchSpec
from art.wire.nested import deep_merge
from art.wire.records import first_flaw

TRUNCATIONS = frozenset({"token_truncate", "sequence_truncate"})
WEIGHING_MASKS = frozenset({"token_mask", "sequence_mask"})
"""The masks that weigh by the ratio inside the band, unless a truncation or the loss's ratio does."""


def check_algorithm(algorithm: Algorithm) -> None:
    """Raise ConfigurationError for a combination that makes no sense, or in which a part would not act.

    The values of a loss's parameters are checked where the loss is made, before a step begins.
    """
    facts = loss_facts(algorithm.loss.name)
    refusals = [
        *_params(algorithm, facts),
        *_ratio(algorithm, facts),
        *_updates(algorithm, facts),
        *_credit(algorithm),
        *_supervised(algorithm, facts),
        *_top_entropy(algorithm, facts),
        *_kl(algorithm, facts),
        *_mismatch(algorithm, facts),
    ]
    if refusals:
        raise ConfigurationError(f"Algorithm {algorithm.name!r}: {' '.join(refusals)}")


def _params(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    for name in a.loss.params:
        if name not in facts.params:
            known = ", ".join(facts.params) or "none at all"
            yield f"Loss {a.loss.name!r} has no parameter {name!r}. Known: {known}."


def _ratio(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    if a.ratio not in facts.levels:
        yield (
            f"Loss {a.loss.name!r} does not go with the ratio of level {a.ratio!r}: "
            f"{facts.why or 'it does not clip token by token, as that level has it'}. "
            f"It takes {' or '.join(map(repr, facts.levels))}."
        )
    if a.ratio_to == "trainer" and not facts.has_ratio and not a.mismatch:
        yield f"ratio_to='trainer' would not act: loss {a.loss.name!r} has no ratio. Leave it out."
    if a.ratio_to == "trainer" and facts.has_ratio and not a.mismatch and update_count(a) == 1:
        yield (
            "ratio_to='trainer' with a single update and no mismatch correction: the ratio is always 1, so "
            "nothing is clipped and nothing corrected. Use ratio_to='sampler', several updates, a "
            "correction, or loss 'reinforce', which says the same."
        )


def _updates(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    if facts.has_ratio or facts.supervised or update_count(a) == 1:
        return
    if a.ratio_to == "sampler" and any(one.kind in TRUNCATIONS for one in a.mismatch):
        return  # its weight is that of the policy of the moment
    yield (
        f"{update_count(a)} updates on one batch with loss {a.loss.name!r}, which has no ratio: from the "
        "second on, the samples are another policy's. Use one update, loss 'importance_sampling', or a "
        "mismatch correction 'token_truncate' with ratio_to='sampler'."
    )


def _credit(a: Algorithm) -> Iterator[str]:
    """Advantages and who computes them."""
    spec = a.advantage
    kind = spec.kind
    if kind in OF_CRITIC and a.critic is None:
        yield f"Advantages {kind!r} come from a critic: add critic={{}}, or critic={{'kind': 'adapter'}}."
    if a.critic is not None and kind not in OF_CRITIC:
        yield (
            f"A critic is only asked by advantages 'gae' and 'turn_gae', not by {kind!r}: leave it out, or "
            "choose one of them."
        )
    if kind == "distillation" and a.teacher is None:
        yield "Advantages 'distillation' need a teacher: add teacher={'kind': 'base'}, 'step' or 'server'."
    if a.teacher is not None and kind != "distillation":
        yield f"A teacher is only asked by advantages 'distillation', not by {kind!r}: leave it out."
    yield from _parts_of_rewards(a)
    of_turns = kind in OF_TURNS
    takes_turns = of_turns and kind != "turn_tree"
    if spec.credit is not None and (not takes_turns or kind == "turn_gae"):
        yield f"credit {spec.credit!r} would not act: advantages {kind!r} do not ask which turn was rewarded."
    discounts = takes_turns and (spec.counts_later_turns or kind == "progress")
    if spec.gamma != 1 and kind not in ("gae", "reinforce++") and not discounts:
        yield (
            f"gamma {spec.gamma!r} acts on advantages 'gae', 'reinforce++' and of turns that earn the rest "
            f"of the episode, not on {kind!r} with credit {spec.credit!r}: give gamma 1, or credit 'rest'."
        )
    if of_turns and a.kl is not None and a.kl.place == "reward":
        yield f"A KL in the reward is not taken off the rewards of turns, which advantages {kind!r} take."
    if spec.lam != 1 and kind not in OF_CRITIC:
        yield f"lam {spec.lam!r} acts on advantages 'gae' and 'turn_gae', not on {kind!r}."
    if not spec.whiten and kind not in OF_CRITIC:
        yield f"whiten=False acts on advantages 'gae' and 'turn_gae', not on {kind!r}: leave it out."
    if a.overlong is not None and kind in ("distillation", "none"):
        yield f"The punishment of length (overlong) changes rewards, and advantages {kind!r} take none."
    to_go = kind == "reinforce++" and a.kl is not None and a.kl.place == "reward"
    by_token = of_turns or kind in ("gae", "distillation") or spec.gamma != 1 or to_go
    if by_token and a.ratio != "token" and a.loss.name != "cispo":
        yield (
            f"Advantages {kind!r} differ from token to token, and the ratio {a.ratio!r} of loss "
            f"{a.loss.name!r} would average them over the sequence. Use ratio='token'."
        )


def _parts_of_rewards(a: Algorithm) -> Iterator[str]:
    kind = a.advantage.kind
    if kind != "gdpo":
        if a.reward_parts:
            yield f"reward_parts act on advantages 'gdpo', not on {kind!r}: leave them out, or choose 'gdpo'."
        return
    if not a.reward_parts:
        yield (
            "Advantages 'gdpo' take the parts of the reward: name metrics of the trajectories with their "
            "weights, reward_parts={'correct': 1.0, 'format': 0.5}."
        )
    if a.overlong is not None or a.masked == "drop" or (a.kl is not None and a.kl.place == "reward"):
        yield (
            "Advantages 'gdpo' do not take the reward as a whole, which overlong, masked='drop' and a KL in "
            "the reward change: leave them out, or make the length a part."
        )


def _supervised(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    supervised = facts.supervised
    if supervised != (a.advantage.kind == "none"):
        yield (
            f"Loss {a.loss.name!r} with advantages {a.advantage.kind!r}: a supervised loss has advantages "
            "'none', and every other one has real ones (with 'none' each rollout would be as good as any)."
        )
    if supervised and ((a.kl is not None and not facts.reference) or a.mismatch):
        yield (
            f"Loss {a.loss.name!r} with a KL term or a mismatch correction: both are about tokens that a "
            "policy sampled, and these are shown. Leave them out."
        )
    if supervised and (a.entropy is not None or a.top_entropy is not None):
        yield (
            "Loss 'cross_entropy' with `entropy` or `top_entropy`: both keep a policy exploring, and these "
            "tokens are shown. Leave them out."
        )


def _top_entropy(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    if a.top_entropy is not None and (a.ratio != "token" or facts.by_sequence):
        yield (
            f"top_entropy {a.top_entropy!r} selects single tokens, but the term of loss {a.loss.name!r} with "
            f"ratio {a.ratio!r} belongs to a whole sequence. Use ratio='token' with another loss."
        )


def _kl(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    kl = a.kl
    if kl is None:
        return
    if (kl.place == "term") != facts.reference:
        yield (
            f"kl.place {kl.place!r} with loss {a.loss.name!r}: a loss whose own term reads a reference has "
            "place 'term', and no other has."
        )
    if kl.place == "term" and kl.reference == "sampler":
        yield "kl.reference 'sampler' with place 'term': nobody sampled what such a loss is shown."
    if kl.place != "loss" and kl.importance:
        yield f"kl.importance acts on a KL term in the loss, not on one in {kl.place!r}."
    if kl.source == "sampler" and (kl.place == "loss" or kl.reference == "sampler"):
        yield "kl.source 'sampler' acts on a KL outside of the loss, to another reference than the sampler."
    if kl.place == "loss" and kl.estimator == "k1" and not kl.importance:
        yield (
            "kl 'k1' in the loss pulls nowhere: its gradient is zero on average. Use 'k2' or 'k3', "
            "importance=True, or place='reward' or 'advantage'."
        )
    if kl.place == "reward" and a.advantage.kind == "distillation":
        yield "kl in the reward: advantages 'distillation' take no reward. Use place='advantage'."
    if kl.place == "reward" and a.advantage.kind == "maxrl":
        yield (
            "kl in the reward with advantages 'maxrl', which divide by the group's mean reward: the KL may "
            "make that 0 or negative. Use place='loss' or 'advantage'."
        )
    if kl.importance and kl.estimator == "k2":
        yield "kl 'k2' times the ratio has the gradient of no divergence: importance is for 'k1' and 'k3'."
    if a.teacher is not None and a.teacher.kind != "server" and kl.reference != "sampler":
        yield (
            f"A teacher {a.teacher.kind!r} and a KL reference {kl.reference!r} in one step: only one other "
            "policy on the base is asked. Distillation is a KL term already; leave `kl` out."
        )


def _mismatch(a: Algorithm, facts: LossFacts) -> Iterator[str]:
    counted = facts.has_ratio and a.ratio_to == "sampler"
    for spec in a.mismatch:
        yield from _bounds(spec)
        if spec.kind in TRUNCATIONS and counted:
            yield (
                f"Mismatch {spec.kind!r} with ratio_to='sampler': the ratio corrects for the sampler "
                "already, and the weight would do it again. Use ratio_to='trainer', or a mask."
            )
        if spec.kind in TOKEN_CORRECTIONS and (a.ratio != "token" or facts.by_sequence):
            yield (
                f"Mismatch {spec.kind!r} corrects single tokens, but the term of loss {a.loss.name!r} with "
                f"ratio {a.ratio!r} belongs to a whole sequence. Use a 'sequence_' or 'geometric_' kind."
            )
    yield from _masked(a)
    weighing = [spec.kind for spec in a.mismatch if spec.kind in TRUNCATIONS]
    if not weighing and not counted:
        weighing = [spec.kind for spec in a.mismatch if spec.kind in WEIGHING_MASKS]
    if len(weighing) > 1:
        yield (
            f"Mismatch {weighing!r}: all weigh by the same ratio. Keep one; beside a truncation, masks only "
            "mask."
        )


def _masked(a: Algorithm) -> Iterator[str]:
    if a.masked == "count":
        return
    if all(spec.kind in TRUNCATIONS for spec in a.mismatch):
        yield "masked='drop' would not act: there is no mismatch mask. Add one, or leave it out."
    if a.advantage.kind in (*OF_CRITIC, "distillation", "none"):
        yield (
            f"masked='drop' with advantages {a.advantage.kind!r}, which compare no rollouts with each other: "
            "a dropped one has no vote. Leave it out."
        )


def _bounds(spec: MismatchSpec) -> Iterator[str]:
    if spec.kind == "negative_mask":
        if spec.low != 0:
            yield f"Mismatch 'negative_mask' has only `high`; low {spec.low!r} would not act."
    elif spec.low >= spec.high:
        yield f"Mismatch {spec.kind!r}: low {spec.low!r} is below high {spec.high!r}, or nothing passes."


KINDS = ("kind", "name")
"""The field that says what a part is: one of another kind replaces the row's, one of the same adds to it."""


def resolve(name: str = DEFAULT, /, **parts: Any) -> Algorithm:
    """The row `name` with `parts` laid over it: nested dicts, specs of `art.wire.algorithm`, or, for a part
    that is known by its kind alone, a string. None takes an optional part away.

    >>> resolve("grpo", aggregation="token_mean").aggregation.kind
    'token_mean'
    >>> resolve("grpo", loss={"params": {"epsilon_high": 0.28}}).loss.params
    {'epsilon': 0.2, 'epsilon_high': 0.28}

    Raises ConfigurationError for unknown names and parts, listing the known ones, for wrong values, and for
    combinations that make no sense, with the reason.
    """
    row = find_row(name)
    merged = {**row.algorithm.model_dump(exclude_unset=True), "name": name}
    for part, value in parts.items():
        merged[part] = _merged(part, merged.get(part), value)
    if "name" in parts:
        raise ConfigurationError(f"The name of the algorithm is given twice: {name!r} and {parts['name']!r}.")
    algorithm = _validated(merged)
    check_algorithm(algorithm)
    return algorithm


def _merged(part: str, own: Any, value: Any) -> Any:
    """Returns a part merged with its changes."""
    if part not in Algorithm.model_fields:
        raise ConfigurationError(
            f"An algorithm has no part {part!r}{spelling_hint(part, Algorithm.model_fields)}. "
            f"Known: {', '.join(known for known in Algorithm.model_fields if known != 'name')}."
        )
    if isinstance(value, BaseModel):
        return value.model_dump()
    discriminator = _discriminator(part)
    if isinstance(value, str) and discriminator is not None:
        value = {discriminator: value}
    if isinstance(value, list):
        return [one.model_dump() if isinstance(one, BaseModel) else one for one in value]
    if not isinstance(value, Mapping) or not isinstance(own, Mapping):
        return value
    if discriminator in value and value[discriminator] != own.get(discriminator):
        return dict(value)
    return deep_merge(own, value)


def _discriminator(part: str) -> str | None:
    spec = _spec(part)
    return next((kind for kind in KINDS if kind in spec.model_fields), None) if spec else None


def _spec(part: str) -> type[BaseModel] | None:
    """The model of a part, or None where it is a plain value."""
    if part == "mismatch":
        return MismatchSpec
    annotation = Algorithm.model_fields[part].annotation
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _validated(merged: Mapping[str, Any]) -> Algorithm:
    try:
        return Algorithm.model_validate(merged)
    except ValidationError as error:
        flaw = first_flaw(error)
        part, *inside = flaw.field.split(".")
        message = f"{flaw}."
        if flaw.kind == "extra_forbidden" and inside and (spec := _spec(part)) is not None:
            message = f"{flaw.field}: no such field; known: {', '.join(spec.model_fields)}."
        raise ConfigurationError(f"Algorithm {merged['name']!r}: {message}") from error
