"""What a `PipelineTrainer` was asked for, checked before anything runs, and the checkpoints it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict

from art.backend import Keyword, LearningOptions, Refused
from art.client.options.declared_options import declared_options
from art.client.requests.train_request import algorithm_of
from art.errors import ConfigurationError, NotBuiltError
from art.tracking.names import spellings
from art.tracking.rollout_figures import has_signal
from art.trajectories import TrajectoryGroup

CHECKPOINT_CREATED_AT_METRIC = "checkpoint/created_at_unix"
CHECKPOINT_EVAL_COMPLETED_METRIC = "checkpoint/eval_completed"
CHECKPOINT_EVAL_FAILED_METRIC = "checkpoint/eval_failed"
CHECKPOINT_SAVED_METRIC = "checkpoint/saved"


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that may be deleted. created_at: seconds since 1970, None where unknown."""

    step: int
    path: str | None = None
    created_at: float | None = None
    is_eval_step: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointRetentionContext:
    """The input of a retention strategy: the newest step, and the checkpoints to decide about.

    The newest checkpoint, those in use and those that wait for an evaluation are not among them.
    """

    current_step: int
    checkpoints: Sequence[CheckpointInfo]


CheckpointRetentionStrategy = Callable[[CheckpointRetentionContext], set[int]]
"""Returns the steps to keep."""


def keep_recent_and_top(
    recent: int = 5, top: int = 2, metric: str = "val/reward"
) -> CheckpointRetentionStrategy:
    """A strategy: keep the `recent` newest checkpoints and the `top` best by `metric`, the newer of equals.
    `reward/val` is another spelling of `val/reward`.

    Raises ConfigurationError for negative numbers.
    """
    if recent < 0 or top < 0:
        raise ConfigurationError(f"keep_recent_and_top({recent=}, {top=}): neither may be negative")

    def score(checkpoint: CheckpointInfo) -> float:
        known = (checkpoint.metrics[name] for name in spellings(metric) if name in checkpoint.metrics)
        return next(known, math.nan)

    def keep(context: CheckpointRetentionContext) -> set[int]:
        newest = sorted((checkpoint.step for checkpoint in context.checkpoints), reverse=True)
        scored = [
            (found, checkpoint.step)
            for checkpoint in context.checkpoints
            if not math.isnan(found := score(checkpoint))
        ]
        best = sorted(scored, reverse=True)
        return {*newest[:recent], *(step for _, step in best[:top])}

    return keep


WITHOUT_SPREAD = frozenset({"group", "centered", "batch_std", "rloo", "maxrl", "gdpo"})
"""Advantages that are exactly zero in a group of equal rewards, or of equal parts."""
HasSignal = Callable[[TrajectoryGroup], bool]


class PipelineRuntimeConfig(BaseModel):
    """The numbers of a pipeline that `apply_pipeline_settings` changes while it runs, in one object; each is
    the keyword of `PipelineTrainer` of its name.
    """

    model_config = ConfigDict(extra="forbid")

    num_rollout_workers: int = 16
    min_batch_size: int = 4
    max_batch_size: int | None = None
    queue_maxsize: int | None = None
    score_reference_groups_per_step: float | None = 8.0
    score_reference_rollouts_per_group: float | None = None


