"""The real `PipelineTrainer` on a virtual clock, with an engine and a backend of known speed."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from virtual_clock import run_virtually

import art
from art.errors import ConfigurationError
from art.types import TrainResult
from art_extensions.pipeline import PipelineRuntimeConfig, PipelineTrainer
from art_extensions.pipeline_tuner import PipelineTunerProfile, PipelineTunerProfileStore

ONLINE = art.PipelineAutotuneConfig(mode="online")
QUICK = art.PipelineAutotuneConfig(mode="online", window_steps=2, warmup_ignore_steps=1)


class TimedBackend:
    """Trains in so many seconds of the loop's clock."""

    def __init__(self, seconds: float, on_step: Callable[[int], None] = lambda step: None) -> None:
        self.seconds, self.on_step, self.step = seconds, on_step, 0

    async def register(self, model: Any) -> None:
        model.inference_base_url, model.inference_api_key = "http://127.0.0.1:1/v1", "k"

    async def get_step(self, model: Any) -> int:
        return self.step

    async def train(self, model: Any, groups: Any, **_: Any) -> TrainResult:
        await asyncio.sleep(self.seconds)
        self.step += 1
        self.on_step(self.step)
        return TrainResult(self.step, {})


class Engine:
    """Gives a group after so many seconds, to so many rollouts at a time; the others wait."""

    def __init__(self, seconds: float, *, saturated_by: int = 1000, noise: float = 0.0) -> None:
        self.seconds, self.noise, self.chance = seconds, noise, random.Random(2)
        self.slots = asyncio.Semaphore(saturated_by)

    async def __call__(self, *_: Any) -> art.TrajectoryGroup:
        async with self.slots:
            await asyncio.sleep(self.seconds * max(0.1, self.chance.gauss(1, self.noise)))
        return art.TrajectoryGroup([art.Trajectory(reward=reward) for reward in (0.0, 1.0)])


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return art.TrainableModel(
        name="agent", project="p", base_model="art/nano", base_path=str(tmp_path), report_metrics=[]
    )


def made(model: Any, engine: Engine, backend: TimedBackend, **options: Any) -> PipelineTrainer[Any, Any]:
    numbered = [{"number": n} for n in range(5000)]
    fixed = {"max_batch_size": 4, "max_steps_off_policy": 16, "eval_every_n_steps": 0, "eval_at_start": False}
    return PipelineTrainer(model, backend, engine, numbered, None, **{**fixed, **options})


