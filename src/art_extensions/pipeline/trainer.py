"""`PipelineTrainer`: rollouts go on while the trainer works.

    scenarios -> workers (paced) -> queue -> batch -> backend.train -> newest step -> workers

Workers and trainer meet at the queue alone; the pace keeps the first from running too far ahead. Only one
run at a time may train a model: two would undo each other's state and logs. SIGINT and SIGTERM ask the run
to end soon; a second signal does what it always did.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from art.backend import as_backend
from art.client.options.declared_options import signed_with
from art.errors import ConfigurationError
from art.extensions import TUNER, load_extension
from art.process.files import make_private_folder, take_lock
from art.tracking.folders import ModelPaths
from art_extensions.pipeline.batch import BatchCollector
from art_extensions.pipeline.checkpoints import Evaluations, apply_retention
from art_extensions.pipeline.pipeline_state import PipelineState, RolloutPace, ScenarioOutcome
from art_extensions.pipeline.rollout_workers import (
    EvalFn,
    FinishedGroup,
    RolloutFn,
    RolloutWorkers,
    ScenarioStream,
    ScenarioT,
)
from art_extensions.pipeline.rollout_workers import make_group_rollout_fn as make_group_rollout_fn
from art_extensions.pipeline.settings import (
    KEYWORDS,
    HasSignal,
    PipelineOptions,
    PipelineRuntimeConfig,
    check_training,
    is_eval_step,
    most_under_way,
    pipeline_settings,
    queue_size,
    runtime_options,
    settings_metrics,
    train_options,
)
from art_extensions.pipeline.status import Status, StatusReporter
from art_extensions.pipeline.training_steps import TrainingSteps

if TYPE_CHECKING:
    from art.backend import Backend
    from art.model import TrainableModel


@contextmanager
def lock_model(model: Any) -> Iterator[None]:
    """Holds the model's lock, which the kernel drops when this process dies.

    Raises ConfigurationError while another run holds it, in this process or another.
    """
    folder = ModelPaths.of_model(model)
    make_private_folder(folder.path)
    descriptor = take_lock(folder.run_lock)
    if descriptor is None:
        raise ConfigurationError(
            f"another PipelineTrainer is training the model {model.name!r} in {str(folder.path)!r}: wait for "
            "it, stop it, or give this one a model of another name"
        )
    try:
        yield
    finally:
        os.close(descriptor)


_log = logging.getLogger("art.runs.pipeline")  # below `art`, so that `show_log` shows its lines

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` on the first signal inside the block; later signals have their earlier effect again.

    Nothing is changed outside the main thread, or where the event loop knows no signals (Windows).
    """
    loop, before = asyncio.get_running_loop(), {one: signal.getsignal(one) for one in SIGNALS}

    def restore() -> None:
        for one, handler in before.items():
            loop.remove_signal_handler(one)
            signal.signal(one, handler)

    def received(one: signal.Signals) -> None:
        _log.warning("%s: current work is finished first; once more ends it at once", one.name)
        restore()
        stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        for one in SIGNALS:
            loop.add_signal_handler(one, received, one)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        restore()


OUTCOME_WORDS: Mapping[ScenarioOutcome, str] = {
    "trained": "were trained",
    "discarded": "had equal rewards",
    "stale": "were stale",
    "failed": "failed",
}


OnStep = Callable[[Mapping[str, float]], Awaitable[None]]
"""Is called after each step with the numbers of its row and, by `OUTCOME_WORDS`, the run's groups so far."""


