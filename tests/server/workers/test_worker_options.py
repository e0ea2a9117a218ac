"""How many engines there are, where each computes, and when they sleep."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from art.engine.base_models import resolve_base
from art.errors import ConfigurationError, DeadlineError, MissingExtraError
from art.server.checkpoints.canary import CanaryLimits
from art.server.data_folder import DataLayout
from art.server.settings import ControlSettings, parse_settings
from art.server.workers.base_model import BaseModelWorkers
from art.server.workers.supervisor import WorkerOptions, shared_gpu


@pytest.mark.parametrize(
    ("engines", "trainer", "shared"),
    [
        (["cuda:0"], "cuda", True),
        (["cuda:1", "cuda:0"], "cuda:0", True),
        (["cuda"], "cuda:0", True),
        (["cuda:1"], "cuda:0", False),
        (["cpu"], "cpu", False),
        ([""], "None", False),
    ],
)
def test_engines_sleep_by_themselves_where_they_share_the_trainers_gpu(
    engines: list[str], trainer: str, shared: bool
) -> None:
    assert shared_gpu(engines, trainer) is shared


def test_each_replica_has_its_device_or_none_has() -> None:
    options = WorkerOptions(engine_options={}, trainer_options={}, replicas=2, devices=["cuda:1", "cuda:2"])
    assert [options.device(number) for number in range(2)] == ["cuda:1", "cuda:2"]
    assert WorkerOptions(engine_options={}, trainer_options={}).device(0) is None
    with pytest.raises(ConfigurationError, match="names 1 devices for 2 replicas"):
        WorkerOptions(engine_options={}, trainer_options={}, replicas=2, devices=["cuda:1"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"engine": {"replicas": 0}}, "engine.replicas"),
        ({"control": {"sleep_engine": "sometimes"}}, "control.sleep_engine"),
        ({"control": {"parity": "off"}}, "control.parity"),
    ],
)
def test_settings_outside_of_what_is_known_are_refused(settings: dict, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        parse_settings(json.dumps(settings))


def test_there_may_be_a_thousand_replicas() -> None:
    assert parse_settings(json.dumps({"engine": {"replicas": 1000}})).engine.replicas == 1000


async def test_scores_of_an_adapter_that_could_not_be_loaded_are_forgotten(tmp_path: Path) -> None:
    workers = BaseModelWorkers(
        resolve_base("art/nano"),
        options=WorkerOptions(engine_options={}, trainer_options={}),
        layout=DataLayout(tmp_path),
        settings=ControlSettings(start=0.05),
        restarted=lambda engine, adapters: None,
    ).engines
    workers.checked("new", [[1, 2]], [[-1.0]], CanaryLimits(mean=0.0, max=0.0))
    with pytest.raises(DeadlineError, match="to be up"):
        await workers.load("new", tmp_path)
    assert not workers._checked


@pytest.mark.extension
async def test_a_quantized_base_that_cannot_be_loaded_is_refused_before_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workers(base: str, engine: str = "builtin") -> BaseModelWorkers:
        return BaseModelWorkers(
            resolve_base(base),
            options=WorkerOptions(engine=engine, engine_options={}, trainer_options={}),
            layout=DataLayout(tmp_path),
            settings=ControlSettings(),
            restarted=lambda engine, adapters: None,
        )

    with pytest.raises(ConfigurationError, match="'vllm' cannot sample from a base model in 4 bits"):
        workers("art/nano#4bit", engine="vllm")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"'art/nano-games#8bit' needs 'bitsandbytes'.*\[quantized\]"):
        workers("art/nano#8bit")
    assert workers("art/nano").base.bits == 16
