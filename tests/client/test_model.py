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


def test_fields_are_kept_and_unknown_ones_ignored_with_a_warning(tmp_path):
    model = art.Model(name="m", project="p", id="i", run_id="r", config=Config(turns=5))
    assert (model.id, model.run_id, model.config.turns, model.trainable) == ("i", "r", 5, False)
    with pytest.warns(UserWarning, match="nmae") as told:
        art.Model(name="m", project="p", nmae="x")
    assert len(told) == 1 and told[0].filename == __file__
    with pytest.warns(UserWarning, match="TrainableModel ignores nmae") as told:
        art.TrainableModel(name="m", project="p", base_model="b", nmae="x")
    assert len(told) == 1 and told[0].filename == __file__


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
    for use, text in (
        (model.backend, "Model is not registered with the Backend. You must call `model.register()` first."),
        (
            model.openai_client,
            "OpenAI client not yet available on this trainable model. "
            "You must call `model.register()` first.",
        ),
        (
            art.Model(name="m", project="p").openai_client,
            "In order to create an OpenAI client you must provide an `inference_api_key` and "
            "`inference_base_url`.",
        ),
    ):
        with pytest.raises(ValueError) as refused:
            use()
        assert str(refused.value) == text
    with pytest.raises(errors.NotRegisteredError):
        model.backend()


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
    assert sorted(path.name for path in model._folder().iterdir()) == [".state.lock", "state.json"]


async def test_a_torn_line_costs_only_itself(model):
    await model.log(metrics={"acc": 1}, step=1)
    path = model._folder() / "history.jsonl"
    with path.open("a") as file:
        file.write('{"val/acc": 2, "st')
    await model.log(metrics={"acc": 3}, step=3)
    from art.tracking.history import best_step, read_rows

    assert [row["val/acc"] for row in read_rows(path)] == [1, 3]
    assert best_step(path, "val/acc") == 3 and best_step(path, "val/none") is None
