"""The keywords of `train` as `art.backend` declares them: defaults, checks, and the algorithm they choose.

`algorithm` names or spells the combination; the older keywords change one part of it each, and act the same
whatever the combination is:

    loss_fn, ppo, loss_fn_config, epsilon, epsilon_high    loss (the first two where no algorithm is given)
    normalize_advantages=False, scale_rewards=False        advantage: centred, not divided
    advantage_balance                                      advantage.balance
    importance_sampling_level                              ratio
    kl_penalty_coef, kl_penalty_reference_step,            kl: k1, shaping the advantages
    kl_penalty_step_lag, kl_penalty_sync_steps,
    kl_penalty_mixup, kl_ref_adapter_path,
    kl_penalty_source
    kimi_k2_tau                                            kl: k1 to the sampler, off the advantages
    truncated_importance_sampling                          mismatch: token_truncate, ratio_to the trainer
    precalculate_logprobs                                  ratio_to the trainer; reinforce if that is 1 always
    mask_prob_ratio                                        mismatch: token_mask by the clip's bounds
    max_negative_advantage_importance_sampling_weight      loss: bounds no ratio exceeds, whatever the sign
    entropy, top_entropy                                   the parts of these names
    grad_accumulation_sequences                            updates.sequences
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from pydantic import ValidationError

from art.backend import EarlierTrainOptions, Refused, TrainOptions
from art.batch.algorithms import DEFAULT, TABLE, check_algorithm, resolve
from art.batch.algorithms.facts import known_losses, update_count
from art.client.options.declared_options import declared_options, refused_options
from art.client.options.foreign_options import meant_option
from art.errors import ConfigurationError
from art.wire.algorithm import Algorithm, LossSpec
from art.wire.records import first_flaw

KEYWORDS = declared_options(TrainOptions)
"""The keywords of `train` by name."""
REFUSED: Mapping[str, Refused] = MappingProxyType(refused_options(EarlierTrainOptions))
"""The keywords of older releases by name, with what a refusal advises instead."""
_DEFAULTS = {name: keyword.default for name, keyword in KEYWORDS.items()}


def with_defaults(options: Mapping[str, Any]) -> TrainOptions:
    """The keywords of a call of `train`, with the defaults of those that were not given."""
    return cast(TrainOptions, {**_DEFAULTS, **options})


def refuse_unknown_keywords(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a keyword of `train` that nobody knows, that cannot act, or whose value it
    does not take.
    """
    for name, value in options.items():
        if name in REFUSED:
            if value not in REFUSED[name].neutral:
                raise ConfigurationError(f"train({name}={value!r}) is not supported: {REFUSED[name].instead}")
            continue
        keyword = KEYWORDS.get(name)
        if keyword is None:
            raise ConfigurationError(f"train({name}={value!r}): no such option{meant_option(name, KEYWORDS)}")
        if not keyword.fits(value):
            raise ConfigurationError(f"train({name}={value!r}): it is {keyword.takes}")


CLIPS: Mapping[str, tuple[float, float]] = {"cispo": (1.0, 4.0), "grpo": (0.2, 0.2), "ppo": (0.2, 0.2)}
"""Losses that clip the ratio to [1 - epsilon, 1 + epsilon_high], and their own bounds."""
SYMMETRIC = frozenset({"grpo", "ppo"})
"""Losses whose upper clip bound is the lower one's where only that is given."""
UNDIVIDED = frozenset({"centered", "rloo", "reward", "none", "gae", "distillation"})
"""Advantages that no deviation divides."""


def choose_algorithm(options: TrainOptions) -> Algorithm:
    """The algorithm, its parts checked to fit each other. Raises ConfigurationError with the reason."""
    options = _named_loss(options)
    row = _row(options)
    parts = row.model_dump()
    parts["loss"] = _loss(row, options)
    _advantage(parts, options)
    _kl(parts, options)
    _ratio(parts, options)
    _entropy(parts, options)
    if options["grad_accumulation_sequences"] is not None:
        updates = {"minibatches": 1, "sequences": options["grad_accumulation_sequences"]}
        parts["updates"] |= updates
    try:
        algorithm = _of_the_moment(Algorithm.model_validate(parts), options)
    except ValidationError as error:
        raise ConfigurationError(f"train: {first_flaw(error)}") from error
    check_algorithm(algorithm)
    return algorithm


