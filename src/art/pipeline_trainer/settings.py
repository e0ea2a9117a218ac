"""What a `PipelineTrainer` was asked for, checked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from art.errors import ConfigurationError
from art.pipeline_trainer.retention import CheckpointRetentionStrategy

WITHOUT_SPREAD = frozenset({"group", "centered", "batch_std", "rloo", "maxrl"})
"""Advantages that are exactly zero in a group of equal rewards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineRuntimeConfig:
    """`PipelineTrainer(pipeline=...)`: numbers of the pipeline in one object. None: as without it."""

    num_rollout_workers: int | None = None
    min_batch_size: int | None = None
    max_batch_size: int | None = None
    max_steps_off_policy: int | None = None
    queue_maxsize: int | None = None

    def given(self) -> dict[str, int]:
        """The numbers that are named, which win over the trainer's keywords of the same names."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSettings:
    """The numbers of a run. Raises ConfigurationError (a ValueError) for one out of its range."""

    num_rollout_workers: int
    """Groups that are sampled side by side."""
    min_batch_size: int
    """Groups of one training step, at least; fewer only at the end."""
    max_batch_size: int | None
    """At most, where more are waiting. None: ten times the least."""
    max_steps_off_policy: int
    queue_maxsize: int | None
    """Finished groups that wait for the trainer. None: `max_steps_off_policy` largest batches."""
    max_steps: int | None
    """Training steps of the run, those before a resume included."""
    discard_queue_multiplier: int
    """The run ends when so many times `min_batch_size` groups in a row had equal rewards, or failed."""
    log_interval_seconds: float
    status_ewa_alpha: float
    total_scenarios: int | None
    """For the status line, where the stream's length cannot be known."""
    eval_every_n_steps: int
    """0: only at the start, where that is asked for."""
    eval_at_start: bool
    save_checkpoint: bool
    checkpoint_retention_strategy: CheckpointRetentionStrategy | None
    checkpoint_retention_interval: int
    resume: bool

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            _check(name, getattr(self, name), f"a whole number of at least {least}", _is_whole, least)
        for name in ("max_batch_size", "queue_maxsize", "max_steps", "total_scenarios"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, "a whole number of at least 1, or None", _is_whole, 1)
        _check("log_interval_seconds", self.log_interval_seconds, "a number above 0", _is_above, 0)
        _check("status_ewa_alpha", self.status_ewa_alpha, "a number above 0 and of at most 1", _is_above, 0)
        if self.status_ewa_alpha > 1:
            raise _wrong("status_ewa_alpha", self.status_ewa_alpha, "a number above 0 and of at most 1")
        if self.max_batch_size is not None and self.max_batch_size < self.min_batch_size:
            floor = f"at least min_batch_size = {self.min_batch_size!r}"
            raise _wrong("max_batch_size", self.max_batch_size, floor)

    @property
    def most_groups(self) -> int:
        """Of one training step."""
        return self.max_batch_size or 10 * self.min_batch_size

    @property
    def queue_size(self) -> int:
        return self.queue_maxsize or max(1, self.max_steps_off_policy * self.most_groups)

    @property
    def collapse_after(self) -> int:
        """So many groups in a row that teach nothing end the run."""
        return self.discard_queue_multiplier * self.min_batch_size

    @property
    def most_under_way(self) -> int:
        """Groups that may be begun and not trained: more would be stale before their turn came."""
        return self.min_batch_size * (self.max_steps_off_policy + 1)

    def is_eval_step(self, step: int) -> bool:
        """Whether a step is evaluated after it was trained."""
        return self.eval_every_n_steps > 0 and step % self.eval_every_n_steps == 0


_WHOLE: Mapping[str, int] = MappingProxyType(
    {
        "num_rollout_workers": 1,
        "min_batch_size": 1,
        "max_steps_off_policy": 0,
        "discard_queue_multiplier": 1,
        "eval_every_n_steps": 0,
        "checkpoint_retention_interval": 1,
    }
)


def settings_of(given: Mapping[str, Any]) -> PipelineSettings:
    """The settings among a constructor's arguments. Raises ConfigurationError."""
    pipeline, first = given["pipeline"], given["eval_step_0"]
    named = {} if pipeline is None else pipeline.given()
    older = {} if first is None else {"eval_at_start": first}
    chosen = {**given, **named, **older}
    return PipelineSettings(**{field.name: chosen[field.name] for field in fields(PipelineSettings)})


def check_training(options: Mapping[str, Any], *, ours: bool) -> bool:
    """Whether a group of equal rewards teaches nothing under these keywords of `train`.

    ours: the backend is one of this package, whose keywords are known. Raises ConfigurationError for a
    keyword that is unknown, cannot act, or has a wrong value.
    """
    from art.remote.keywords import refuse_unknown
    from art.remote.options import algorithm_of

    if not ours:
        return True
    refuse_unknown(options)
    for name in ("expected_step", "job_id", "discarded_groups", "max_steps_off_policy", "save_checkpoint"):
        if name in options:
            raise ConfigurationError(
                f"PipelineTrainer({name}={options[name]!r}): the trainer chooses it itself"
            )
    algorithm = algorithm_of(options)
    other_gradients = (algorithm.kl, algorithm.critic, algorithm.teacher)
    return algorithm.advantage.kind in WITHOUT_SPREAD and other_gradients == (None, None, None)


def _is_whole(value: Any, least: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _is_above(value: Any, bound: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and bound < float(value) < math.inf


def _check(name: str, value: Any, takes: str, fits: Any, bound: float) -> None:
    if not fits(value, bound):
        raise _wrong(name, value, takes)


def _wrong(name: str, value: Any, takes: str) -> ConfigurationError:
    return ConfigurationError(f"PipelineTrainer({name}={value!r}): it is {takes}")
