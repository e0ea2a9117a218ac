"""`run_name` is the key of a run: of its folder, checkpoints and trackers. And the shape of an adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import art
from art.errors import ConfigurationError, NotBuiltError
from art.tracking.folders import stored_name


def trainable(**more: Any) -> art.TrainableModel:
    return art.TrainableModel(**{"name": "agent", "project": "p", "base_model": "art/nano", **more})


@pytest.mark.parametrize("run_name", [None, "run-2"])
async def test_a_run_has_a_folder_of_its_own(run_name: str | None, tmp_path: Path) -> None:
    first = trainable(base_path=str(tmp_path))
    second = trainable(base_path=str(tmp_path), run_name=run_name)
    await first.log(metrics={"score": 1.0}, step=0)
    await second.log(metrics={"score": 2.0}, step=0)
    folder = tmp_path / "p" / "models"
    found = sorted(path.name for path in folder.iterdir())
    assert found == (["agent"] if run_name is None else ["agent", "run-2"])
    rows = [json.loads(line) for line in (folder / found[-1] / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["score" if "score" in rows[-1] else "val/score"] == 2.0
    second.overwrite_state({"at": 3})
    assert first.read_state() == ({"at": 3} if run_name is None else None)


@pytest.mark.slow
async def test_a_second_run_begins_anew_and_the_first_goes_on(tmp_path: Path) -> None:
    """With one server: names to sample by, steps, and the weights of each."""
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        first, second = trainable(), trainable(run_name="run-2")
        for model in (first, second):
            await model.register(backend)
        assert (first.get_inference_name(), second.get_inference_name()) == ("agent", "run-2")
        rows = [
            art.Trajectory(
                messages_and_choices=[
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": "yes"},
                ]
            )
        ]
        await first.train_sft(rows)
        assert (await first.get_step(), await second.get_step()) == (1, 0)
        again = trainable(run_name="agent")  # the same run by its own name
        await again.register(backend)
        assert await again.get_step() == 1
        names = {one.name for one in await backend.list_models()}
        assert names == {"agent", "run-2"}
    checkpoints = tmp_path / "p" / "models"
    assert sorted(path.name for path in (checkpoints / "agent" / "checkpoints").iterdir()) == ["0000", "0001"]
    assert sorted(path.name for path in (checkpoints / "run-2" / "checkpoints").iterdir()) == ["0000"]


def test_a_run_by_the_model_s_name_is_the_model_s_folder() -> None:
    assert stored_name(trainable()) == stored_name(trainable(run_name="agent")) == "agent"
    assert stored_name(trainable(run_name="x")) == "x"


def test_the_adapter_s_shape_acts_by_either_name() -> None:
    shape: art.LoRAConfig = {"rank": 4, "alpha": 8, "dropout": 0.1, "target_modules": ["q_proj"]}
    model = trainable(lora_config=shape)
    older = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj"]}
    assert model._internal_config == {"peft_args": older} and model.lora_config == shape
    same = trainable(lora_config=shape, _internal_config={"peft_args": older})
    assert same == model
    assert art.TrainableModel(**model.model_dump(exclude={"trainable"})) == model
    with pytest.raises(ConfigurationError, match="differ: give one"):
        trainable(lora_config=shape, _internal_config={"peft_args": {"r": 8}})


@pytest.mark.slow
async def test_the_adapter_that_is_trained_has_that_rank(tmp_path: Path) -> None:
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        model = trainable(lora_config={"rank": 4, "alpha": 8})
        await model.register(backend)
    folder = tmp_path / "p" / "models" / "agent" / "checkpoints" / "0000"
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 8)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"lora_config": {"ranks": 4}}, r"no 'ranks', did you mean 'rank'"),
        ({"lora_config": {"r": 4}}, r"no 'r', did you mean 'rank'"),
        ({"lora_cfg": {}}, r"lora_cfg=.*did you mean 'lora_config'"),
        ({"peft_args": {}}, r"peft_args=.*did you mean 'lora_config'"),
        ({"base_modle": "b"}, r"base_modle=.*did you mean 'base_model'"),
        ({"name": "a/b"}, "no name of a folder"),
        ({"name": ".hidden"}, "no name of a folder"),
        ({"name": ""}, "no name of a folder"),
        ({"run_name": "../up"}, "run_name='../up' is no name of a folder"),
    ],
)
def test_what_has_no_effect_is_an_error(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        trainable(**fields)


def test_names_of_later_releases_are_not_built_in_silence() -> None:
    for name in ("MetricDefinition", "MegatronTopologyConfig", "MegatronRuntimeConfig"):
        unbuilt = getattr(art, name)
        with pytest.raises(NotBuiltError, match=rf"art\.{name} is not built yet: "):
            unbuilt()
