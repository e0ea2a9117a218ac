"""Options of training and of a model's configuration, each by what it changes at a real server."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import openai
import pytest

import art
from art import dev
from art.environments import tasks
from art.errors import RequestError
from art.runs.quickstart import QuickstartChoices, resolve_settings, roll_out

pytestmark = pytest.mark.slow

ASK = {"role": "user", "content": "yes or no?"}


async def play(model: art.TrainableModel, reward: float, **sampling: Any) -> art.Trajectory:
    said = art.Trajectory(messages_and_choices=[ASK], reward=reward)
    completion = await model.openai_client().chat.completions.create(
        **{"model": model.get_inference_name(), "messages": said.messages(), "max_tokens": 6, **sampling}
    )
    said.messages_and_choices.append(completion.choices[0])
    return said


async def play_group(
    model: art.TrainableModel, rewards: tuple[float, ...] = (0.0, 1.0, 2.0)
) -> art.TrajectoryGroup:
    return await art.TrajectoryGroup([play(model, reward) for reward in rewards])


async def test_each_keyword_changes_what_it_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)

        async def train(*groups: art.TrajectoryGroup, **options: Any) -> art.TrainResult:
            given = list(groups) or [await play_group(model), await play_group(model)]
            return await backend.train(model, given, **{"learning_rate": 1e-4, **options})

        plain = (await train()).metrics
        assert plain["data/step_num_gradient_steps"] == 1 and plain["loss/learning_rate"] == 1e-4
        trained = (await train()).sheet.fates["trained"].rollouts

        several = (await train(grad_accumulation_sequences=2)).metrics
        assert several["data/step_num_gradient_steps"] in (2, 3)

        powered = await train(num_trajectories_learning_rate_multiplier_power=0.5)
        count = powered.sheet.fates["trained"].rollouts
        assert powered.metrics["loss/learning_rate"] == pytest.approx(1e-4 * count**0.5) and trained > 1

        spread = await train(await play_group(model, (0.0, 4.0)), scale_learning_rate_by_reward_std_dev=True)
        assert spread.metrics["loss/learning_rate"] == pytest.approx(2e-4)

        cut = await train(packed_sequence_length=1)
        assert set(cut.sheet.fates) == {"overlong"} and cut.metrics["trained"] == 0

        assert (await train(plot_tensors=True)).step == 7
        picture = tmp_path / "p" / "models" / "a" / "packed_tensors_plot_0007.png"
        assert picture.read_bytes()[:4] == b"\x89PNG"

        chunked = await train(logprob_calculation_chunk_size=2)
        assert chunked.metrics["trained"] == 1

        # A mask that nothing passes: the step is one without training, its adapter that of the step before.
        mask = {"kind": "token_mask", "low": 1e6, "high": 2e6}
        dropped = await train(algorithm={"mismatch": [mask]})
        assert "mismatch" in dropped.sheet.fates and "trained" not in dropped.sheet.fates
        assert dropped.metrics["trained"] == 0
        assert dropped.step == chunked.step + 1 and dropped.metrics["loss/mismatch_dropped"] == 1
        assert "trained nothing" in caplog.text and "mismatch masks dropped every token" in caplog.text
        folders = [tmp_path / "p" / "models" / "a" / "checkpoints" / f"{n:04d}" for n in (8, 9)]
        one, other = [(folder / "adapter_model.safetensors").read_bytes() for folder in folders]
        assert one == other

        assert (await train(save_checkpoint=False)).checkpoint_path is None
        before = await train(precalculate_logprobs=True, grad_accumulation_sequences=2)
        assert before.metrics["loss/ratio_max"] >= 1

        # The step's own checkpoint as reference is the reference by its number; a copy elsewhere is it too.
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            source = tmp_path / "p" / "models" / "a" / "checkpoints" / "0002" / name
            (elsewhere / name).write_bytes(source.read_bytes())
        groups, found = [await play_group(model)], []
        for reference in (
            {"kl_penalty_reference_step": 2},
            {"kl_ref_adapter_path": str(tmp_path / "p" / "models" / "a" / "checkpoints" / "0002")},
            {"kl_ref_adapter_path": str(elsewhere), "kl_penalty_reference_step": 9},
        ):
            metrics = (await train(*groups, kl_penalty_coef=0.5, learning_rate=1e-12, **reference)).metrics
            found.append(metrics["loss/kl_policy_ref"])
        for source in ("current_learner", "sample"):
            moving = {"kl_penalty_step_lag": await model.get_step() - 2, "kl_penalty_source": source}
            metrics = (await train(*groups, kl_penalty_coef=0.5, learning_rate=1e-12, **moving)).metrics
            found.append(metrics["loss/kl_policy_ref"])
        assert found[0] != 0 and found == pytest.approx([found[0]] * 5, rel=1e-3)
        for keywords in (
            {"kl_penalty_reference_step": 0, "learning_rate": 1e-12},
            {"kl_penalty_sync_steps": await model.get_step() + 2, "learning_rate": 1e-12},
            {"kl_penalty_mixup": 0.5, "learning_rate": 1e-3},
            {"kl_penalty_mixup": 0.5, "kl_penalty_sync_steps": 2},
        ):
            metrics = (await train(*groups, kl_penalty_coef=0.5, **keywords)).metrics
            found.append(metrics["loss/kl_policy_ref"])
        # The newest multiple is 0; an average starts as the policy, which then leaves it.
        assert found[6] == pytest.approx(found[5], rel=1e-3) and found[5] != 0 == found[7] != found[8]
        folders = [tmp_path / "p" / "models" / "a" / "checkpoints" / f"{await model.get_step():04d}"]
        assert (folders[0] / "average.safetensors").is_file()
        adaptive = {"target": 1e-6, "step": 0.01, "coefficient": 0.02}
        acted = (await train(*groups, entropy=adaptive, top_entropy=0.2)).metrics
        assert acted["loss/entropy_coefficient"] == 0.02 and acted["loss/top_entropy_least"] > 0
        assert (await train(*groups, entropy=adaptive)).metrics["loss/entropy_coefficient"] == 0
        copies = list((tmp_path / "server" / "references").iterdir())
        assert len(copies) == 1
        remote = art.RemoteBackend(model.inference_base_url, model.inference_api_key)
        with pytest.raises(RequestError, match="below its project's folder"):
            await remote.train(model, groups, kl_penalty_coef=0.5, kl_ref_adapter_path=str(elsewhere))
        await remote.close()
        low = [line for line in caplog.messages if "the learning rate of a is" in line]
        assert len(low) == 1 and "1e-12" in low[0], "told once; 1e-4 is near enough"


async def test_a_learning_rate_that_destroys_the_model_is_told_with_the_way_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = resolve_settings(QuickstartChoices(task="tic-tac-toe", groups=4, group_size=6))
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        for step in range(2):
            played = await roll_out(model, tasks.find("tic-tac-toe"), settings, step)
            await backend.train(model, played.groups, learning_rate=1.0)
    (rate,) = [line for line in caplog.messages if line.startswith("the learning rate of a is 1, ")]
    assert "times above" in rate and "one step may destroy the model" in rate
    (diverged,) = [line for line in caplog.messages if "The policy has diverged" in line]
    assert diverged.startswith("step 2 of a: ") and "it was 1, the literature gives 0.00" in diverged


async def test_served_names_and_leases(tmp_path: Path) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    async with art.LocalBackend(
        path=str(tmp_path), server_options={"control": {"keep_loaded": 9}}
    ) as backend:
        await model.register(backend)
        for _ in range(3):
            await backend.train(model, [await play_group(model)], learning_rate=1e-3)
        own = openai.AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key)

        async def step_of(name: str) -> int | None:
            reply = await own.chat.completions.create(model=name, messages=[ASK], max_tokens=2)
            step: int | None = reply.choices[0].model_extra["step"]
            return step

        names = ("a", "a@1", "p/a", "p/a@0", "art/nano", "art/nano-games", model.inference_model_name)
        assert [await step_of(name) for name in names] == [3, 1, 3, 0, None, None, 3]

        async def loaded() -> set[str]:
            return {row.id for row in (await own.models.list()).data if "@" in row.id}

        async with backend.adapter_lease(model, 1):
            assert await step_of(model.get_inference_name()) == 1
            assert await backend.prune_model_adapters(model, retain_steps={2}) == [0]
            assert await loaded() == {"a@1", "a@2", "a@3"}
            await model.delete_checkpoints()
        folder = tmp_path / "p" / "models" / "a" / "checkpoints"
        assert sorted(path.name for path in folder.iterdir() if path.name.isdigit()) == ["0001", "0003"]
        assert await step_of("a") == 3
        with pytest.raises(openai.NotFoundError):
            await step_of("a@2")
        await own.close()


async def test_a_notebook_s_configuration_trains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    model._internal_config = art.dev.InternalModelConfig(
        init_args=dev.InitArgs(max_seq_length=8192),
        engine_args=dev.EngineArgs(enforce_eager=True, gpu_memory_utilization=0.8),
    )
    with art.LocalBackend(in_process=True, path=str(tmp_path)) as backend:
        with caplog.at_level(logging.WARNING, "art.client"):
            await model.register(backend)
        (line,) = [line for line in caplog.messages if "no effect here" in line]
        assert "enforce_eager, gpu_memory_utilization" in line
        result = await model.train([await play_group(model)], art.TrainConfig(learning_rate=1e-3))
        assert result.step == 1 and result.metrics["trained"] == 1
        await backend.close()


async def test_length_and_chat_format_are_the_model_s(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{{ style }}"
    async with art.LocalBackend(path=str(tmp_path)) as backend:

        async def registered(name: str, **config: Any) -> art.TrainableModel:
            model = art.TrainableModel(name=name, project="p", base_model="art/nano", _internal_config=config)
            await model.register(backend)
            return model

        short = await registered("short", init_args={"max_seq_length": 24})
        with pytest.raises(openai.BadRequestError, match="maximum context length") as refused:
            await play(short, 0.0, messages=[{"role": "user", "content": "yes or no? " * 20}])
        assert refused.value.code == "context_length_exceeded"
        reply = (await play(short, 0.0, max_tokens=500)).messages_and_choices[-1]
        assert reply.finish_reason in ("length", "stop") and reply.model_extra["completion_tokens"] < 24

        with pytest.raises(RequestError, match=r"enable_thinkin'.*which takes: enable_thinking"):
            await registered("wrong", chat_template_kwargs={"enable_thinkin": False})
        quiet = await registered("quiet", chat_template_kwargs={"enable_thinking": False})
        assert (await backend.train(quiet, [await play_group(quiet)])).metrics["trained"] == 1

        styled = await registered("styled", chat_template=template, chat_template_kwargs={"style": "maybe"})
        plain = openai.AsyncOpenAI(base_url=styled.inference_base_url, api_key=styled.inference_api_key)
        for extra, written in ((None, "maybe"), ({"chat_template_kwargs": {"style": "no"}}, "no")):
            reply = await plain.chat.completions.create(
                model="styled", messages=[ASK], max_tokens=2, extra_body=extra
            )
            sample = await plain.get(f"/samples/{reply.choices[0].model_extra['sample_id']}", cast_to=object)
            prompt: Any = sample
            tokens = prompt["prompt_ids"]
            assert tokens[-len(written_ids(written)) :] == written_ids(written)
        await plain.close()
    config = json.loads((tmp_path / "p" / "models" / "styled" / "model.json").read_text())
    assert config["_internal_config"]["chat_template_kwargs"] == {"style": "maybe"}


def written_ids(text: str) -> list[int]:
    from transformers import PreTrainedTokenizerFast

    from art.engine.nano_models import resolve

    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve("art/nano"))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


async def test_a_model_in_four_bits_is_sampled_and_trained_in_four_bits(tmp_path: Path) -> None:
    """The start-up check has compared the engine with the trainer, and the canary the step that is served."""
    config = dev.InternalModelConfig(init_args=dev.InitArgs(load_in_4bit=True))
    small = art.TrainableModel(name="small", project="p", base_model="art/nano", _internal_config=config)
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await small.register(backend)
        result = await backend.train(small, [await play_group(small)], learning_rate=1e-3)
        assert result.step == 1 and result.sheet.fates["trained"].rollouts > 0
        choice: Any = (await play(small, 0.0)).messages_and_choices[-1]
        assert choice.model_extra["step"] == 1
    checkpoint = Path(str(result.checkpoint_path))
    state, adapter = (
        json.loads((checkpoint / name).read_text()) for name in ("trainer_state.json", "adapter_config.json")
    )
    assert state["base_model"] == "art/nano-games#4bit"
    assert adapter["base_model_name_or_path"] == "art/nano-games"
