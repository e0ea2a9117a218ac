"""The keywords of `train`, as data: what each does, and which values it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError
from art.remote.config.keys import meant

Check = Callable[[Any], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyword:
    """One keyword of `train`."""

    does: str
    """For docs/options.md."""
    takes: str
    """What its values are, for messages."""
    fits: Check
    """Whether a value other than None is one of them."""
    optional: bool = False
    """Whether None is allowed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A keyword that is known, but would change results if it were ignored."""

    instead: str
    neutral: tuple[Any, ...]
    """Values that ask for nothing."""


def _real(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _integral(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _number(
    does: str, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> Keyword:
    bounds = [
        f"of at least {least:g}" if least is not None else "",
        f"above {above:g}" if above is not None else "",
    ]
    bounds.append(f"of at most {most:g}" if most is not None else "")
    said = " and ".join(one for one in bounds if one)

    def fits(value: Any) -> bool:
        return (
            _real(value)
            and (least is None or value >= least)
            and (above is None or value > above)
            and (most is None or value <= most)
        )

    return Keyword(does=does, takes=f"a number {said}".strip(), fits=fits)


def _whole(does: str, *, least: int) -> Keyword:
    def fits(value: Any) -> bool:
        return _integral(value, least)

    return Keyword(does=does, takes=f"a whole number of at least {least}", fits=fits)


def _flag(does: str) -> Keyword:
    return Keyword(does=does, takes="True or False", fits=lambda value: isinstance(value, bool))


def _kind(does: str, takes: str, *kinds: type) -> Keyword:
    return Keyword(does=does, takes=takes, fits=lambda value: isinstance(value, kinds))


def _anything(does: str) -> Keyword:
    """Checked where it is read."""
    return Keyword(does=does, takes="", fits=lambda value: True)


def _or_none(keyword: Keyword) -> Keyword:
    return Keyword(does=keyword.does, takes=f"{keyword.takes}, or None", fits=keyword.fits, optional=True)


KEYWORDS: Mapping[str, Keyword] = MappingProxyType(
    {
        "learning_rate": _or_none(
            _number(
                "The step's rate. None takes trainer_args['learning_rate'] of the model, and without one "
                "what the literature gives for the model's size; the metric loss/learning_rate says what "
                "it was.",
                above=0,
            )
        ),
        "algorithm": _or_none(
            _anything(
                "A name of docs/algorithms.md, a dict of a name and parts, or an art.Algorithm. None: 'art', "
                "whose rollouts count the same whatever their length."
            )
        ),
        "loss_fn": _or_none(
            _kind("The loss alone, by name: 'cispo' (the default), 'ppo' ...", "a name", str)
        ),
        "loss_fn_config": _or_none(_kind("The loss's parameters by name.", "a dict", Mapping)),
        "ppo": _or_none(_flag("True is loss_fn='ppo', False is loss_fn='cispo'.")),
        "epsilon": _or_none(_number("The clip's lower bound is 1 - epsilon.", least=0)),
        "epsilon_high": _or_none(_number("The clip's upper bound is 1 + epsilon_high.", least=0)),
        "normalize_advantages": _flag("False: advantages are not divided by the group's standard deviation."),
        "scale_rewards": _flag("False: the same."),
        "advantage_balance": _number(
            "Above 0: negative advantages count 1 - balance; below 0: positive ones count 1 + balance.",
            least=-1,
            most=1,
        ),
        "importance_sampling_level": _or_none(
            _kind("The ratio is of the token, sequence (GSPO), average or geometric_average.", "a name", str)
        ),
        "max_negative_advantage_importance_sampling_weight": _or_none(
            _number("No ratio exceeds it, whatever the advantage's sign.", above=0)
        ),
        "mask_prob_ratio": _flag("Tokens whose ratio is outside the clip's bounds do not count."),
        "truncated_importance_sampling": _or_none(
            _number("Bounds the weight that corrects for engine and trainer disagreeing.", above=0)
        ),
        "precalculate_logprobs": _flag(
            "The ratio divides by the trainer's logprobs before the step, not by the sampler's. With one "
            "update the two are the same, so the loss is 'reinforce'."
        ),
        "kimi_k2_tau": _or_none(_number("Advantage - tau x (logprob - logprob when sampled).", least=0)),
        "kl_penalty_coef": _or_none(
            _number("Advantage + coefficient x (mean kl - kl), kl to the reference.", least=0)
        ),
        "kl_penalty_reference_step": _or_none(
            _whole("The reference is this step of the model; without one, its base.", least=0)
        ),
        "kl_ref_adapter_path": _or_none(
            _kind(
                "The reference is the LoRA in this folder (PEFT's two files): a checkpoint_path of the "
                "project, and with LocalBackend any folder. It wins over the step.",
                "a path",
                str,
            )
        ),
        "adam_params": _or_none(
            _kind(
                "A dict of betas, eps, weight_decay, max_grad_norm, warmup_steps, lr_scheduler_type, "
                "max_steps, over trainer_args of the model.",
                "a dict",
                Mapping,
            )
        ),
        "grad_accumulation_sequences": _or_none(
            _whole(
                "One optimizer step for at most so many rollouts, in a random order; without it one for "
                "all of them.",
                least=1,
            )
        ),
        "num_trajectories_learning_rate_multiplier_power": _number(
            "The rate is multiplied by (number of trained rollouts) to this power."
        ),
        "scale_learning_rate_by_reward_std_dev": _flag(
            "The rate is multiplied by the mean over the groups of their rewards' standard deviation."
        ),
        "packed_sequence_length": _or_none(
            _whole(
                "Tokens forwarded at once. A rollout with a longer sample is left out as overlong, which "
                "the result's sheet says.",
                least=1,
            )
        ),
        "logprob_calculation_chunk_size": _whole(
            "At most so many rows of logits exist at once. 1024, the default, leaves it to the trainer, "
            "whose logits take 64 MiB at most.",
            least=1,
        ),
        "plot_tensors": _flag(
            "Draws the step's token tree into the model's folder, `packed_tensors_plot_<step>.png` (extra "
            "`plotting`)."
        ),
        "allow_training_without_logprobs": _flag(
            "True: what assistants say in dicts (and in choices without a sample) is trained with the "
            "trajectory's advantage. It has no sampling logprob: its ratio is to the trainer's own, before "
            "the step's first update. Sampled tokens keep theirs."
        ),
        "save_checkpoint": _flag("False: the result has no checkpoint_path. The checkpoint is saved always."),
        "expected_step": _or_none(_whole("The call is refused when the model is at another step.", least=0)),
        "max_steps_off_policy": _or_none(
            _whole(
                "A rollout with a sample that is more steps old than so many is stale: it is not trained, "
                "and the result's sheet says so. None: 16, the server's `max_off_policy_steps`, which "
                "always holds.",
                least=0,
            )
        ),
        "discarded_groups": _or_none(
            _anything(
                "Groups that your program leaves out, such as those of equal rewards: they are on the "
                "result's sheet, in rollouts and tokens, and nowhere else."
            )
        ),
        "job_id": _or_none(
            _kind(
                "The training job's id, which names one batch for ever: after a crash, "
                "`await backend.training_result(model, job_id)` says whether it made a step. None: a new "
                "one.",
                "a name",
                str,
            )
        ),
        "verbose": Keyword(
            does="Shows a progress bar.",
            takes="True, False, 0, 1 or 2",
            fits=lambda value: value in (0, 1, 2),
        ),
    }
)

_ROUTING = "routing is computed anew. truncated_importance_sampling corrects for what differs."

REFUSED: Mapping[str, Refused] = MappingProxyType(
    {
        "moe_routing_replay_bundle": Refused(neutral=(None,), instead=_ROUTING),
        "moe_routing_replay_path": Refused(neutral=(None,), instead=_ROUTING),
        "moe_routing_replay_strict": Refused(neutral=(False, None), instead=_ROUTING),
    }
)


def refuse_unknown(options: Mapping[str, Any]) -> None:
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
            raise ConfigurationError(f"train({name}={value!r}): no such option{meant(name, KEYWORDS)}")
        if not (keyword.optional if value is None else keyword.fits(value)):
            raise ConfigurationError(f"train({name}={value!r}): it is {keyword.takes}")
