"""vLLM and the builtin engine give a trajectory the same score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import art
from art.rewards import RewardModel
from art_extensions.preferences import train_reward_model

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

ENVIRONMENT = Path(__file__).parents[3] / ".venv-vllm"
VLLM = {
    "engine": {"name": "vllm", "options": {"environment": str(ENVIRONMENT), "threads": 1}},
    "trainer": {"options": {"threads": 1}},
}
QUESTION = "respond with yes, no or maybe"
PAIRS = [{"prompt": QUESTION, "chosen": "maybe", "rejected": word} for word in ("yes", "no")]


async def scores(folder: Path, **options: Any) -> list[float]:
    """The scores of step 1, which is made where it is missing."""
    model = art.TrainableModel(name="judge", project="p", base_model="art/nano-games")
    async with art.LocalBackend(path=str(folder), **options) as backend:
        await model.register(backend)
        if not await model.get_step():
            await train_reward_model(model, PAIRS, learning_rate=2e-3, epochs=4)
        said = [
            [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": word}]
            for word in ("yes", "no", "maybe")
        ]
        group = art.TrajectoryGroup([art.Trajectory(messages_and_choices=one) for one in said])
        return [one.reward for one in await RewardModel(model, step=1).score_group(group)]  # type: ignore[misc]


async def test_both_engines_give_the_same_scores(tmp_path: Path) -> None:
    builtin = await scores(tmp_path)
    assert builtin[2] > builtin[0] and builtin[2] > builtin[1]
    assert await scores(tmp_path, server_options=VLLM) == pytest.approx(builtin, abs=1e-2)