class PipelineRun:
    """One run, from `open` to the end of `train`; used once."""

    def __init__(
        self,
        model: Any,
        backend: Any,
        settings: PipelineOptions,
        *,
        options: Mapping[str, Any],
        is_art_backend: bool,
        has_signal: HasSignal | None,
        on_step: OnStep | None,
    ) -> None:
        """options: keywords of `backend.train`. is_art_backend: one of this package, which knows jobs."""
        self._model, self._backend, self._settings = model, backend, settings
        self._has_signal, self._on_step = has_signal, on_step
        self._pace = RolloutPace(lambda: most_under_way(settings), batch=lambda: settings["min_batch_size"])
        self._queue: asyncio.Queue[FinishedGroup | None] = asyncio.Queue()
        """Unbounded: `queue_size`, which may change, bounds what the workers put there."""
        self._workers: RolloutWorkers | None = None
        self._steps = TrainingSteps(
            model, backend, settings, options=options, is_art_backend=is_art_backend, pace=self._pace
        )

    @property
    def _state(self) -> PipelineState:
        return self._steps.state

    async def open(self) -> None:
        """Resumes from the model's state, or starts. Raises the backend's errors."""
        await self._steps.open()

    async def train(
        self,
        stream: ScenarioStream,
        rollout_fn: RolloutFn[Any, Any],
        eval_fn: EvalFn[Any] | None,
        config: Any,
        reporter: StatusReporter,
    ) -> None:
        """Trains until the scenarios or the steps end, a stop is requested, or groups give no gradient any
        more.
        """
        workers = self._workers = RolloutWorkers(
            self._model,
            rollout_fn,
            config,
            stream=stream,
            state=self._state,
            pace=self._pace,
            queue=self._queue,
            version=lambda: self._state.training_step,
            wanted=lambda: self._settings["num_rollout_workers"],
            most_queued=lambda: queue_size(self._settings),
        )
        evaluations = Evaluations(
            self._model, self._backend, eval_fn, config, state=self._state, save=self._steps.save
        )
        self._schedule_first(evaluations)
        collector = BatchCollector(
            self._queue, self._settings, has_signal=self._has_signal, on_group=self._on_group
        )
        async with asyncio.TaskGroup() as tasks:
            status = tasks.create_task(reporter.run(lambda: self._status(workers)), name="status")
            evaluating = tasks.create_task(evaluations.run(), name="evaluations")
            rolling = tasks.create_task(workers.run(), name="rollouts")
            try:
                await self._train_all(collector, workers, evaluations, reporter, stream)
            finally:
                self.stop()
                rolling.cancel()
                await asyncio.wait([rolling])
                workers.failures.log_count(workers.rollouts)
                for finished in collector.drain():
                    stream.again.append(finished.numbered)
                await self._steps.save()
            evaluations.end()
            await evaluating
            status.cancel()

    def stop(self) -> None:
        """Take no more scenarios; groups that have begun are finished and trained."""
        self._pace.stop()

    def adjust(self) -> None:
        """The settings have changed."""
        if self._workers is not None:
            self._workers.adjust()
        self._pace.wake_workers()

    async def _train_all(
        self,
        collector: BatchCollector,
        workers: RolloutWorkers,
        evaluations: Evaluations,
        reporter: StatusReporter,
        stream: ScenarioStream,
    ) -> None:
        most, ended = self._settings["max_steps"], False
        while not ended and (most is None or self._steps.made < most):
            began, busy, idle = time.monotonic(), workers.busy_s, workers.idle_s
            batch = await collector.collect(self._state.training_step)
            ended = batch.ended or collector.exhausted
            if not batch.groups:
                await self._steps.log_discarded(batch)
                break
            collected = time.monotonic()
            off_policy = batch.steps_off_policy(self._state.training_step)
            try:
                result = await self._steps.train(batch)
            except BaseException:
                for finished in batch.groups:
                    stream.again.append(finished.numbered)
                raise
            reporter.step_done(result.step, time.monotonic())
            metrics = {
                "steps_off_policy": off_policy,
                "time/step_wall_s": time.monotonic() - began,
                "time/step_trainer_s": time.monotonic() - collected,
                "time/step_actor_s": workers.busy_s - busy,
                "throughput/step_trainer_idle_s": collected - began,
                "throughput/step_actor_idle_s": workers.idle_s - idle,
                "pipeline/running_groups": float(workers.running),
                "pipeline/queued_groups": float(self._queue.qsize()),
                **settings_metrics(self._settings),
            }
            await self._steps.log(batch, result, metrics)
            await self._finish_step(result.step, evaluations)
            if self._on_step is not None:
                await self._on_step(dict(metrics, **self._state.outcomes))
        if collector.exhausted:
            collector.tell_end(self._model.name, self._state.training_step)
        self._log_end("groups without a gradient" if collector.exhausted else None)

    def _log_end(self, reason: str | None) -> None:
        """Logs why the run ends, and the outcomes of its groups. reason: None for one that is seen here."""
        made, most, counts = self._steps.made, self._settings["max_steps"], self._state.outcomes
        complete = most is None or made >= most
        if reason is None and self._pace.stopped:
            reason = "a stop was requested"
        elif reason is None:
            reason = "max_steps are made" if most is not None and made >= most else "scenarios exhausted"
        settled = sum(counts.values())
        shares = (
            f"{count} ({count / settled:.0%}) {words}"
            for outcome, words in OUTCOME_WORDS.items()
            if (count := counts[outcome])
        )
        _log.log(
            logging.INFO if complete and not self._pace.stopped else logging.WARNING,
            "%s stopped: %s at step %d%s; of %d groups %s",
            self._model.name,
            reason,
            made,
            f" of {most}" if most is not None else "",
            settled,
            ", ".join(shares) or "none was finished",
        )

    async def _finish_step(self, step: int, evaluations: Evaluations) -> None:
        """Finishes a step: the entry in the state, its evaluation, and old checkpoints to delete."""
        if is_eval_step(self._settings, step):
            evaluations.schedule(step)
        await self._steps.finish_step(step)
        strategy = self._settings["checkpoint_retention_strategy"]
        if strategy is not None and self._steps.made % self._settings["checkpoint_retention_interval"] == 0:
            await apply_retention(
                self._model,
                self._backend,
                strategy,
                self._settings,
                current=step,
                waiting=self._state.waiting_evals | self._steps.coming_references(step),
            )

    def _status(self, workers: RolloutWorkers) -> Status:
        outcomes, most = self._state.outcomes, self._settings["max_steps"]
        return Status(
            step=self._steps.made,
            max_steps=most,
            settled=self._state.settled_scenarios,
            running=workers.running,
            queued=self._queue.qsize(),
            discarded=outcomes["discarded"],
            stale=outcomes["stale"],
            failed=outcomes["failed"],
            failed_evals=len(self._state.failed_evals),
            reward=self._steps.reward,
        )

    def _on_group(self, finished: FinishedGroup, outcome: ScenarioOutcome | None) -> None:
        self._pace.wake_workers()  # the queue has room
        if outcome is not None:  # the others count as ahead until they are being trained
            self._pace.take_groups()
            self._state.record_outcome(finished.numbered.number, outcome)

    def _schedule_first(self, evaluations: Evaluations) -> None:
        """Evaluations that an earlier run did not come to, and that of the start."""
        for step in sorted(self._state.waiting_evals):
            evaluations.schedule(step)
        if self._settings["eval_at_start"] and not self._steps.made:
            evaluations.schedule(self._state.first_step)


