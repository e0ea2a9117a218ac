"""The tuner between a running trainer and the rule: figures of each step in, settings out.

The numbers that are not tuned stay as they are, also where the program changes them while it runs. If the
program changes the number of workers itself, the search starts again from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art_extensions.pipeline.settings import PipelineRuntimeConfig, most_under_way, pipeline_settings
from art_extensions.pipeline_tuner.config import PipelineAutotuneConfig
from art_extensions.pipeline_tuner.measurement import StepFigures
from art_extensions.pipeline_tuner.profiles import PipelineTunerProfile, PipelineTunerProfileStore
from art_extensions.pipeline_tuner.worker_search import WorkerSearch

if TYPE_CHECKING:
    from art.model import TrainableModel
    from art_extensions.pipeline.trainer import OnStep, PipelineTrainer

_log = logging.getLogger(__name__)

STATE_KEY = "_pipeline_tuner"
"""The entry of the model's state."""
WORKERS = "num_rollout_workers"
NUMBERS = (WORKERS, "min_batch_size", "max_batch_size", "queue_maxsize")


def tune_pipeline(
    trainer: PipelineTrainer[Any, Any], model: TrainableModel[Any, Any], options: Mapping[str, Any]
) -> OnStep | None:
    """Applies what is stored to the trainer, and returns its tuner; None where it changes nothing.

    options: the keywords of the trainer. Raises ConfigurationError.
    """
    config = options["autotune"]
    if not isinstance(config, PipelineAutotuneConfig):
        raise ConfigurationError(f"PipelineTrainer(autotune={config!r}) is no art.PipelineAutotuneConfig")
    given = pipeline_settings(options)
    start = PipelineRuntimeConfig(**{name: given[name] for name in NUMBERS})  # type: ignore[literal-required]
    if config.profile is not None:
        _refuse_two_numbers(config.profile, options)
        start = PipelineTunerProfileStore(model).load(config.profile).settings
        _log.info("%s starts from the profile %r: %s", model.name, config.profile, _numbers_of(start))
    if config.mode != "off" and given["resume"] and (workers := _stored_workers(model)) is not None:
        start = start.model_copy(update={WORKERS: workers})
        _log.info("%s goes on with %s = %d, as its state says", model.name, WORKERS, workers)
    trainer.apply_pipeline_settings(start)
    if config.mode == "off":
        return None
    limit = given["max_steps_off_policy"]
    return PipelineTuner(trainer, model, config, workers=start.num_rollout_workers, limit=limit).see_step


class PipelineTuner:
    """Tunes one trainer."""

    def __init__(
        self,
        trainer: PipelineTrainer[Any, Any],
        model: TrainableModel[Any, Any],
        config: PipelineAutotuneConfig,
        *,
        workers: int,
        limit: int | None,
    ) -> None:
        """limit: the trainer's `max_steps_off_policy`."""
        self._trainer, self._model, self._config, self._limit = trainer, model, config, limit
        self.search = WorkerSearch(workers, config)
        self._outcomes: Mapping[str, float] | None = None

    async def see_step(self, numbers: Mapping[str, float]) -> None:
        """Is called after each step with the numbers of its row and the outcomes of all groups so far."""
        before, self._outcomes = self._outcomes, numbers
        now = PipelineRuntimeConfig(**_settings_of(numbers))
        if now.num_rollout_workers != self.search.workers:
            self.search = WorkerSearch(now.num_rollout_workers, self._config)
        if before is None:  # its groups have no beginning
            return
        most = most_under_way({"min_batch_size": now.min_batch_size, "max_steps_off_policy": self._limit})
        change = self.search.add_step(_figures(numbers, before), most=most)
        if change is not None:
            _log.info(
                "%s of %s: %d -> %d: %s",
                WORKERS,
                self._model.name,
                now.num_rollout_workers,
                change.workers,
                change.reason,
            )
            self._trainer.apply_pipeline_settings(now.model_copy(update={WORKERS: change.workers}))
        if self.search.ended_window:
            await asyncio.to_thread(self._store, now.model_copy(update={WORKERS: self.search.best}))

    def _store(self, best: PipelineRuntimeConfig) -> None:
        self._model.merge_state({STATE_KEY: {WORKERS: best.num_rollout_workers}})
        if self._config.mode != "profile":
            return
        measured = {
            workers: dict(one.to_dict())
            for workers, one in sorted(self.search.measurements.items())
            if one.windows
        }
        profile = PipelineTunerProfile(settings=best, measurements=measured)
        PipelineTunerProfileStore(self._model).save(profile, self._config.output_name)


def _settings_of(numbers: Mapping[str, float]) -> dict[str, Any]:
    found = {name: numbers.get(f"pipeline_settings/{name}") for name in NUMBERS}
    return {name: None if value is None else int(value) for name, value in found.items()}


def _figures(numbers: Mapping[str, float], before: Mapping[str, float]) -> StepFigures:
    names = ("trained", "discarded", "stale", "pipeline/queued_groups")
    came = {name: int(numbers[name] - before[name]) for name in names}
    return StepFigures(
        wall_s=numbers["time/step_wall_s"],
        trainer_wait_s=numbers["throughput/step_trainer_idle_s"],
        worker_busy_s=numbers["time/step_actor_s"],
        worker_idle_s=numbers["throughput/step_actor_idle_s"],
        groups=came["trained"] + came["discarded"] + came["pipeline/queued_groups"],
        stale=came["stale"],
    )


def _refuse_two_numbers(profile: str, options: Mapping[str, Any]) -> None:
    for name in ("pipeline", *NUMBERS):
        if options.get(name) is not None:
            raise ConfigurationError(
                f"PipelineAutotuneConfig(profile={profile!r}) beside PipelineTrainer({name}="
                f"{options[name]!r}): the profile has this number too; give one of the two"
            )


def _stored_workers(model: TrainableModel[Any, Any]) -> int | None:
    stored = ((model.read_state() or {}).get(STATE_KEY) or {}).get(WORKERS)
    return stored if isinstance(stored, int) and stored >= 1 else None


def _numbers_of(settings: PipelineRuntimeConfig) -> str:
    known = {name: getattr(settings, name) for name in NUMBERS}
    return ", ".join(f"{name} = {value}" for name, value in known.items() if value is not None)
