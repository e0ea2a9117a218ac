"""Every tracker keeps the same numbers, goes on where another process stopped, and stops no training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat.chat_completion import Choice
from tests.otlp_collector import collecting

import art
from art.extensions import SINK, extension_points
from art.tracking.sinks import registry
from art.tracking.sinks.registry import known_sinks
from waiting import DEADLINE_S

Scalars = dict[str, dict[int, float]]
"""Tag -> step -> value."""


def read_tensorboard(model: art.Model) -> Scalars:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(model._folder() / "tensorboard")).Reload()
    return {tag: {one.step: one.value for one in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


APART = {"trackio", "mlflow", "wandb"}
"""They are read in tests/extensions/sinks, the first two in an environment of their own."""


def read_otel(model: art.Model) -> Scalars:
    told = httpx.get(
        f"{os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']}/scalars/{model.project}/{model.name}",
        timeout=DEADLINE_S,
    )
    return {tag: {int(step): value for step, value in steps.items()} for tag, steps in told.json().items()}


READERS: dict[str, Callable[[art.Model], Scalars]] = {"otel": read_otel, "tensorboard": read_tensorboard}


@pytest.fixture(params=sorted(READERS))
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param != "otel":
        yield str(request.param)
        return
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        yield "otel"


def model_of(folder: Path, sink: str, **fields: Any) -> art.Model:
    given = {
        "name": "agent",
        "project": "games",
        "base_path": str(folder),
        "report_metrics": [sink],
        **fields,
    }
    return art.Model(**given)


def test_each_tracker_has_a_reader() -> None:
    assert READERS.keys() | APART == extension_points(SINK).keys()


@pytest.mark.extension
async def test_the_numbers_of_a_row_are_read_back(tmp_path: Path, name: str) -> None:
    model = model_of(tmp_path, name)
    await model.log([art.TrajectoryGroup([art.Trajectory(reward=reward) for reward in (1.0, 0.0)])], step=3)
    await model.log(metrics={"acc": 0.25, "loss/train": 2.0, "broken": float("nan")}, step=4)
    await model.log(metrics={"acc": 0.5}, step=2)  # rows may come in any order
    found = READERS[name](model)
    assert found["val/reward"] == {3: 0.5} and found["val/reward_std_dev"] == {3: 0.5}
    assert found["val/acc"] == {4: 0.25, 2: 0.5} and found["loss/train"] == {4: 2.0}
    assert "val/broken" not in found


@pytest.mark.extension
async def test_rewards_of_turns_are_numbers_of_the_row(tmp_path: Path, name: str) -> None:
    said = {"role": "assistant", "content": "on"}
    turns: list[Any] = [
        Choice.model_validate({"index": 0, "finish_reason": "stop", "message": said, "sample_id": one})
        for one in ("s1", "s2")
    ]
    played = art.Trajectory(messages_and_choices=turns, reward=1.0)
    played.reward_turn(0, 0.25)
    played.reward_turn(1, 0.75)
    model = model_of(tmp_path, name)
    groups = [art.TrajectoryGroup([played, art.Trajectory(reward=0.0)])]
    await model.log(groups, split="train", step=3, metrics={"reward/turn_return_mean": 1.5})
    found = READERS[name](model)
    assert found["train/turn_reward_mean"] == {3: 0.5} and found["train/turn_rewarded_rate"] == {3: 0.5}
    assert found["train/turn_reward_top_share"] == {3: 0.75} and found["train/turn_reward_zero_rate"] == {
        3: 0.0
    }
    assert found["reward/turn_return_mean"] == {3: 1.5}


@pytest.mark.extension
async def test_two_models_are_apart(tmp_path: Path, name: str) -> None:
    one, two = model_of(tmp_path, name), model_of(tmp_path, name, name="other")
    await one.log(metrics={"acc": 1.0}, step=0)
    await two.log(metrics={"acc": 2.0}, step=0)
    assert READERS[name](one)["val/acc"] == {0: 1.0} and READERS[name](two)["val/acc"] == {0: 2.0}


PROGRAM = """
import asyncio, os, sys
import art

model = art.Model(name="agent", project="games", base_path=sys.argv[1], report_metrics=[sys.argv[2]])
for step in range(int(sys.argv[3]), int(sys.argv[4])):
    asyncio.run(model.log(metrics={"acc": float(step)}, step=step))
if sys.argv[5] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_killed_program_loses_no_row_and_the_next_goes_on(tmp_path: Path, name: str) -> None:
    for first, last, end in ((0, 3, "killed"), (3, 5, "ended")):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), name, str(first), str(last), end]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == (-9 if end == "killed" else 0), done.stderr
    found = READERS[name](model_of(tmp_path, name))
    assert found["val/acc"] == {step: float(step) for step in range(5)}


@pytest.mark.extension
async def test_texts_that_want_to_be_something_else_are_kept(tmp_path: Path, name: str) -> None:
    hostile = "</script><script>alert(1)</script>\n# a title\u202e\0"
    model = model_of(tmp_path, name)
    turns: list[Any] = [{"role": "user", "content": hostile}, {"role": "assistant", "content": None}]
    await model.log([art.TrajectoryGroup([art.Trajectory(reward=1.0, messages_and_choices=turns)])], step=0)
    await model.log(metrics={f"acc{hostile}": 1.0}, step=0)
    found = READERS[name](model)
    assert found["val/reward"] == {0: 1.0} and 1.0 in [values.get(0) for values in found.values()]


async def test_a_tracker_that_fails_is_told_once_and_stops_nothing(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    (tmp_path / "games" / "models" / "agent").mkdir(parents=True)
    (tmp_path / "games" / "models" / "agent" / name).write_text("a file where its folder belongs")
    model = model_of(tmp_path, name)
    for step in range(3):
        await model.log(metrics={"acc": 1.0}, step=step)
    told = [record.getMessage() for record in caplog.records if name in record.getMessage()]
    assert len(told) == 1 and f"{name} failed, the run goes on without it" in told[0]
    assert (model._folder() / "history.jsonl").read_text().count("\n") == 3


async def test_a_tracker_that_is_not_installed_names_its_extra(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.errors.find_spec", lambda module: None)
    with pytest.raises(art.errors.MissingExtraError, match=rf"report_metrics=\['{name}'\].*\[{name}\]"):
        await model_of(tmp_path, name).log(metrics={"acc": 1.0}, step=0)


def test_an_unknown_tracker_is_told_with_the_known_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry._warn_unknown.cache_clear()
    model_of(tmp_path, "tensorbord")
    (told,) = [record.getMessage() for record in caplog.records]
    assert "did you mean 'tensorboard'" in told and all(known in told for known in known_sinks())