def _named_loss(o: TrainOptions) -> TrainOptions:
    """`ppo` as a name of a loss."""
    ppo, loss = o["ppo"], o["loss_fn"]
    if ppo is None:
        return o
    name = "ppo" if ppo else "cispo"
    if loss not in (None, name) or o["algorithm"] is not None:
        other = f"loss_fn={loss!r}" if loss is not None else f"algorithm={o['algorithm']!r}"
        raise ConfigurationError(f"train(ppo={ppo!r}, {other}): both choose the loss. Leave ppo out.")
    return {**o, "loss_fn": name}


def _of_the_moment(algorithm: Algorithm, o: TrainOptions) -> Algorithm:
    """A ratio of the trainer to itself in the only update is 1: what is left of a clipped loss is
    reinforce.
    """
    alone = update_count(algorithm) == 1 and not algorithm.mismatch and algorithm.loss.name in CLIPS
    if not (o["precalculate_logprobs"] and alone):
        return algorithm
    changes = {"loss": LossSpec(name="reinforce"), "ratio": "token", "ratio_to": "sampler"}
    return algorithm.model_copy(update=changes)


def _row(o: TrainOptions) -> Algorithm:
    """Returns the named row, before any change."""
    given, loss = o["algorithm"], o["loss_fn"]
    if given is None:
        name = loss or Algorithm().loss.name
        if name not in known_losses():
            hint = f"; an algorithm has that name: algorithm={name!r}" if name in TABLE else ""
            raise ConfigurationError(
                f"train(loss_fn={name!r}): no such loss{hint}. Known: {', '.join(known_losses())}."
            )
        default = resolve(DEFAULT)
        if name == default.loss.name:
            return default
        return default.model_copy(update={"name": name, "loss": LossSpec(name=name)})
    if loss is not None:
        raise ConfigurationError(
            f"train(algorithm=..., loss_fn={loss!r}): the algorithm has a loss. Give one of the two, or "
            f"the loss as a part: algorithm={{'name': ..., 'loss': {loss!r}}}."
        )
    if isinstance(given, Algorithm):
        return given
    if isinstance(given, str):
        return resolve(given)
    if isinstance(given, Mapping):
        rest = {name: value for name, value in given.items() if name != "name"}
        return resolve(given.get("name", DEFAULT), **rest)
    raise ConfigurationError(
        f"train(algorithm={given!r}): a name, a dict of parts with a `name`, or an art.Algorithm. "
        f"Known names: {', '.join(TABLE)}."
    )


def _loss(row: Algorithm, o: TrainOptions) -> dict[str, Any]:
    name, high = row.loss.name, o["epsilon_high"]
    if o["algorithm"] is None and name in SYMMETRIC and high is None:
        high = o["epsilon"]
    clip = {"epsilon": o["epsilon"], "epsilon_high": high}
    params = {**row.loss.params, **(o["loss_fn_config"] or {})}
    params |= {bound: value for bound, value in clip.items() if value is not None}
    cap = o["max_negative_advantage_importance_sampling_weight"]
    if cap is not None:
        params |= _capped(name, params, cap)
    return {"name": name, "params": params}


def _capped(name: str, params: Mapping[str, Any], cap: float) -> dict[str, Any]:
    """The bound that holds every ratio below `cap`, which is what this option does in spite of its name."""
    high = params.get("epsilon_high", CLIPS.get(name, (0.0, 0.0))[1])
    if name == "cispo" and cap >= 1:
        return {"epsilon_high": min(high, cap - 1)}
    if name in SYMMETRIC and cap > 1 + high:
        # Only where the advantage is negative does PPO's minimum let such ratios through.
        bound = "dual_clip" if params.get("dual_clip") is not None else "delta"
        return {bound: min(cap, params.get(bound) or cap)}
    least = f"above 1 + epsilon_high = {1 + high!r}" if name in SYMMETRIC else "at least 1"
    raise ConfigurationError(
        f"train(max_negative_advantage_importance_sampling_weight={cap!r}) with loss {name!r}: it bounds the "
        f"ratios of {', '.join(sorted(CLIPS))}, {least}, and nothing else"
    )


def _advantage(parts: dict[str, Any], o: TrainOptions) -> None:
    advantage = parts["advantage"]
    if not (o["normalize_advantages"] and o["scale_rewards"]):
        if advantage["kind"] == "group":
            advantage |= {"kind": "centered"}
        elif advantage["kind"] not in UNDIVIDED:
            named = "scale_rewards" if o["normalize_advantages"] else "normalize_advantages"
            raise ConfigurationError(
                f"train({named}=False) with advantages {advantage['kind']!r}: dividing is what they are. "
                "Choose others, such as algorithm={'name': ..., 'advantage': 'centered'}."
            )
    if o["advantage_balance"]:
        advantage["balance"] = o["advantage_balance"]


