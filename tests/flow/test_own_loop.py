"""A training loop of one's own over HTTP: gradients batch by batch, steps, and a trainer that dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from safetensors.numpy import load

import art
from art.batch.algorithms import resolve
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.encode import encode_batch
from art.wire.training import GradientUse, OptimizerSpec, TrainRequest

pytestmark = pytest.mark.slow

ADAM = {"learning_rate": None, "betas": [0.9, 0.95], "eps": 1e-12, "max_grad_norm": 1e30}
ALGORITHM = resolve("importance_sampling")


def body(seed: int, step: int, update: int, use: GradientUse = "add") -> bytes:
    """Two rollouts of a few ids, drawn from the seed."""
    dice = np.random.default_rng(seed)
    rollouts = []
    for number in range(2):
        ids = dice.integers(0, 200, 9).tolist()
        row = SampleRow(
            sample_id=f"{seed}.{number}",
            prompt_ids=ids[:4],
            completion_ids=ids[4:],
            completion_logprobs=[-2.0] * 5,
        )
        rollouts.append(RolloutRow(rollout=f"{seed}.{number}", reward=float(number), samples=[row]))
    batch = build_batch([GroupRow(rollouts=rollouts)], algorithm=ALGORITHM)
    request = TrainRequest(
        model="-",
        step=step,
        update=update,
        gradient=use,
        algorithm=ALGORITHM,
        optimizer=OptimizerSpec(learning_rate=None),
        normalizer=1.0,
        sampling=list(batch.sampling),
    )
    return encode_batch(batch, request)


class Loop:
    """One model's routes."""

    def __init__(self, model: art.TrainableModel) -> None:
        url = str(model.inference_base_url).removesuffix("/v1")
        self.path = f"{url}/art/models/{model.project}/{model.name}"
        self.http = httpx.Client(headers={"authorization": f"Bearer {model.inference_api_key}"}, timeout=300)

    def add(self, seed: int, step: int, update: int, use: GradientUse = "add") -> dict[str, Any]:
        reply = self.http.post(f"{self.path}/gradients", content=body(seed, step, update, use))
        assert reply.status_code == 200, reply.text
        return dict(load(reply.content))

    def step(self, name: str, at: int, batches: int, **more: object) -> httpx.Response:
        asked = {"job_id": name, "expected_step": at, "batches": batches, "optimizer": ADAM, "rate": 1e-2}
        return self.http.post(f"{self.path}/step", content=json.dumps({**asked, **more}))


def checkpoints(data: Path, model: art.TrainableModel) -> Path:
    return data / model.project / "models" / model.name / "checkpoints"


def weights(data: Path, model: art.TrainableModel, step: int) -> bytes:
    return (checkpoints(data, model) / f"{step:04d}" / "adapter_model.safetensors").read_bytes()


def trainable(name: str) -> art.TrainableModel:
    config = art.dev.InternalModelConfig(peft_args=art.dev.PeftArgs(r=4, lora_alpha=8, random_state=3))
    return art.TrainableModel(name=name, project="flow", base_model="art/nano", _internal_config=config)