class PipelineOptions(LearningOptions, total=False):
    """The keywords of `PipelineTrainer`: its own, and those of `train` that say how a step learns."""

    num_rollout_workers: Annotated[int, Keyword(16, least=1)]
    """The number of groups that are sampled side by side."""
    min_batch_size: Annotated[int, Keyword(4, least=1)]
    """The fewest groups of one training step. Only the last step may have fewer."""
    max_batch_size: Annotated[int | None, Keyword(least=1)]
    """The most groups of one training step, where more are waiting. None: ten times `min_batch_size`."""
    max_steps_off_policy: Annotated[int | None, Keyword(4, least=0)]
    """A group that began more steps ago is stale and is not trained. At most `min_batch_size *
    (max_steps_off_policy + 1)` groups are under way, since more would be stale before their turn. With 0,
    training is on-policy: no group begins while the trainer works. None: no limit but the server's
    `max_off_policy_steps`, 16; the workers wait only while the queue is full.
    """
    limit_mean_steps_off_policy: Annotated[float | None, Keyword(least=0)]
    """The most steps that the groups of one training step began before it, on average. The oldest groups
    above that are stale. None: no limit.
    """
    queue_maxsize: Annotated[int | None, Keyword(least=1)]
    """The most finished groups that wait for the trainer. When the queue is full, workers wait. None:
    `max_steps_off_policy * max_batch_size`, with 4 for a `max_steps_off_policy` of None.
    """
    max_steps: Annotated[int | None, Keyword(least=1)]
    """The number of training steps of the run, including those before a resume. None: no limit."""
    discard_queue_multiplier: Annotated[int, Keyword(100, least=1)]
    """The run ends after this many times `min_batch_size` groups in a row had equal rewards or failed. The
    log then says MODEL COLLAPSE DETECTED. It says NOTHING LEFT TO LEARN if none failed and their mean reward
    is in the upper tenth of the range of the run so far, as that of a solved task is.
    """
    log_interval_seconds: Annotated[float, Keyword(60.0, above=0)]
    """The seconds between two status lines in the log."""
    status_ewa_alpha: Annotated[float, Keyword(0.2, above=0, most=1)]
    """The weight of the newest step in the moving averages of the status line."""
    total_scenarios: Annotated[int | None, Keyword(least=1)]
    """The total that the status line shows. None: the length of the scenarios, where it is known."""
    eval_every_n_steps: Annotated[int, Keyword(20, least=0)]
    """The number of steps between two evaluations. `eval_fn(model, step, config)` runs beside the training,
    on the adapter of its own step: `model.get_inference_name()` is that step's. 0: evaluate only at the
    start. An evaluation that raises is run a second time, after the next one or at the end. After a second
    failure the training continues: `checkpoint/eval_failed` has a row at that step, `failed_eval_steps` in
    the state has the step, and the last line of the run names it.
    """
    eval_at_start: Annotated[bool, Keyword(True)]
    """Evaluate before the first step."""
    save_checkpoint: Annotated[bool, Keyword(True)]
    """Name the checkpoint in the result of each evaluated step. The server keeps all checkpoints anyway."""
    checkpoint_retention_strategy: CheckpointRetentionStrategy | None
    """A function that returns the steps to keep, such as `keep_recent_and_top(recent=5, top=2)`. The newest
    step, steps that wait for an evaluation, and steps in use are kept in any case. None: keep all.
    """
    checkpoint_retention_interval: Annotated[int, Keyword(1, least=1)]
    """The number of steps between two calls of the retention strategy."""
    resume: Annotated[bool, Keyword(True)]
    """Continue where an earlier run of the model stopped. False: start new counts at the model's newest step.
    """
    pipeline: PipelineRuntimeConfig | None
    """A `PipelineRuntimeConfig`: workers, batch sizes and queue in one object, in place of their keywords."""
    autotune: Any | None
    """An `art.PipelineAutotuneConfig`: tunes `num_rollout_workers` while the run trains. None: it stays."""
    eval_step_0: bool | None
    """The older name of eval_at_start."""


_NO_SCORE = (
    "no score of a pipeline is computed, and a tuner compares numbers of workers by their groups a second, "
    "which a reference does not change; leave it out"
)
UNBUILT: Mapping[str, Refused] = MappingProxyType(
    {
        "rollout_executor": Refused(
            neutral=(None,),
            instead="rollouts run in this program's event loop; what blocks it goes to an executor inside of "
            "rollout_fn: `await asyncio.get_running_loop().run_in_executor(executor, function, *arguments)`",
        ),
        "score_reference_groups_per_step": Refused(neutral=(None, 8.0), instead=_NO_SCORE),
        "score_reference_rollouts_per_group": Refused(neutral=(None,), instead=_NO_SCORE),
    }
)
"""Keywords of newer releases that do nothing here."""


_TAKEN_OVER = {"learning_rate": 1e-5, "loss_fn": "cispo"}
"""Keywords of `train` that have another default here."""
KEYWORDS = declared_options(PipelineOptions, **_TAKEN_OVER)
OWN = [name for name in KEYWORDS if name not in LearningOptions.__annotations__]
"""Keywords that are no keywords of `train`, or mean something else there."""
_HANDED_ON = (
    *("learning_rate", "loss_fn", "loss_fn_config", "normalize_advantages", "adam_params"),
    "packed_sequence_length",
)
"""Keywords of `train` that are given to a backend whatever the program says."""


def pipeline_settings(options: Mapping[str, Any]) -> PipelineOptions:
    """The trainer's own keywords among those of a call, with their defaults. Raises ConfigurationError."""
    said = {name: options.get(name, KEYWORDS[name].default) for name in OWN}
    _refuse_unbuilt(options)
    if said["pipeline"] is not None:
        runtime = runtime_options(said["pipeline"])
        if beside := [name for name in runtime if options.get(name) is not None]:
            raise ConfigurationError(
                f"PipelineTrainer(pipeline=..., {beside[0]}={options[beside[0]]!r}): the config has this "
                "number too; give one of the two"
            )
        said |= runtime
    if said["eval_step_0"] is not None:
        said["eval_at_start"] = said["eval_step_0"]
    _check_values(said)
    return cast(PipelineOptions, said)