_KL_SOURCES: Mapping[str, str] = {"current_learner": "policy", "sample": "sampler"}


def _kl(parts: dict[str, Any], o: TrainOptions) -> None:
    terms = []
    if o["kl_penalty_coef"]:
        terms.append(
            {
                "estimator": "k1",
                "coefficient": o["kl_penalty_coef"],
                "place": "shaped_advantage",
                "source": _KL_SOURCES[o["kl_penalty_source"]],
                **_reference(o),
            }
        )
    elif (named := _reference_option(o) or _other_source(o)) is not None:
        name, value = named
        raise ConfigurationError(
            f"train({name}={value!r}) acts on the penalty of `kl_penalty_coef`, which is 0; set that too"
        )
    if o["kimi_k2_tau"]:
        terms.append(
            {"estimator": "k1", "coefficient": o["kimi_k2_tau"], "place": "advantage", "reference": "sampler"}
        )
    if len(terms) + (parts["kl"] is not None) > 1:
        raise ConfigurationError(
            "train: an algorithm has one KL term; of kl_penalty_coef, kimi_k2_tau and the algorithm's own "
            "`kl` give one"
        )
    if terms:
        (parts["kl"],) = terms


_REFERENCES = ("step_lag", "sync_steps", "mixup", "reference_step")
_TOGETHER = (
    {"kl_penalty_sync_steps", "kl_penalty_mixup"},
    {"kl_penalty_reference_step", "kl_ref_adapter_path"},
)


def _reference_option(o: TrainOptions) -> tuple[str, Any] | None:
    """The keyword that names the reference, and its value: a folder wins over a step, a share over an
    interval.
    """
    values: Mapping[str, Any] = {**o}
    names = [*(f"kl_penalty_{name}" for name in _REFERENCES), "kl_ref_adapter_path"]
    given = {name: values[name] for name in names if values[name] is not None}
    if len(given) > 1 and set(given) not in _TOGETHER:
        listed = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raise ConfigurationError(f"train({listed}): give one reference")
    return list(given.items())[-1] if given else None


def _other_source(o: TrainOptions) -> tuple[str, str] | None:
    source = o["kl_penalty_source"]
    return None if source == "current_learner" else ("kl_penalty_source", source)


def _reference(o: TrainOptions) -> dict[str, Any]:
    match _reference_option(o):
        case "kl_ref_adapter_path", path:
            return {"reference": "adapter", "path": path}
        case "kl_penalty_reference_step", step:
            return {"reference": "step", "step": step}
        case "kl_penalty_step_lag", lag:
            return {"reference": "step", "lag": lag}
        case "kl_penalty_mixup", mixup:
            return {"reference": "average", "mixup": mixup, "every": o["kl_penalty_sync_steps"]}
        case "kl_penalty_sync_steps", every:
            return {"reference": "step", "every": every}
        case _:
            return {"reference": "base"}


def _entropy(parts: dict[str, Any], o: TrainOptions) -> None:
    entropy, top = o["entropy"], o["top_entropy"]
    if isinstance(entropy, int | float) and not isinstance(entropy, bool):
        parts["entropy"] = {"coefficient": entropy} if entropy else None
    elif entropy is not None:
        parts["entropy"] = entropy
    if top is not None:
        parts["top_entropy"] = None if top == 1 else top


def _ratio(parts: dict[str, Any], o: TrainOptions) -> None:
    """The ratio's level, what it divides by, and the corrections beside it."""
    if o["importance_sampling_level"] is not None:
        parts["ratio"] = o["importance_sampling_level"]
    mismatch = parts["mismatch"]
    if o["truncated_importance_sampling"] is not None:
        mismatch.append({"kind": "token_truncate", "high": o["truncated_importance_sampling"]})
    if o["precalculate_logprobs"] or o["truncated_importance_sampling"] is not None:
        parts["ratio_to"] = "trainer"
    if o["mask_prob_ratio"]:
        name, params = parts["loss"]["name"], parts["loss"]["params"]
        if name not in CLIPS:
            raise ConfigurationError(
                f"train(mask_prob_ratio=True) masks by the clip's bounds, and loss {name!r} has none; known: "
                f"{', '.join(sorted(CLIPS))}"
            )
        low, high = CLIPS[name]
        low, high = params.get("epsilon", low), params.get("epsilon_high", high)
        mismatch.append({"kind": "token_mask", "low": max(0.0, 1 - low), "high": 1 + high})
