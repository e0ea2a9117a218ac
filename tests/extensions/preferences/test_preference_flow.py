"""Preferences through the real server: what is preferred becomes likelier, and is scored higher."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import art
from art.environments.tasks import yes_no_maybe
from art.errors import ARTError, NotFoundError, RequestError
from art.rewards import RewardModel
from art_extensions.preferences import pairs_of_groups, train_dpo, train_kto, train_reward_model

pytestmark = pytest.mark.slow

QUESTIONS = yes_no_maybe.phrasings()[:12]
ANSWERS = ("yes", "no", "maybe")
RATE = 2e-3


def last_word(question: str) -> str:
    """What is preferred: the word named last."""
    return question.split()[-1].strip("'")


PAIRS = [
    {"prompt": question, "chosen": last_word(question), "rejected": answer}
    for question in QUESTIONS
    for answer in ANSWERS
    if answer != last_word(question)
]
LABELLED = [
    {"prompt": question, "completion": answer, "label": answer == last_word(question)}
    for question in QUESTIONS
    for answer in ANSWERS
]


def made(name: str) -> art.TrainableModel:
    return art.TrainableModel(name=name, project="p", base_model="art/nano-games")


async def accuracy(model: art.Model, name: str | None = None) -> float:
    async def ask(question: str) -> bool:
        completion = await model.openai_client().chat.completions.create(
            model=name or model.get_inference_name(),
            messages=[{"role": "user", "content": question}],
            max_tokens=4,
            temperature=0,
        )
        return completion.choices[0].message.content == last_word(question)

    return sum(await asyncio.gather(*map(ask, QUESTIONS))) / len(QUESTIONS)


async def test_pairs_are_learned_served_and_resumed(tmp_path: Path) -> None:
    model = made("player")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        before = await accuracy(model)
        first = await train_dpo(model, PAIRS, learning_rate=RATE, epochs=2)
        assert first.step == 1 and first.metrics["data/step_num_gradient_steps"] == 6
        assert first.metrics["data/sheet/trained_rollouts"] == 2 * len(PAIRS)
        assert first.sheet is not None and first.sheet.started.rollouts == 2 * len(PAIRS)
        await train_dpo(model, PAIRS, learning_rate=RATE, epochs=2, seed=1)
        assert before < 0.6 and await accuracy(model) >= 0.9
        assert await accuracy(model, "player@0") == before
        with pytest.raises(RequestError, match="the job expects step 0"):
            await train_dpo(model, PAIRS, expected_step=0)

    model = made("player")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        assert await model.get_step() == 2 and await accuracy(model) >= 0.9
        # Against the step that it is at, nothing was learned yet: each pair is undecided.
        third = await train_dpo(model, PAIRS[:8], reference=2, learning_rate=0.0)
        assert third.step == 3
        assert third.metrics["objective/margin"] == pytest.approx(0.0, abs=1e-5)
        assert third.metrics["loss/train"] == pytest.approx(0.6931, abs=1e-4)
        against_base = await train_dpo(model, PAIRS[:8], learning_rate=0.0)
        assert against_base.metrics["objective/margin"] > 0.3
        folder = str(tmp_path / "p" / "models" / "player" / "checkpoints" / "0002")
        by_folder = await train_dpo(model, PAIRS[:8], reference=folder, learning_rate=0.0)
        assert by_folder.metrics["objective/margin"] == pytest.approx(0.0, abs=1e-5)
        with pytest.raises(NotFoundError, match=r"algorithm.kl.step = 99"):
            await train_dpo(model, PAIRS[:8], reference=99)
        assert await model.get_step() == 5, "a job that was refused makes no step"
        ipo = await train_dpo(model, PAIRS[:8], loss="ipo", length_normalised=True, learning_rate=RATE)
        assert ipo.step == 6
    states = sorted((tmp_path / "p" / "models" / "player" / "checkpoints").glob("*/trainer_state.json"))
    assert [json.loads(one.read_text())["kind"] for one in states] == ["rl", *["preference"] * 6]
    rows = (tmp_path / "p" / "models" / "player" / "history.jsonl").read_text().splitlines()
    logged = {row["step"]: row for row in map(json.loads, rows) if "objective/accuracy" in row}
    assert sorted(logged) == [1, 2, 3, 4, 5, 6]


async def test_the_best_of_each_group_against_its_worst(tmp_path: Path) -> None:
    model = made("groups")

    async def rollout(question: str) -> art.Trajectory:
        asked: Any = {"role": "user", "content": question}
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[asked], max_tokens=4
        )
        choice = completion.choices[0]
        reward = float(choice.message.content == last_word(question))
        return art.Trajectory(messages_and_choices=[asked, choice], reward=reward)

    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(rollout(question) for _ in range(6)) for question in QUESTIONS
        )
        pairs = pairs_of_groups(groups)
        assert 3 <= len(pairs) <= len(QUESTIONS)
        result = await train_dpo(model, pairs, learning_rate=RATE)
        assert result.step == 1 and result.sheet is not None
        trained = result.sheet.fates["trained"]
        assert trained.rollouts == len(pairs) and trained.tokens >= 2 * len(pairs)


async def test_labelled_replies_are_learned(tmp_path: Path) -> None:
    model = made("labelled")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        before = await accuracy(model)
        first = await train_kto(model, LABELLED, learning_rate=0.0)
        assert first.metrics["objective/reference_point"] == pytest.approx(0.0, abs=1e-5)
        assert first.metrics["loss/train"] == pytest.approx(0.5, abs=1e-4), "no reply is better than any"
        assert first.metrics["objective/desirable"] == pytest.approx(1 / 3, abs=0.1)
        for seed in range(2):
            last = await train_kto(
                model, LABELLED, learning_rate=RATE, epochs=2, undesirable_weight=0.5, seed=seed
            )
        assert before < 0.6 and await accuracy(model) >= 0.8
        assert last.metrics["objective/chosen_reward"] > last.metrics["objective/rejected_reward"] + 0.3
        assert (await train_kto(model, [])).step == 3


async def test_a_reward_model_scores_trajectories(tmp_path: Path) -> None:
    model = made("judge")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        for seed in range(4):
            result = await train_reward_model(model, PAIRS, learning_rate=RATE, epochs=3, seed=seed)
        assert result.metrics["objective/accuracy"] > 0.7
        assert "objective/chosen_reward" not in result.metrics

        async def right(reward: RewardModel) -> float:
            found = 0
            for question in QUESTIONS:
                answers = [last_word(question), *(one for one in ANSWERS if one != last_word(question))]
                group = art.TrajectoryGroup(
                    [
                        art.Trajectory(
                            messages_and_choices=[
                                {"role": "user", "content": question},
                                {"role": "assistant", "content": answer},
                            ]
                        )
                        for answer in answers
                    ]
                )
                scored = await reward.score_group(group)
                rewards: list[Any] = [one.reward for one in scored]
                assert all(isinstance(one, float) for one in rewards), rewards
                found += rewards[0] > rewards[1]
                found += rewards[0] > rewards[2]
            return found / (2 * len(QUESTIONS))

        trained, untrained = await right(RewardModel(model)), await right(RewardModel(model, step=0))
        assert trained > 0.75 and trained > untrained + 0.1, (trained, untrained)


async def test_what_only_the_server_can_know_is_refused_by_name(tmp_path: Path) -> None:
    model = made("odd")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        with pytest.raises(ARTError, match=r"pair 0, chosen and pair 0, rejected are the same tokens"):
            await train_dpo(
                model,
                [
                    {
                        "prompt": "yes or no?",
                        "chosen": {"role": "assistant", "content": "yes", "name": "a"},
                        "rejected": {"role": "assistant", "content": "yes", "name": "b"},
                    }
                ],
            )
        assert await model.get_step() == 0