def runtime_options(config: Any) -> dict[str, int | None]:
    """The keywords that a `PipelineRuntimeConfig` stands for. Raises ConfigurationError for a wrong number,
    and NotBuiltError for one that would do nothing.
    """
    if not isinstance(config, PipelineRuntimeConfig):
        raise ConfigurationError(f"{config!r} is no art.PipelineRuntimeConfig")
    _refuse_unbuilt(config.model_dump())
    given = config.model_dump(exclude=set(UNBUILT))
    _check_values(given)
    return given


def settings_metrics(settings: PipelineOptions) -> dict[str, float]:
    """Returns the numbers of a `PipelineRuntimeConfig` for the row of a step."""
    given = {name: settings.get(name) for name in PipelineRuntimeConfig.model_fields}
    return {f"pipeline_settings/{name}": float(n) for name, n in given.items() if isinstance(n, int)}


def _refuse_unbuilt(options: Mapping[str, Any]) -> None:
    for name, refused in UNBUILT.items():
        if (value := options.get(name)) not in refused.neutral:
            raise NotBuiltError(f"PipelineTrainer({name}={value!r}) is not built yet: {refused.instead}")


def _check_values(settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if not KEYWORDS[name].fits(value):
            raise _wrong_value_error(name, value, KEYWORDS[name].takes)
    most, least = settings["max_batch_size"], settings["min_batch_size"]
    if most is not None and most < least:
        raise _wrong_value_error("max_batch_size", most, f"at least min_batch_size = {least!r}")


def train_options(options: Mapping[str, Any], *, is_art_backend: bool) -> dict[str, Any]:
    """The keywords of `train` among those of a call.

    is_art_backend: the backend is one of this package; others are given no keyword that says nothing.
    """
    handed_on = {name: KEYWORDS[name].default for name in _HANDED_ON}
    chosen = {**handed_on, **{name: options[name] for name in options if name not in {*OWN, *UNBUILT}}}
    if "algorithm" in options and chosen["loss_fn"] == "cispo":
        chosen["loss_fn"] = None
    return chosen if is_art_backend else {name: value for name, value in chosen.items() if value is not None}


def most_groups(settings: PipelineOptions) -> int:
    """Returns the most groups of one training step."""
    return settings["max_batch_size"] or 10 * settings["min_batch_size"]


def queue_size(settings: PipelineOptions) -> int:
    """Finished groups that may wait for the trainer."""
    limit = settings["max_steps_off_policy"]
    steps = KEYWORDS["max_steps_off_policy"].default if limit is None else limit
    return settings["queue_maxsize"] or max(1, steps * most_groups(settings))


def collapse_after(settings: PipelineOptions) -> int:
    """Returns the number of consecutive groups without a gradient that end the run."""
    return settings["discard_queue_multiplier"] * settings["min_batch_size"]


def most_under_way(settings: PipelineOptions) -> float:
    """Groups that may be begun and not trained: more would be stale before their turn came."""
    limit = settings["max_steps_off_policy"]
    return math.inf if limit is None else settings["min_batch_size"] * (limit + 1)


def is_eval_step(settings: PipelineOptions, step: int) -> bool:
    """Returns whether a step is evaluated after it was trained."""
    every = settings["eval_every_n_steps"]
    return every > 0 and step % every == 0


def check_training(options: Mapping[str, Any], *, is_art_backend: bool) -> HasSignal | None:
    """Returns what a group must have to teach anything under these keywords of `train`; None: every one does.

    is_art_backend: the backend is one of this package, whose keywords are known. Raises ConfigurationError
    for a keyword that is unknown, cannot act, or has a wrong value.
    """
    from art.client.options.train_options import refuse_unknown_keywords

    if not is_art_backend:
        return has_signal
    refuse_unknown_keywords(options)
    for name in ("expected_step", "job_id", "discarded_groups"):
        if name in options:
            raise ConfigurationError(
                f"PipelineTrainer({name}={options[name]!r}): the trainer chooses it itself"
            )
    algorithm = algorithm_of(options)
    other_gradients = (algorithm.kl, algorithm.critic, algorithm.teacher, algorithm.entropy)
    if algorithm.advantage.kind not in WITHOUT_SPREAD or other_gradients != (None,) * 4:
        return None
    return partial(has_signal, parts=tuple(algorithm.reward_parts))


def _wrong_value_error(name: str, value: Any, takes: str) -> ConfigurationError:
    return ConfigurationError(f"PipelineTrainer({name}={value!r}): it is {takes}")
