"""Names of metrics: which section a number belongs to, which numbers add up over a run, and what older
versions called them. Pure functions.

    acc                     of split val is logged as val/acc
    loss/train              a section: stays as it is
    data/step_num_scenarios managed: added up, with the sum over the run as data/cum/num_scenarios
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from statistics import fmean
from typing import Any

from art.errors import ConfigurationError
from art.wire.jobs import BalanceSheet

SECTIONS = frozenset(
    "reward loss offpolicy pipeline throughput costs time data system "
    "objective pipeline_settings queue sample_efficiency discarded vllm".split()
)
SPLITS = frozenset({"train", "val", "test"})
STEP_COLUMN = "training_step"
"""The name of the step in a row of a model's log, and of the x axis of its charts."""
GRADIENT_STEPS = "data/step_num_gradient_steps"
NOTHING_TRAINED = {"data/step_trainer_tokens": 0.0, GRADIENT_STEPS: 0.0}
"""What a step reports of which no token could be trained."""
MANAGED_PREFIXES = ("costs/", "time/step_", "data/step_", "throughput/step_")
OLDER_NAMES = {
    "loss": "loss/train",
    "policy_loss": "loss/train",
    "entropy": "loss/entropy",
    "kl_div": "loss/kl_div",
    "kl_policy_ref": "loss/kl_policy_ref",
    "grad_norm": "loss/grad_norm",
    "learning_rate": "loss/learning_rate",
    "num_groups_submitted": "data/step_num_groups_submitted",
    "num_groups_trainable": "data/step_num_groups_trainable",
    "num_trajectories": "data/step_num_trajectories",
    "num_trainable_tokens": "data/step_trainer_tokens",
    "train_tokens": "data/step_trainer_tokens",
    "num_datums": "data/step_num_datums",
}
"""Names of 0.4, also found as `train/<name>`, and what they are called since."""
_OF_ROLLOUTS = {"data": "tokens", "time": "s", "throughput": "idle_s"}
ACTOR_NAMES = {
    f"{section}/{kind}rollout_{what}": f"{section}/{kind}actor_{what}"
    for section, what in _OF_ROLLOUTS.items()
    for kind in ("step_", "cum/")
} | {"throughput/avg_rollout_tok_per_s": "throughput/avg_actor_tok_per_s"}
"""Names of 0.5.19 and later -> those of the releases before. A run has the spelling of its program."""
ROLLOUT_NAMES = {older: newer for newer, older in ACTOR_NAMES.items()}


def route(name: str, split: str) -> str:
    """`acc` of split val is `val/acc`; `loss/train` stays. Other splits than train, val and test prefix
    all.
    """
    section = name.split("/", 1)[0]
    if split in SPLITS and "/" in name and section in SECTIONS | SPLITS:
        return name
    return f"{split}/{name}"


def spellings(metric: str) -> tuple[str, ...]:
    """The names of one metric, the given one first: `val/reward` and `reward/val`, `time/step_actor_s` and
    `time/step_rollout_s`.
    """
    if (other := ACTOR_NAMES.get(metric) or ROLLOUT_NAMES.get(metric)) is not None:
        return metric, other
    first, _, rest = metric.partition("/")
    name, _, last = metric.rpartition("/")
    if first in SPLITS and rest:
        return metric, f"{rest}/{first}"
    return (metric, f"{last}/{name}") if last in SPLITS and name else (metric,)


def is_managed(name: str) -> bool:
    """Returns whether a metric is added up (over rollouts, and over the run) instead of averaged."""
    return name.startswith(MANAGED_PREFIXES) and not name.startswith("costs/cum/")


def cumulative_name(name: str) -> str:
    """The name of a managed metric's sum over the run.

    Examples: `costs/train/judge` -> `costs/cum/train/judge`; `data/step_num_scenarios` ->
    `data/cum/num_scenarios`.
    """
    section, rest = name.split("/", 1)
    return f"{section}/cum/{rest.removeprefix('step_')}"


