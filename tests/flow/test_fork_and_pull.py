"""A model that goes on elsewhere goes on exactly: as a fork beside the original, and on another machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import art
from art.errors import CheckpointMissingError, RequestError, StepMissingError

CONFIG = {"peft_args": {"r": 4, "lora_alpha": 8}}


def trainable(name: str, project: str = "flow", **options: object) -> art.TrainableModel:
    return art.TrainableModel(name=name, project=project, base_model="art/nano", **options)  # type: ignore[arg-type]


async def attempt(model: art.TrainableModel, seed: int) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": "yes, no or maybe?"}])
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=6, seed=seed
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    trajectory.reward = float(seed % 3)
    return trajectory


async def train(model: art.TrainableModel, step: int) -> int:
    """One step on rollouts that the seeds alone decide, one after the other."""
    group = art.TrajectoryGroup([await attempt(model, 100 * step + number) for number in range(6)])
    return (await model.train([group], config=art.TrainConfig(learning_rate=1e-2))).step


def step_of(data: Path, model: art.TrainableModel, step: int) -> dict[str, bytes]:
    folder = data / model.project / "models" / model.name / "checkpoints" / f"{step:04d}"
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "job.json"}


@pytest.mark.slow
async def test_a_fork_goes_on_exactly_like_the_original(tmp_path: Path) -> None:
    original = trainable("original", _internal_config=CONFIG)
    before, after, far = (
        trainable("before"),
        trainable("after", _internal_config=CONFIG),
        trainable("far", "b"),
    )
    async with art.LocalBackend(path=tmp_path) as backend:
        with pytest.raises(FileNotFoundError, match="No checkpoints found for model flow/original"):
            await backend._experimental_fork_checkpoint(before, "original")
        await original.register(backend)
        for step in range(2):
            await train(original, step)
        with pytest.raises(CheckpointMissingError):
            await backend.fork_checkpoint(before, "nobody")
        with pytest.raises(StepMissingError, match=r"of step 5 found\. Available steps: \[0, 1, 2\]"):
            await backend.fork_checkpoint(before, "original", step=5)

        # Before it is registered, with a configuration that leaves the adapter's shape open.
        await backend._experimental_fork_checkpoint(before, "original")
        await before.register(backend)
        # Registered and served already: the fork is served at once.
        await after.register(backend)
        assert (await attempt(after, 1)).messages_and_choices[1].model_extra["step"] == 0
        assert await backend.fork_checkpoint(after, "original", not_after_step=2) == 2
        assert (await attempt(after, 1)).messages_and_choices[1].model_extra["step"] == 2
        # From another project, an older step.
        await backend._experimental_fork_checkpoint(far, "original", from_project="flow", not_after_step=1)
        await far.register(backend)
        assert [await model.get_step() for model in (before, after, far)] == [2, 2, 1]

        for model in (original, before, after):
            await attempt(model, 1)  # in the same state of the engine's cache
            assert await train(model, 2) == 3
        assert step_of(tmp_path, before, 3) == step_of(tmp_path, original, 3)
        assert step_of(tmp_path, after, 3) == step_of(tmp_path, original, 3)
        assert await train(far, 1) == 2
        assert step_of(tmp_path, far, 2) == step_of(tmp_path, original, 2)

        with pytest.raises(RequestError, match="has steps of its own"):
            await backend.fork_checkpoint(after, "original")
        other = trainable("other", _internal_config={"peft_args": {"r": 2}})
        await other.register(backend)
        with pytest.raises(RequestError, match="holds the LoRA"):
            await backend.fork_checkpoint(other, "original")
        assert await other.get_step() == 0 and await train(other, 0) == 1


@pytest.mark.slow
async def test_a_pulled_model_goes_on_exactly_elsewhere(tmp_path: Path) -> None:
    bucket, model = f"file://{tmp_path}/bucket", trainable("agent", _internal_config=CONFIG)
    async with art.LocalBackend(path=tmp_path / "a") as backend:
        with pytest.warns(DeprecationWarning, match="is an older name"):
            await backend._experimental_pull_from_s3(model, s3_bucket=bucket)  # a first run: nothing is there
        await model.register(backend)
        for step in range(2):
            await train(model, step)
        await backend._experimental_push_to_s3(model, s3_bucket=bucket, prefix="runs")
        assert await train(model, 2) == 3  # it goes on here
    again = trainable("agent", _internal_config=CONFIG)
    async with art.LocalBackend(path=tmp_path / "b") as backend:
        with pytest.warns(DeprecationWarning, match="is an older name"):
            await backend._experimental_pull_from_s3(again, s3_bucket=bucket, prefix="runs")
        await again.register(backend)
        assert await again.get_step() == 2 and await train(again, 2) == 3
        assert step_of(tmp_path / "b", again, 3) == step_of(tmp_path / "a", model, 3)
        history = (tmp_path / "b" / "flow" / "models" / "agent" / "history.jsonl").read_text()
        assert [json.loads(line)["training_step"] for line in history.splitlines()] == [1, 2, 3]
        # While it is served: a step that another machine trained further is served at once.
        await backend.push_model(again, bucket=bucket, prefix="later")
        behind = trainable("agent", "second")
        shutil.copytree(tmp_path / "bucket" / "later" / "flow", tmp_path / "bucket" / "later" / "second")
        await backend.pull_model(behind, bucket=bucket, prefix="later", step=1)
        await behind.register(backend)
        assert await behind.get_step() == 1
        await backend.pull_model(behind, bucket=bucket, prefix="later")
        assert await behind.get_step() == 3
        assert (await attempt(behind, 1)).messages_and_choices[1].model_extra["step"] == 3
        # What the bucket does not have gives way, and is served no more.
        assert await train(behind, 3) == 4
        await backend.pull_model(behind, bucket=bucket, prefix="later", delete=True)
        assert await behind.get_step() == 3
        assert (await attempt(behind, 1)).messages_and_choices[1].model_extra["step"] == 3
        assert await train(behind, 3) == 4
        # One checkpoint, wherever it is.
        copied = str(tmp_path / "copy")
        folder = await backend._experimental_pull_model_checkpoint(behind, step=3, local_path=copied)
        assert folder == str(tmp_path / "copy") and (tmp_path / "copy" / "adapter_config.json").is_file()
        # A fork of a model that is in a bucket only.
        shutil.copytree(tmp_path / "bucket" / "later" / "flow", tmp_path / "bucket" / "third")
        forked = trainable("forked")
        await backend._experimental_fork_checkpoint(
            forked, "agent", from_project="third", from_s3_bucket=bucket, not_after_step=2
        )
        await forked.register(backend)
        assert await forked.get_step() == 2


@pytest.mark.slow
async def test_rl_begins_with_a_lora_that_another_program_made(tmp_path: Path) -> None:
    teacher = trainable("teacher", _internal_config=CONFIG)
    async with art.LocalBackend(path=tmp_path / "data") as backend:
        await teacher.register(backend)
        await train(teacher, 0)
        made = tmp_path / "data" / "flow" / "models" / "teacher" / "checkpoints" / "0001"
        lora = tmp_path / "sft"
        lora.mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(made / name, lora / name)
        student = art.TrainableModel(name="student", project="flow", base_model=str(lora))
        await student.register(backend)
        assert await student.get_step() == 0
        mine, theirs = [await attempt(model, 5) for model in (student, teacher)]
        assert mine.messages_and_choices[1].message.content == theirs.messages_and_choices[1].message.content
        assert await train(student, 0) == 1
        await student.register(backend)  # again, as a second run does
        assert await student.get_step() == 1

        # Upstream's own checkpoints, where it left them.
        for step in (0, 7):
            theirs_at = tmp_path / "data" / "flow" / "models" / "older" / "checkpoints" / f"{step:04d}"
            shutil.copytree(lora, theirs_at)
            (theirs_at / "tokenizer.json").write_text("{}")
        older = trainable("older")
        await older.register(backend)
        assert await older.get_step() == 7 and await train(older, 0) == 8

        stranger = json.loads((lora / "adapter_config.json").read_text())
        stranger["base_model_name_or_path"] = "art/nano-tools"
        (lora / "adapter_config.json").write_text(json.dumps(stranger))
        other = art.TrainableModel(name="other", project="flow", base_model=str(lora))
        with pytest.raises(RequestError, match="adapter"):
            await other.register(backend)