@pytest.mark.parametrize("ranks", [1, 2])
async def test_steps_of_added_gradients_are_made_once_and_survive_the_trainer(
    ranks: int, tmp_path: Path
) -> None:
    straight, disturbed = trainable("straight"), trainable("disturbed")
    async with art.LocalBackend(path=tmp_path, server_options={"trainer": {"ranks": ranks}}) as backend:
        for model in (straight, disturbed):
            await model.register(backend)
        calm, rough = Loop(straight), Loop(disturbed)
        for at in range(2):
            for number in range(2):
                calm.add(10 * at + number, at, number)
            assert calm.step(f"calm-{at}", at, 2).json()["step"] == at + 1

        first = rough.add(0, 0, 0)
        scored = rough.add(0, 0, 1, "none")
        assert (first["logprob"] == scored["logprob"]).all() and len(first["logprob"]) == 10
        rough.add(1, 0, 1)
        made = rough.step("rough-0", 0, 2).json()
        assert made == {**made, "step": 1} and made["metrics"]["loss/grad_norm"] > 0
        assert rough.step("rough-0", 0, 2).json() == made  # the same name is the same step

        rough.add(10, 1, 0)
        kill_trainer(backend)
        lost = rough.step("rough-1", 1, 1)
        while lost.status_code == 503:  # the trainer is being started again
            lost = rough.step("rough-1", 1, 1)
        assert lost.status_code == 409 and lost.json()["error"]["code"] == "gradients_lost"
        rough.add(10, 1, 0)
        rough.add(11, 1, 1)
        assert rough.step("rough-1", 1, 2).json()["step"] == 2
        for step in (1, 2):
            assert weights(tmp_path, straight, step) == weights(tmp_path, disturbed, step)

        served = rough.http.post(f"{rough.path}/serve", content='{"step": 2}').json()
        assert served["model"] == "disturbed@2"
        reply = await disturbed.openai_client().chat.completions.create(
            model=disturbed.get_inference_name(),
            messages=[{"role": "user", "content": "yes, no or maybe?"}],
            max_tokens=2,
        )
        assert reply.choices[0].model_extra is not None and reply.choices[0].model_extra["step"] == 2
        assert rough.http.post(f"{rough.path}/release").status_code == 200
        rough.add(20, 2, 0)  # opened again from its checkpoint
        assert rough.step("rough-2", 2, 1).json()["step"] == 3
        rough.add(30, 3, 0)
        assert rough.step("rough-3", 3, 1, keep_steps=[1]).json()["step"] == 4
        left = {folder.name for folder in checkpoints(tmp_path, disturbed).iterdir()}
        assert left == {"0001", "0002", "0004"}  # what was named, the one that is served, the newest


@pytest.mark.parametrize("shared", [True, False])
async def test_models_that_train_at_the_same_time_end_as_each_would_alone(
    shared: bool, tmp_path: Path
) -> None:
    """Six models of one base, each with the same two steps. In turns they are equal to the last bit."""
    trainer = {"trainer": {"options": {"shared_passes": shared}}}
    async with art.LocalBackend(path=tmp_path, server_options=trainer) as backend:
        alone, *others = [trainable(f"m{number}") for number in range(6)]
        for model in (alone, *others):
            await model.register(backend)
        train_twice(Loop(alone))
        await asyncio.gather(*(asyncio.to_thread(train_twice, Loop(model)) for model in others))
        expected = load(weights(tmp_path, alone, 2))
        for model in others:
            found = load(weights(tmp_path, model, 2))
            for name, tensor in expected.items():
                assert np.abs(found[name] - tensor).max() <= (1e-5 if shared else 0.0), name


def train_twice(loop: Loop) -> None:
    for at in range(2):
        for number in range(2):
            loop.add(10 * at + number, at, number)
        assert loop.step(f"{loop.path}-{at}", at, 2).json()["step"] == at + 1


async def test_what_is_no_such_batch_is_refused(tmp_path: Path) -> None:
    model = trainable("refused")
    async with art.LocalBackend(path=tmp_path) as backend:
        await model.register(backend)
        loop = Loop(model)
        answers = [
            loop.http.post(f"{loop.path}/gradients", content=content)
            for content in (b"nothing", body(0, 0, 0, "step"), body(0, 0, 1), body(0, 7, 0))
        ]
        assert [one.status_code for one in answers] == [400, 400, 409, 409]
        codes = [one.json()["error"]["code"] for one in answers]
        assert codes == ["invalid_batch", "invalid_batch", "gradients_lost", "batch_refused"]
        missing = loop.http.post(f"{loop.path}/serve", content='{"step": 9}')
        assert missing.status_code == 404 and "its steps: [0]" in missing.json()["error"]["message"]


def kill_trainer(backend: art.LocalBackend) -> None:
    """SIGKILL, as the kernel does where memory ends."""
    pid = backend._server.pid
    assert pid is not None
    children = psutil.Process(pid).children(recursive=True)
    trainer, *_ = [one for one in children if "art.training.worker" in one.cmdline()]
    os.kill(trainer.pid, signal.SIGKILL)
