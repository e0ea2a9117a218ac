"""One token from the model that draws it to the weights it changes, through the real server.

The stations are those of docs/internals/life-of-a-token.md, and every file that page names exists.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file

import art
from waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "internals" / "life-of-a-token.md"


def test_every_station_links_to_a_file_that_exists() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text())
    assert len(links) == 17
    missing = [link for link in links if not (PAGE.parent / link).resolve().exists()]
    assert not missing, missing


async def two_turns(model: art.TrainableModel, question: str, seed: int = 0) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}], reward=0.0)
    for follow_up in (None, "and now?"):
        if follow_up is not None:
            trajectory.messages_and_choices.append({"role": "user", "content": follow_up})
        completion = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(),
            messages=trajectory.messages(),
            max_tokens=6,
            temperature=3.0,
            seed=seed,
        )
        trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


def sample_ids(trajectory: art.Trajectory) -> list[str]:
    return [
        item.model_extra["sample_id"]
        for item in trajectory.messages_and_choices
        if not isinstance(item, dict)
    ]


@pytest.mark.slow
async def test_a_token_makes_the_whole_round(tmp_path: Path) -> None:
    model = art.TrainableModel(name="walker", project="flow", base_model="art/nano")
    async with art.LocalBackend(path=str(tmp_path)) as backend:
        await model.register(backend)
        assert await model.get_step() == 0

        # Stations 1 to 6: rollouts with rewards that differ. At temperature 1 all four may say the same.
        groups = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(two_turns(model, "yes, no or maybe?", seed) for seed in range(4))]
        )
        for reward, trajectory in enumerate(groups[0].trajectories):
            trajectory.reward = float(reward)

        # The ledger holds what was sampled, and the second turn's prompt extends the first turn's ids.
        headers = {"Authorization": f"Bearer {model.inference_api_key}"}
        async with httpx.AsyncClient(
            base_url=str(model.inference_base_url), headers=headers, timeout=DEADLINE_S
        ) as http:
            tokens = 0
            for trajectory in groups[0]:
                first, second = [
                    (await http.get(f"samples/{name}")).json() for name in sample_ids(trajectory)
                ]
                assert first["step"] == second["step"] == 0
                assert second["parent_id"] == first["sample_id"] and second["fork_reason"] is None
                known = first["prompt_ids"] + first["completion_ids"]
                assert second["prompt_ids"][: len(known)] == known
                for sample in (first, second):
                    assert len(sample["completion_ids"]) == len(sample["completion_logprobs"]) > 0
                    assert all(logprob <= 0 for logprob in sample["completion_logprobs"])
                    tokens += len(sample["completion_ids"])
                rollout = (await http.get(f"rollouts/{first['rollout_id']}")).json()
                assert [sample["sample_id"] for sample in rollout["samples"]] == sample_ids(trajectory)

        # Stations 7 to 11: one step, a balanced sheet, the newest adapter answers.
        result = await model.train(groups, config=art.TrainConfig(learning_rate=1e-3))
        assert result.step == 1 == await model.get_step()
        assert result.sheet.started.rollouts == 4 and result.sheet.started.tokens == tokens
        assert sum(fate.rollouts for fate in result.sheet.fates.values()) == 4
        assert sum(fate.tokens for fate in result.sheet.fates.values()) == tokens
        assert result.metrics["loss/logprob_difference_max"] < 1e-4

        after = await two_turns(model, "yes, no or maybe?")
        assert after.messages_and_choices[1].model_extra["step"] == 1
        old = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(step=0), messages=[{"role": "user", "content": "hi"}], max_tokens=2
        )
        assert old.choices[0].model_extra["step"] == 0

    folder = tmp_path / "flow" / "models" / "walker"
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert rows[-1]["training_step"] == 1
    before, now = (
        load_file(folder / "checkpoints" / step / "adapter_model.safetensors") for step in ("0000", "0001")
    )
    assert any((before[name] != now[name]).any() for name in before)
