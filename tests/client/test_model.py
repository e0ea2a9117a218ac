from __future__ import annotations

import json
import os

import openai
import pytest
from pydantic import BaseModel

import art
from art import errors


def rows(model: art.Model) -> list[dict]:
    return [json.loads(line) for line in (model._folder() / "history.jsonl").read_text().splitlines()]


class Config(BaseModel):
    turns: int = 3


def test_fields_are_kept_and_unknown_ones_refused(tmp_path):
    model = art.Model(name="m", project="p", id="i", run_id="r", config=Config(turns=5))
    assert (model.id, model.run_id, model.config.turns, model.trainable) == ("i", "r", 5, False)
    with pytest.raises(ValueError, match="nmae"):
        art.Model(name="m", project="p", nmae="x")


async def test_prompted_model(tmp_path):
    model = art.Model(
        name="big",
        project="p",
        inference_model_name="gpt",
        inference_base_url="https://x.example/v1",
        inference_api_key="k",
    )
    client = model.openai_client()
    assert isinstance(client, openai.AsyncOpenAI) and client is model.openai_client()
    assert model.get_inference_name() == "gpt" and await model.get_step() == 0
    assert (
        "k" not in str(model.safe_model_dump()["config"])
        and "inference_api_key" not in model.safe_model_dump()
    )


async def test_before_registration(model):
    for use in (model.openai_client, model.backend):
        with pytest.raises(errors.NotRegisteredError, match="register"):
            use()
    with pytest.raises(errors.ConfigurationError, match="inference_base_url"):
        art.Model(name="m", project="p").openai_client()


async def test_copies_keep_their_backend(model, backend):
    await model.register(backend)
    copied = model.model_copy(deep=True)
    copied.name = "other"
    assert copied.backend() is backend and model.name == "agent"
    assert copied.openai_client() is not None


def test_train_config():
    assert art.TrainConfig().learning_rate == 5e-6
    assert art.TrainConfig(beta=0.25).kl_penalty_coef == 0.25
    assert art.TrainConfig().keywords() == {}
    mine = art.Algorithm(name="mine")
    for algorithm in ("gspo", {"name": "gspo", "ratio": "token"}, mine):
        config = art.TrainConfig(learning_rate=None, algorithm=algorithm)
        assert config.keywords() == {"learning_rate": None, "algorithm": algorithm}
    with pytest.raises(ValueError, match="learning_rte"):
        art.TrainConfig(learning_rte=1)


async def test_a_config_that_would_not_act_is_refused(model, backend, double):
    await model.register(backend)
    with pytest.raises(errors.ConfigurationError, match="grad_accumulation_sequences"):
        await model.train([], config=art.TrainConfig(grad_accumulation_sequences=4))
    with pytest.raises(errors.ConfigurationError, match="plot_tensors"):
        await model.train([], _config={"plot_tensors": True})
    assert double.jobs == {}


def test_state_is_merged_and_complete_at_any_moment(model, monkeypatch):
    assert model.read_state() is None
    model.overwrite_state({"a": {"x": 1}, "b": 1})
    assert model.merge_state({"a": {"y": 2}}) == {"a": {"x": 1, "y": 2}, "b": 1}

    def dies(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(OSError):
        model.overwrite_state({"lost": 1})
    assert model.read_state() == {"a": {"x": 1, "y": 2}, "b": 1}
    assert [path.name for path in model._folder().iterdir()] == ["state.json"]


async def test_log_writes_the_row_of_the_reference(model):
    group = art.TrajectoryGroup(
        [art.Trajectory(reward=1, metrics={"acc": 1}), art.Trajectory(reward=0, metrics={"acc": 0})],
        metrics={"judge": 0.4},
        metadata={"scenario_id": "a"},
    )
    await model.log([group], split="val", step=3)
    (row,) = rows(model)
    assert {key: value for key, value in row.items() if "/" in key and not key.startswith("time/")} == {
        "val/reward": 0.5,
        "val/exception_rate": 0.0,
        "val/acc": 0.5,
        "val/group_judge": 0.4,
        "val/reward_std_dev": 0.5,
        "data/step_num_scenarios": 1,
        "data/step_num_trajectories": 2,
        "data/step_num_groups_submitted": 1,
    }
    assert (row["training_step"], row["step"]) == (3, 3) and row["recorded_at"]


async def test_unscored_rollouts_are_in_no_mean(model):
    scored = [art.Trajectory(reward=1), art.Trajectory(reward=0)]
    await model.log([*scored, art.Trajectory(reward=art.Unscored("x")), ValueError("y")], step=0)
    await model.log([art.Trajectory(reward=art.Unscored("x"))], step=1)
    first, second = rows(model)
    assert first["val/reward"] == 0.5 and first["val/unscored_rate"] == pytest.approx(1 / 3)
    assert first["val/exception_rate"] == 0.25
    assert "val/reward" not in second and second["val/unscored_rate"] == 1.0


async def test_metrics_only_rows_and_routes(model):
    await model.log(split="train", metrics={"loss/train": 1.0, "acc": 2, "bad": float("nan")}, step=1)
    await model.log(split="discarded", metrics={"loss/train": 1.0}, step=1)
    await model.log(split="train", step=1)
    first, second = rows(model)
    assert first["loss/train"] == 1.0 and first["train/acc"] == 2.0 and "train/bad" not in first
    assert second["discarded/loss/train"] == 1.0


async def test_log_of_something_else_is_refused(model):
    with pytest.raises(TypeError, match="trajectories must be"):
        await model.log(["text"], step=0)


async def test_a_torn_line_costs_only_itself(model):
    await model.log(metrics={"acc": 1}, step=1)
    path = model._folder() / "history.jsonl"
    with path.open("a") as file:
        file.write('{"val/acc": 2, "st')
    await model.log(metrics={"acc": 3}, step=3)
    from art.tracking.history import best_step, read_rows

    assert [row["val/acc"] for row in read_rows(path)] == [1, 3]
    assert best_step(path, "val/acc") == 3 and best_step(path, "val/none") is None