ConfigT = TypeVar("ConfigT")


class PipelineTrainer(Generic[ScenarioT, ConfigT]):
    """Samples groups with some workers, trains on those that are finished, and evaluates beside both.

    rollout_fn(model, scenario, config) gives one group (`make_group_rollout_fn` makes it of a function of one
    rollout); scenarios is an iterable or an async iterator of dicts, the same one in every run of a model;
    eval_fn(model, step, config) gives trajectories, or a dict of splits. Every request gets the newest
    adapter and ends on it. `PipelineOptions` declares the keywords; a backend of another kind is given
    further keywords of its `train` as they are.

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
        _warn_of_idle_workers(self._settings["num_rollout_workers"], most_under_way(self._settings))
        self._model, self._backend = model, as_backend(backend)
        self._is_art_backend = hasattr(self._backend, "training_result")
        self._rollout_fn, self._eval_fn, self._config = rollout_fn, eval_fn, config
        self._stream = ScenarioStream(scenarios)
        self._options = train_options(options, is_art_backend=self._is_art_backend)
        self._has_signal = check_training(self._options, is_art_backend=self._is_art_backend)
        if self._settings["checkpoint_retention_strategy"] is not None and not self._is_art_backend:
            raise _lists_no_checkpoints(backend)
        self._run: PipelineRun | None = None
        tuned = options.get("autotune") is not None
        self._on_step = load_extension(TUNER, "pipeline")(self, model, options) if tuned else None

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
        self._run = run = PipelineRun(
            self._model,
            self._backend,
            settings,
            options=self._options,
            is_art_backend=self._is_art_backend,
            has_signal=self._has_signal,
            on_step=self._on_step,
        )
        watched = stopping_on_signals(self.request_stop) if handle_signals else contextlib.nullcontext()
        try:
            with lock_model(self._model), watched:
                await run.open()
                self._stream.rewind()
                await run.train(self._stream, self._rollout_fn, self._eval_fn, self._config, reporter)
        except BaseExceptionGroup as errors:
            raise _first_error(errors) from None
        finally:
            self._run = None

    def apply_pipeline_settings(self, settings: PipelineRuntimeConfig) -> None:
        """Changes workers, batch sizes and queue, also of a run under way; call it in the run's event loop.

        What has begun stays: a worker too many ends after its group, and a batch that is being trained keeps
        its size. Raises ConfigurationError for a wrong number.
        """
        self._settings |= runtime_options(settings)  # type: ignore[typeddict-item]
        if self._run is not None:
            self._run.adjust()

    def request_stop(self) -> None:
        """End soon: no more scenarios are taken, groups that have begun are finished and trained."""
        if self._run is not None:
            self._run.stop()


def _lists_no_checkpoints(backend: Any) -> ConfigurationError:
    return ConfigurationError(
        f"PipelineTrainer(checkpoint_retention_strategy=...): {type(backend).__name__} does not say "
        "which checkpoints there are; leave it out, or use a backend of this package"
    )


def _first_error(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The error of the first part that failed."""
    first = errors.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


def _warn_of_idle_workers(workers: int, most_under_way: float) -> None:
    if workers > most_under_way:
        _log.warning(
            "num_rollout_workers=%d: at most min_batch_size x (max_steps_off_policy + 1) = %d groups are "
            "under way at a time; more would be stale before they are trained",
            workers,
            most_under_way,
        )