def check_name(name: str) -> None:
    """Refuse the cost names that are no longer used."""
    if name.removeprefix("train/").removeprefix("val/").removeprefix("test/").startswith("costs_"):
        raise ConfigurationError(
            "Legacy cost keys like 'costs_prefill' are no longer supported; "
            f"got {name!r}: name a cost 'costs/<what>', for example 'costs/train/prefill'"
        )


def number(name: str, value: Any) -> float:
    """The value of a metric. Raises ConfigurationError for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"metric {name!r} is {value!r}, which is no number") from error


def check_split(split: str) -> None:
    """A split names a folder of trajectories: refuse what would lead out of it."""
    if not split or split.startswith(".") or any(letter in split for letter in "/\\\0"):
        raise ConfigurationError(
            f"split {split!r} cannot name a folder: use a name without '/' and without a dot in front, "
            "such as 'train', 'val', 'versus-self'"
        )


def canonical_name(name: str) -> str | None:
    """Today's name of a metric of an older version; other names stay. None: no longer reported.

    Examples: `train/policy_loss` -> `loss/train`; `group_metric_judge` -> `group_judge`; `acc` stays.
    """
    bare = name.removeprefix("train/")
    if bare == "tokens_per_second":
        return None
    if bare.startswith("group_metric_"):
        return "group_" + bare.removeprefix("group_metric_")
    return OLDER_NAMES.get(bare, name)


def canonical_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics under today's names; where an older and today's name meet, today's wins."""
    renamed = {canonical_name(name): value for name, value in metrics.items()}
    translated = {name: value for name, value in renamed.items() if name is not None}
    return translated | {name: value for name, value in metrics.items() if canonical_name(name) == name}


def average_metrics(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the samples that have it; a sample is what one gradient step reported.

    The number of gradient steps is a fact about all samples: it must be the same in each. Raises
    ConfigurationError otherwise.
    """
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.items():
            values.setdefault(name, []).append(float(value))
    if len(counts := set(values.get(GRADIENT_STEPS, []))) > 1:
        raise ConfigurationError(
            f"{GRADIENT_STEPS!r} must be invariant, the same in every sample; got {sorted(counts)}"
        )
    return {name: fmean(found) for name, found in values.items()}


def sheet_metrics(sheet: BalanceSheet) -> dict[str, float]:
    """The balance sheet as metrics.

    Example: started 8 rollouts of 80 tokens, 6 of 60 trained and 2 of 20 unscored gives
    `data/sheet/started_rollouts` 8, `data/sheet/trained_rollouts` 6, `data/sheet/unscored_tokens` 20 and so
    on. Samples that are context, by reason: `data/sheet/context_greedy_samples`, `..._tokens`.
    """
    rows = {"started": sheet.started, **sheet.fates}
    metrics = {f"data/sheet/{fate}_rollouts": float(row.rollouts) for fate, row in rows.items()}
    metrics |= {f"data/sheet/{fate}_tokens": float(row.tokens) for fate, row in rows.items()}
    metrics |= {
        f"data/sheet/context_{reason}_samples": float(row.samples) for reason, row in sheet.context.items()
    }
    metrics |= {
        f"data/sheet/context_{reason}_tokens": float(row.tokens) for reason, row in sheet.context.items()
    }
    return metrics | {f"data/sheet/forks_{reason}": float(count) for reason, count in sheet.forks.items()}


def history_row(metrics: Mapping[str, float], *, step: int, wall_clock: float) -> dict[str, Any]:
    """One line of `history.jsonl`. Numbers that are not finite are left out. `wall_clock` in seconds."""
    row: dict[str, Any] = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return row | {
        STEP_COLUMN: step,
        "time/wall_clock_sec": wall_clock,
        "step": step,
        "recorded_at": datetime.now().astimezone().isoformat(),
    }