def used(model: Any) -> list[int]:
    """The workers of each step, as its row has them."""
    rows = map(json.loads, (Path(model._get_output_dir()) / "history.jsonl").open())
    name = "pipeline_settings/num_rollout_workers"
    return [int(row[name]) for row in rows if name in row]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    ("engine", "trainer_s", "start", "best"),
    [
        ({"seconds": 40.0}, 8.0, 14, 20),
        ({"seconds": 40.0}, 16.0, 16, 10),
        ({"seconds": 40.0, "saturated_by": 8}, 5.0, 12, 8),
    ],
    ids=["rollout-bound", "trainer-bound", "saturated"],
)
def test_it_reaches_the_best_number_of_workers(
    engine: Any,
    trainer_s: float,
    start: int,
    best: int,
    noise: float,
    model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: Any = {"num_rollout_workers": start, "autotune": ONLINE, "max_steps": 130}
    trainer = made(model, Engine(**engine, noise=noise), TimedBackend(trainer_s), **options)
    run_virtually(monkeypatch, trainer.train(handle_signals=False))
    stored = model.read_state()["_pipeline_tuner"]["num_rollout_workers"]
    assert abs(stored - best) <= ONLINE.worker_step, used(model)
    assert max(abs(one - best) for one in used(model)[-30:]) <= 2 * ONLINE.worker_step


def test_a_change_is_logged_and_in_the_rows(
    model: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "art_extensions.pipeline_tuner")
    trainer = made(model, Engine(8.0), TimedBackend(1.0), num_rollout_workers=2, autotune=QUICK, max_steps=8)
    run_virtually(monkeypatch, trainer.train(handle_signals=False))
    lines = [one.getMessage() for one in caplog.records if one.name.startswith("art_extensions.pipe")]
    assert lines[0] == ("num_rollout_workers of agent: 2 -> 4: the trainer waited for groups 94% of the time")
    assert used(model)[0] == 2 and used(model)[-1] > 2 and sorted(used(model)) == used(model)
    row = json.loads((Path(model._get_output_dir()) / "history.jsonl").read_text().splitlines()[-2])
    assert row["pipeline_settings/min_batch_size"] == row["pipeline_settings/max_batch_size"] == 4


def test_a_resumed_run_goes_on_with_the_workers_of_its_state(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, options = TimedBackend(1.0), {"num_rollout_workers": 2, "autotune": QUICK}
    run_virtually(
        monkeypatch, made(model, Engine(8.0), backend, max_steps=8, **options).train(handle_signals=False)
    )
    known = model.read_state()["_pipeline_tuner"]["num_rollout_workers"]
    assert known > 2
    run_virtually(
        monkeypatch, made(model, Engine(8.0), backend, max_steps=10, **options).train(handle_signals=False)
    )
    assert used(model)[8] == known and len(used(model)) == 10
    assert made(model, Engine(8.0), backend, resume=False, **options)._settings["num_rollout_workers"] == 2


def test_numbers_that_the_program_changes_itself_stay(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: int) -> None:
        if step == 3:
            trainer.apply_pipeline_settings(PipelineRuntimeConfig(num_rollout_workers=1, min_batch_size=3))

    backend = TimedBackend(1.0, change)
    trainer = made(model, Engine(8.0), backend, num_rollout_workers=4, autotune=QUICK, max_steps=8)
    run_virtually(monkeypatch, trainer.train(handle_signals=False))
    assert used(model)[:5] == [4, 4, 1, 1, 1] and used(model)[-1] > 1, "the search starts again from 1"
    assert trainer._settings["min_batch_size"] == 3


def test_off_changes_nothing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    off = art.PipelineAutotuneConfig()
    trainer = made(model, Engine(8.0), TimedBackend(1.0), num_rollout_workers=2, autotune=off, max_steps=6)
    assert trainer._on_step is None
    run_virtually(monkeypatch, trainer.train(handle_signals=False))
    assert used(model) == [2] * 6 and "_pipeline_tuner" not in model.read_state()


def test_a_profile_is_written_and_started_from(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = QUICK.model_copy(update={"mode": "profile", "output_name": "nights"})
    options: Any = {"num_rollout_workers": 2, "min_batch_size": 3, "autotune": profile, "max_steps": 8}
    trainer = made(model, Engine(8.0), TimedBackend(1.0), **options)
    run_virtually(monkeypatch, trainer.train(handle_signals=False))
    stored = PipelineTunerProfileStore(model).load("nights")
    assert stored.settings.num_rollout_workers in used(model)[1:]
    assert (stored.settings.min_batch_size, stored.settings.max_batch_size) == (3, 4)
    assert stored.measurements[2]["groups_per_second"] == pytest.approx(2 / 8)
    for mode in ("off", "online"):
        config = art.PipelineAutotuneConfig(mode=mode, profile="nights")
        PipelineTunerProfileStore(model).save(
            PipelineTunerProfile(settings=PipelineRuntimeConfig(num_rollout_workers=11)), "nights"
        )
        plain = {"max_batch_size": None, "autotune": config, "resume": False}
        assert made(model, Engine(8.0), TimedBackend(1.0), **plain)._settings["num_rollout_workers"] == 11


def test_two_numbers_for_one_thing_are_refused(model: Any) -> None:
    PipelineTunerProfileStore(model).save(PipelineTunerProfile(settings=PipelineRuntimeConfig()))
    start = art.PipelineAutotuneConfig(profile="latest")
    with pytest.raises(ConfigurationError, match=r"profile='latest'\) beside .*num_rollout_workers=3"):
        made(
            model, Engine(1.0), TimedBackend(1.0), autotune=start, max_batch_size=None, num_rollout_workers=3
        )
    with pytest.raises(ConfigurationError, match=r"no art\.PipelineAutotuneConfig"):
        made(model, Engine(1.0), TimedBackend(1.0), autotune={"mode": "online"})
