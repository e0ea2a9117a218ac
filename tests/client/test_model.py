from __future__ import annotations

import json
import os
import pickle
from types import SimpleNamespace

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
    model = art.Model(name="m", project="p", id="i", run_id="r", run_name="n", config=Config(turns=5))
    assert model.run_name == "n" and art.Model(name="m", project="p").run_name is None
    assert (model.id, model.run_id, model.config.turns, model.trainable) == ("i", "r", 5, False)
    with pytest.raises(errors.ConfigurationError, match=r"Model\(nmae=.*did you mean 'name'"):
        art.Model(name="m", project="p", nmae="x")
    with pytest.raises(errors.ConfigurationError, match=r"TrainableModel\(nmae=.*did you mean 'name'"):
        art.TrainableModel(name="m", project="p", base_model="b", nmae="x")


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
        (
            model.backend,
            "Model is not registered with the Backend. You must call `await model.register(backend)` first.",
        ),
        (
            model.openai_client,
            "OpenAI client not yet available on this trainable model. "
            "You must call `await model.register(backend)` first.",
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
    newer = art.TrainConfig(optimizer_save_interval=10, final_training_step=30, kl_penalty_source="sample")
    assert list(newer.keywords()) == ["kl_penalty_source", "optimizer_save_interval", "final_training_step"]
    mine = art.Algorithm(name="mine")
    for algorithm in ("gspo", {"name": "gspo", "ratio": "token"}, mine):
        config = art.TrainConfig(learning_rate=None, algorithm=algorithm)
        assert config.keywords() == {"learning_rate": None, "algorithm": algorithm}
    with pytest.raises(ValueError, match=r"learning_rte=1\): no such field, did you mean 'learning_rate'"):
        art.TrainConfig(learning_rte=1)
    with pytest.raises(ValueError, match=r"TrainConfig\(lr=1\): no such field, did you mean 'learning_rate'"):
        art.TrainConfig(lr=1)
    with pytest.raises(ValueError, match=r"TrainSFTConfig\(lr=1\): .*, did you mean 'learning_rate'"):
        art.TrainSFTConfig(lr=1)


async def test_a_config_that_would_not_act_is_refused(model, backend, double):
    await model.register(backend)
    for options in ({"_config": {"learning_rte": 1}}, {"learning_rte": 1}):
        with pytest.raises(errors.ConfigurationError, match="learning_rte"):
            await model.train([], **options)
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
    assert sorted(path.name for path in model._folder().iterdir()) == [".lock", "state.json"]


async def test_a_torn_line_costs_only_itself(model):
    await model.log(metrics={"acc": 1}, step=1)
    path = model._folder() / "history.jsonl"
    with path.open("a") as file:
        file.write('{"val/acc": 2, "st')
    await model.log(metrics={"acc": 3}, step=3)
    from art.tracking.model_files import best_step, read_history

    assert [row["val/acc"] for row in read_history(path)] == [1, 3]
    assert best_step(path, "val/acc") == 3 and best_step(path, "val/none") is None


async def test_a_config_must_be_json(model, backend, double):
    class Tool(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        call: object = print

    for config in (Tool(), {"turns": 3}):
        model.config = config
        with pytest.raises(ValueError, match="The model config cannot be serialized to JSON"):
            await model.register(backend)
    assert double.registered == []
    model.config = Config()
    await model.register(backend)


def test_fields_of_subclasses_and_their_defaults(tmp_path):
    class Prompted(art.Model):
        base_path: str = str(tmp_path)
        style: str = "plain"

    model = Prompted(name="m", project="p", style="terse")
    assert (model.base_path, model.style) == (str(tmp_path), "terse")


def test_dumps(tmp_path):
    internal = {"chat_template_kwargs": {"enable_thinking": False}}
    model = art.TrainableModel(
        name="m", project="p", base_model="b", config=Config(), run_id="r", _internal_config=internal
    )
    model.inference_api_key = "secret"
    assert model.model_dump()["_internal_config"] == internal
    assert "_internal_config" not in model.model_dump(exclude={"_internal_config"})
    assert set(model.model_dump(include={"name"})) == {"name"}
    safe = model.safe_model_dump()
    assert safe["config"] is None and "inference_api_key" not in safe and safe["run_id"] == "r"
    again = art.TrainableModel(**model.model_dump())
    assert again._internal_config == internal and again.name == "m"
    assert model._get_output_dir() == ".art/p/models/m"


async def test_copies_keep_private_attributes(model, backend):
    model._internal_config = {"chat_template_kwargs": {"enable_thinking": False}}
    model.set_cost_calculator(lambda prompt, completion, context: {f"costs/{context}/tokens": prompt})
    await model.register(backend)
    for copied in (model.model_copy(deep=True), model.model_copy()):
        assert copied._internal_config == model._internal_config and copied.backend() is backend
        assert copied.cost_calculator is model.cost_calculator
        assert copied._run_log is not model._run_log


async def test_equal_fields_make_equal_models(model, backend):
    same = art.TrainableModel(**model.model_dump())
    assert model == same and art.Model(name="a", project="p") == art.Model(name="a", project="p")
    assert model in [same]
    same._internal_config = {"peft_args": {"r": 4}}
    assert model != same and model != art.Model(name=model.name, project=model.project)


@pytest.mark.slow
async def test_a_model_goes_to_another_process(model, backend, double):
    model._internal_config = {"peft_args": {"r": 4}}
    await model.register(backend)
    await model.openai_client().chat.completions.create(model="agent", messages=[])
    there = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    assert there == model and there._internal_config == model._internal_config
    assert there.get_inference_name() == "agent"
    await there.openai_client().chat.completions.create(model="agent", messages=[])
    assert double.asked["/v1/chat/completions"] == 2
    with pytest.raises(errors.NotRegisteredError):
        there.backend()


async def test_arguments_of_the_chat_template_go_along(model, backend, double):
    await model.register(backend)
    model._internal_config = {"chat_template_kwargs": {"enable_thinking": False, "style": "plain"}}
    create = model.openai_client().chat.completions.create
    await create(model="agent", messages=[], extra_body={"chat_template_kwargs": {"style": "terse"}})
    model._internal_config = None
    await model.openai_client().chat.completions.create(model="agent", messages=[])
    first, second = double.bodies
    assert first["chat_template_kwargs"] == {"enable_thinking": False, "style": "terse"}
    assert "chat_template_kwargs" not in second


async def test_costs_of_completions(model, backend, double):
    await model.register(backend)
    seen = []

    def price(prompt_tokens: int, completion_tokens: int, cost_context: str) -> dict[str, float]:
        seen.append((prompt_tokens, completion_tokens, cost_context))
        return {f"costs/{cost_context}/tokens": 1.0}

    assert model.cost_calculator(1, 1, "train") == {}
    model.set_cost_calculator(price)
    completion = await model.openai_client().chat.completions.create(model="agent", messages=[])
    token = model.activate_metrics_context("eval")
    await model.openai_client().chat.completions.create(model="agent", messages=[])
    token.var.reset(token)
    copied = model.model_copy(deep=True)
    copied.name = "copy"
    await copied.openai_client().chat.completions.create(model="agent", messages=[])
    usage = completion.usage
    told = usage.prompt_tokens, usage.completion_tokens
    assert seen == [(*told, "train"), (*told, "eval"), (*told, "train")]
    model.set_cost_calculator(None)
    await model.openai_client().chat.completions.create(model="agent", messages=[])
    assert len(seen) == 3
    await model.log(metrics={"acc": 1}, split="val", step=0)
    (row,) = rows(model)
    assert row["costs/all"] == 2.0 and row["costs/eval/tokens"] == 1.0 and row["costs/train/tokens"] == 1.0
    await copied.log(metrics={"acc": 1}, split="train", step=0)
    assert rows(copied)[0]["costs/all"] == 1.0


async def test_a_client_that_a_test_puts_in_place_is_used_and_charged(monkeypatch):
    made, asked = [], []

    class Usage:
        prompt_tokens, completion_tokens = 1_000, 2_000

    class Completions:
        async def create(self, **request):
            asked.append(request)
            return SimpleNamespace(usage=Usage(), choices=[1, 2, 3])

    class Client:
        def __init__(self, **options):
            made.append(options)
            self.chat = SimpleNamespace(completions=Completions(), other=7)

        def with_options(self, **options):
            return self

    monkeypatch.setattr("art.model.AsyncOpenAI", Client)
    config = {"chat_template_kwargs": {"enable_thinking": False}}
    model = art.TrainableModel(name="a", project="p", base_model="b", _internal_config=config)
    model.inference_api_key, model.inference_base_url = "k", "http://nowhere/v1"
    model.set_cost_calculator(lambda prompt, completion, context: {f"costs/{context}/tokens": prompt})
    client = model.openai_client()
    assert made == [{"base_url": "http://nowhere/v1", "api_key": "k"}] and client.chat.other == 7
    builder = model.metrics_builder("eval")
    with builder.activate_context():
        await client.chat.completions.create(model="a", messages=[])
        await client.with_options(timeout=1).chat.completions.create(model="a", messages=[])
    assert (await builder.flush())["costs/eval/tokens"] == 6000
    assert [request["extra_body"] for request in asked] == [config, config]


async def test_the_class_of_clients_is_openai_s_until_it_is_replaced(monkeypatch):
    import openai

    assert art.model.AsyncOpenAI is openai.AsyncOpenAI
    monkeypatch.setattr("art.model.AsyncOpenAI", openai.AsyncOpenAI)  # as after a test that replaced it
    model = art.Model(name="a", project="p", inference_api_key="k", inference_base_url="http://nowhere/v1")
    assert isinstance(model.openai_client(), openai.AsyncOpenAI)


def test_rows_by_the_inner_names_of_older_programs(tmp_path):
    model = art.Model(name="a", project="p", base_path=str(tmp_path), report_metrics=[])
    model._log_metrics({"reward/mean": 0.9, "custom": 1.0, "rewardish/value": 2.0}, split="train", step=7)
    (row,) = rows(model)
    assert (row["reward/mean"], row["train/custom"], row["train/rewardish/value"]) == (0.9, 1.0, 2.0)
    assert row["training_step"] == 7 and model._get_wandb_run() is None


async def test_training_in_the_ways_of_all_versions(model, backend, double, recwarn):
    await model.register(backend)
    groups = [art.TrajectoryGroup([art.Trajectory(reward=1), art.Trajectory(reward=0)]), None]
    for step, options in enumerate(
        [
            {"config": art.TrainConfig(learning_rate=1e-3, beta=0.5), "_config": {"epsilon": 0.3}},
            {"_config": {"learning_rate": 1e-3, "epsilon": 0.3, "kl_penalty_coef": 0.5}},
            {"learning_rate": 1e-3, "epsilon": 0.3, "kl_penalty_coef": 0.5, "_config": {"epsilon": 0.1}},
        ],
        start=1,
    ):
        result = await model.train(groups, **options)
        assert result.step == step
    jobs = [{**job, "job_id": ""} for job in double.jobs.values()]
    assert len(jobs) == 3
    for job in jobs:
        for part in ("optimizer", "algorithm"):
            assert job[part] == jobs[0][part]
    history = rows(model)
    assert [row["step"] for row in history] == [1, 2, 3]
    assert all(row["train/reward"] == 0.5 and row["time/step_wall_s"] >= 0 for row in history)
    assert history[2]["time/cum/wall_s"] == pytest.approx(sum(row["time/step_wall_s"] for row in history))
    assert not [warning for warning in recwarn if issubclass(warning.category, DeprecationWarning)]


async def test_the_wall_time_counts_once_for_a_step(model, backend):
    await model.register(backend)
    await model.log(split="train", metrics={"acc": 1}, step=1)
    await model.log(split="train", metrics={"acc": 2}, step=1)
    model.metrics_builder("train").add_user_timing(step_wall_s=7)
    await model.log(split="train", metrics={"acc": 2}, step=2)
    await model.log(split="val", metrics={"acc": 2}, step=3)
    first, again, own, val = rows(model)
    assert "time/step_wall_s" in first and "time/step_wall_s" not in again
    assert own["time/step_wall_s"] == 7 and "time/step_wall_s" not in val


async def test_checkpoints_with_the_best_metric_stay(model, backend, double, caplog):
    await model.register(backend)
    double.step = 9
    await model.delete_checkpoints()
    assert "no row of" in caplog.text and "'val/reward'" in caplog.text
    for step, reward, score in ((1, 0.5, 9), (2, 1.0, 1), (2, 0.2, 1), (5, 0.6, 3), (6, 0.6, 9), (7, 0.1, 0)):
        await model.log(metrics={"reward": reward, "correct": score}, step=step)
    await model.delete_checkpoints()
    await model.delete_checkpoints("val/correct")
    await model.delete_checkpoints("correct/val")
    await model.delete_checkpoints("reward/val")
    assert double.kept == [[9], [6, 9], [6, 9], [6, 9], [6, 9]]


@pytest.mark.parametrize("logged", [True, False])
async def test_a_metric_that_no_row_has_deletes_no_checkpoint(model, backend, double, caplog, logged):
    await model.register(backend)
    double.step = 9
    if logged:
        await model.log(metrics={"reward": 1.0, "correct": 1}, step=3)
    assert await model.delete_checkpoints(best_checkpoint_metric="val/corect") == []
    assert await model.delete_checkpoints("reward/test") == [] and double.kept == []
    first, second = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "has 'val/corect': nothing is deleted. It has " in first and "'reward/test'" in second
    assert ("It has val/correct" in first) is logged and ("no metric at all" in first) is not logged


def test_older_names(model):
    with pytest.warns(DeprecationWarning, match="overwrite_state"):
        model.write_state({"a": 1})
    assert model.read_state() == {"a": 1}
    prompted = art.Model(name="m", project="p", inference_model_name="gpt", inference_base_url="http://x/v1")
    assert prompted.litellm_completion_params() == {
        "model": "gpt",
        "base_url": "http://x/v1",
        "api_key": None,
        "temperature": 1,
    }
    assert model.litellm_completion_params(step=3)["model"] == "hosted_vllm/agent@3"
