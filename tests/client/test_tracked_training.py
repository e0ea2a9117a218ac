"""A training job's settings are in the config of its run at a tracker before the row of its step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice
from wire_double import Double

import art
from art.tracking.sinks import registry
from art.tracking.sinks.sink import ReportedRun
from art.types import TrainSFTConfig
from art.wire.training import RATE_BY_SIZE

USER = {"role": "user", "content": "Well?"}


class ConfigTracker:
    """A tracker that keeps, for each row, the config that its run had."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}
        self.configs: dict[int, dict[str, Any]] = {}

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        self._config = dict(config)

    def config(self, values: Mapping[str, Any]) -> None:
        self._config = dict(values)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self.configs[step] = self._config

    def close(self) -> None:
        pass


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConfigTracker]:
    told = ConfigTracker()
    monkeypatch.setattr(registry, "known_sinks", lambda: ("told",))
    monkeypatch.setattr(registry, "make_sink", lambda name: told)
    yield told
    registry.deliveries().close()


@pytest.fixture
async def tracked(
    backend: art.RemoteBackend, model: art.TrainableModel, tracker: ConfigTracker
) -> art.TrainableModel:
    model.report_metrics = ["told"]
    await model.register(backend)
    return model


def groups() -> list[art.TrajectoryGroup]:
    said = {"role": "assistant", "content": "yes"}
    choice = Choice.model_validate({"finish_reason": "stop", "index": 0, "message": said, "sample_id": "s1"})
    rollouts = [art.Trajectory(messages_and_choices=[USER, choice], reward=reward) for reward in (1.0, 0.0)]
    return [art.TrajectoryGroup(rollouts)]


async def test_the_settings_of_a_step_are_in_the_config_of_its_row(
    tracked: art.TrainableModel, tracker: ConfigTracker
) -> None:
    await tracked.train(groups(), config=art.TrainConfig(learning_rate=2e-4, algorithm="gspo"))
    await tracked.train(groups(), config=art.TrainConfig(learning_rate=1e-4))
    first, second = (tracker.configs[step]["art"]["train"] for step in (1, 2))
    assert (first["job"], first["learning_rate"], first["algorithm"]["name"]) == ("train", 2e-4, "gspo")
    assert first["optimizer"]["schedule"] == "constant", "what was not given is there with its default"
    assert (second["learning_rate"], second["algorithm"]["name"]) == (1e-4, "art")
    assert tracker.configs[1]["art"]["base_model"] == "art/nano"


async def test_a_rate_that_is_left_to_the_model_s_size_is_a_number(
    tracked: art.TrainableModel, tracker: ConfigTracker, double: Double
) -> None:
    sheet = {"started": {"rollouts": 2, "tokens": 7}, "fates": {"trained": {"rollouts": 2, "tokens": 7}}}
    metrics = {"loss/train": 0.5, RATE_BY_SIZE: 3e-3}
    result = {"step": 1, "metrics": metrics, "sheet": sheet, "checkpoint_path": "/c"}
    double.script = [{"number": 1, "type": "result", "result": result}]
    await tracked.train(groups(), config=art.TrainConfig(learning_rate=None))
    (job,) = double.jobs.values()
    assert job["optimizer"]["learning_rate"] is None
    assert tracker.configs[1]["art"]["train"]["learning_rate"] == 3e-3


async def test_supervised_steps_have_their_settings_too(
    tracked: art.TrainableModel, tracker: ConfigTracker
) -> None:
    talk = art.Trajectory(messages_and_choices=[USER, {"role": "assistant", "content": "yes"}])
    await tracked.train_sft([talk] * 4, TrainSFTConfig(learning_rate=[1e-3, 5e-3], batch_size=2))
    told = tracker.configs[1]["art"]["train"]
    assert (told["job"], told["learning_rate"]) == ("train_sft", 5e-3)
    assert "algorithm" not in told and told["optimizer"]["max_grad_norm"] == 1.0
