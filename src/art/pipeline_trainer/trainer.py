"""`PipelineTrainer`: rollouts go on while the trainer works."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from art.errors import ConfigurationError
from art.foreign_backend import as_backend
from art.pipeline_trainer.alone import alone_with
from art.pipeline_trainer.rollout import EvalFn, RolloutFn, ScenarioT
from art.pipeline_trainer.rollout import make_group_rollout_fn as make_group_rollout_fn
from art.pipeline_trainer.run import Run
from art.pipeline_trainer.scenarios import ScenarioStream
from art.pipeline_trainer.settings import (
    KEYWORDS,
    PipelineOptions,
    check_training,
    most_under_way,
    pipeline_settings,
    train_options,
)
from art.pipeline_trainer.signals import stopping_on_signals
from art.pipeline_trainer.status import StatusReporter
from art.remote.keywords import signed_with

if TYPE_CHECKING:
    from art.backend import Backend
    from art.model import TrainableModel

ConfigT = TypeVar("ConfigT")

_log = logging.getLogger(__name__)


class PipelineTrainer(Generic[ScenarioT, ConfigT]):
    """Samples groups with some workers, trains on those that are finished, and evaluates beside both.

    rollout_fn(model, scenario, config) gives one group (`make_group_rollout_fn` makes it of a function of one
    attempt); scenarios is an iterable or an async iterator of dicts, the same one in every run of a model;
    eval_fn(model, step, config) gives trajectories, or a dict of splits. Every request gets the newest
    adapter and ends on it. `PipelineOptions` declares the keywords, and `docs/pipeline.md` has the numbers
    and their effects; a backend of another kind is given further keywords of its `train` as they are.

    Raises ConfigurationError (a ValueError) for a number out of its range, and for an option of `train` that
    is unknown, cannot act or does not fit another.
    """

    @signed_with(KEYWORDS)
    def __init__(
        self,
        model: TrainableModel[Any, Any],
        backend: Backend,
        rollout_fn: RolloutFn[ScenarioT, ConfigT],
        scenarios: Iterable[ScenarioT] | AsyncIterable[ScenarioT],
        config: ConfigT,
        eval_fn: EvalFn[ConfigT] | None = None,
        **options: Unpack[PipelineOptions],
    ) -> None:
        self._settings = pipeline_settings(options)
        _tell_of_idle_workers(self._settings["num_rollout_workers"], most_under_way(self._settings))
        self._model, self._backend = model, as_backend(backend)
        self._ours = hasattr(self._backend, "training_result")
        self._rollout_fn, self._eval_fn, self._config = rollout_fn, eval_fn, config
        self._stream = ScenarioStream(scenarios)
        self._options = train_options(options, ours=self._ours)
        self._needs_spread = check_training(self._options, ours=self._ours)
        if self._settings["checkpoint_retention_strategy"] is not None and not self._ours:
            raise _lists_no_checkpoints(backend)
        self._run: Run | None = None

    async def train(self, *, handle_signals: bool = True) -> None:
        """Run until the scenarios or `max_steps` end, or `request_stop` is called.

        A run that was stopped or killed goes on where it was (`resume`): groups that were not trained are
        sampled again, none is trained twice. handle_signals: SIGINT and SIGTERM call `request_stop`.

        Raises what `backend.train` raises, and ConfigurationError while another PipelineTrainer trains the
        model; an error of a rollout or an evaluation is logged and counted.
        """
        if self._run is not None:
            raise RuntimeError("this PipelineTrainer is training; make another one for another run")
        if self._model._backend is None:
            await self._model.register(self._backend)
        settings = self._settings
        reporter = StatusReporter(
            log_interval_seconds=settings["log_interval_seconds"],
            ewa_alpha=settings["status_ewa_alpha"],
            total_scenarios=settings["total_scenarios"] or self._stream.length,
            title=f"train {self._model.name}",
        )
        self._run = run = Run(
            self._model,
            self._backend,
            settings,
            options=self._options,
            ours=self._ours,
            needs_spread=self._needs_spread,
        )
        watched = stopping_on_signals(self.request_stop) if handle_signals else contextlib.nullcontext()
        try:
            with alone_with(self._model), watched:
                await run.open()
                self._stream.rewind()
                await run.train(self._stream, self._rollout_fn, self._eval_fn, self._config, reporter)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            self._run = None

    def request_stop(self) -> None:
        """End soon: no more scenarios are taken, groups that have begun are finished and trained."""
        if self._run is not None:
            self._run.stop()


def _lists_no_checkpoints(backend: Any) -> ConfigurationError:
    return ConfigurationError(
        f"PipelineTrainer(checkpoint_retention_strategy=...): {type(backend).__name__} does not say "
        "which checkpoints there are; leave it out, or use a backend of this package"
    )


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The error of the first part that failed."""
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _tell_of_idle_workers(workers: int, most_under_way: int) -> None:
    if workers > most_under_way:
        _log.warning(
            "num_rollout_workers=%d: at most min_batch_size x (max_steps_off_policy + 1) = %d groups are "
            "under way at a time; more would be stale before they are trained",
            workers,
            most_under_way,
        )
