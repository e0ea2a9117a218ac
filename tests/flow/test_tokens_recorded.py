"""The tokens of real steps, read from the files of a run whose server has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import art
from art.tracking.folders import ModelPaths
from art.tracking.step_record import read_rollouts, read_tokens

pytestmark = pytest.mark.slow

ASK = {"role": "user", "content": "yes or no?"}


async def play(model: art.TrainableModel, reward: float) -> art.Trajectory:
    client, said = model.openai_client(), art.Trajectory(messages_and_choices=[ASK], reward=reward)
    reply = await client.chat.completions.create(
        model=model.get_inference_name(), messages=said.messages(), max_tokens=6, logprobs=True
    )
    said.messages_and_choices.append(reply.choices[0])
    return said


async def test_each_trained_token_is_recorded_and_joined_with_its_sample(tmp_path: Path) -> None:
    model = art.TrainableModel(name="a", project="p", base_model="art/nano")
    options = {"control": {"token_steps": 2}}
    sampled: dict[str, list[float]] = {}
    async with art.LocalBackend(path=str(tmp_path), server_options=options) as backend:
        await model.register(backend)
        results = []
        for record in ("auto", "none", "all", "auto"):
            group = await art.TrajectoryGroup([play(model, reward) for reward in (0.0, 1.0, 1.0)])
            for trajectory in group:
                choice: Any = trajectory.messages_and_choices[-1]
                logprobs = [one.logprob for one in choice.logprobs.content]
                sampled[choice.model_extra["sample_id"]] = logprobs
            results.append(await backend.train(model, [group], learning_rate=1e-4, record_tokens=record))
    paths = ModelPaths(tmp_path / "p" / "models" / "a")
    tables = {step: read_tokens(paths.tokens(step)) for step in range(6)}
    assert {step for step, table in tables.items() if table is not None} == {3, 4}, "of the newest two"
    for step in (3, 4):
        table, metrics = tables[step], results[step - 1].metrics
        assert table is not None and table.complete and table.header.step == step
        assert len(table) == metrics["data/step_trainer_tokens"] == metrics["data/entries"]
        assert set(table.header.samples) <= set(sampled) and len(table.header.rollouts) == 3
        for sample_id in table.header.samples:
            rows = table.of_sample(sample_id)
            assert rows is not None
            np.testing.assert_allclose(rows["logprob"], sampled[sample_id], atol=1e-3)
            np.testing.assert_array_equal(rows["place"], np.arange(len(sampled[sample_id])))
        weight_E = np.exp(table.columns["logprob"].astype(np.float64) - _sampled(table, sampled))
        np.testing.assert_allclose(table.columns["ratio"], weight_E, atol=1e-3)
        assert metrics["loss/ess"] == pytest.approx(1, abs=1e-3) and 0 <= metrics["loss/mismatch_k3"] < 1e-6
        assert metrics["loss/logprob_difference_p99"] <= metrics["loss/logprob_difference_max"] < 1e-3
        assert np.abs(table.columns["advantage"]).mean() == pytest.approx(metrics["loss/advantage_abs"])
        rollouts = {one.rollout: one for one in read_rollouts(paths.path, step)}
        assert list(rollouts) == table.header.rollouts, "the two files of a step are one record"
        for number, (name, group) in enumerate(zip(rollouts, table.header.groups, strict=True)):
            one, mine = rollouts[name], table.columns["rollout"] == number
            assert (one.fate, one.group, one.samples) == ("trained", group, table.samples_of(name))
            assert one.tokens == mine.sum()
            assert one.advantage == pytest.approx(table.columns["advantage"][mine].mean())
        mean = float(table.columns["entropy"].astype(np.float64).mean())
        assert mean == pytest.approx(metrics["loss/entropy"], abs=1e-2)
    assert {"loss/ess", "loss/mismatch_k3"} <= set(results[1].metrics), "with no record, too"


def _sampled(table: Any, sampled: dict[str, list[float]]) -> np.ndarray:
    return np.concatenate([sampled[sample_id] for sample_id in table.header.samples])
