"""`art explain`: each signature on a broken run that the real log wrote, and nothing on a healthy one.

The rollouts are made by hand and logged with `model.log`; what only a trainer or a server knows (losses,
fates) is passed as the metrics of the step. The two healthy runs are trained for real.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat.chat_completion import Choice
from typer.testing import CliRunner

import art
from art.cli import app
from art.errors import ConfigurationError
from art.tracking.explain import SIGNATURES, STAGES, Explanation, explain
from art.tracking.folders import ModelPaths
from art.wire.rollout_record import RolloutFailure, RolloutRecord

STEPS, GROUPS, SIZE = 12, 8, 4
Change = Callable[[int], dict[str, Any]]
"""A step, from 1 -> what is wrong in it: `failed` rollouts of a group, fields of a reply, rewards."""


def rewards(step: int, chance: random.Random, top: float = 0.9) -> list[float]:
    """One good and one bad rollout at least, and more good ones as the run learns."""
    good = 0.2 + (top - 0.2) * step / STEPS
    return [1.0, 0.0, *(float(chance.random() < good) for _ in range(SIZE - 2))]


def rollout(reward: float | art.Unscored, tokens: int = 10, **said: Any) -> art.Trajectory:
    message = {"role": "assistant", "content": "x"}
    fields: dict[str, Any] = {
        "index": 0,
        "finish_reason": "stop",
        "logprobs": None,
        "message": message,
    } | said
    reply = Choice.construct(**fields, completion_tokens=tokens)
    return art.Trajectory(reward=reward, messages_and_choices=[{"role": "user", "content": "?"}, reply])


async def made_run(
    folder: Path, wrong: Change = lambda step: {}, *, val: Change | None = None
) -> Explanation:
    """Logs a run that learns, changed as asked, and explains it."""
    model, chance = art.Model(name="m", project="p", base_path=str(folder)), random.Random(0)
    for step in range(1, STEPS + 1):
        odd = wrong(step)
        lengths, said = odd.get("tokens", lambda reward: 10), odd.get("said", {})
        groups = []
        for _ in range(GROUPS):
            given = odd["rewards"](chance) if "rewards" in odd else rewards(step, chance)
            made: list[Any] = [rollout(r, lengths(r), **said) for r in given]
            failed = odd.get("failed", 0)
            made[SIZE - failed :] = [TimeoutError("the tool is down")] * failed
            groups.append(art.TrajectoryGroup(made))
        figures = {"loss/entropy": 0.5, "loss/grad_norm": 0.2, "data/step_num_gradient_steps": 1}
        await model.log(groups, split="train", step=step, metrics=figures | odd.get("metrics", {}))
        if val is not None:
            scores = val(step)["rewards"]
            await model.log([art.TrajectoryGroup([rollout(s)]) for s in scores], split="val", step=step)
    return explain("p/m", folder)


def numbers(found: Explanation) -> list[int]:
    return [one.number for one in found.findings]


def flat(chance: random.Random) -> list[float]:
    return [1.0, 0.0, 1.0, 0.0]


def fallen(chance: random.Random) -> list[float]:
    return [1.0, 0.0, 0.0, 0.0]


def peak(step: int) -> dict[str, Any]:
    return {"metrics": {"loss/grad_norm": 30.0 if step == 7 else 0.2}}


def metric(name: str, value: float, **others: Any) -> Change:
    return lambda step: {"metrics": {name: value}, **others}


BROKEN: dict[int, Change] = {
    1: lambda step: {"failed": 1},
    2: lambda step: {"rewards": lambda chance: [1.0, 0.0, 1.0, art.Unscored("the judge is down")]},
    3: lambda step: {"said": {"malformed_calls": 1}},
    4: lambda step: {"said": {"finish_reason": "length"}},
    5: lambda step: {"rewards": lambda chance: [0.0] * SIZE},
    6: metric("data/sheet/stale_rollouts", 10, rewards=flat),
    7: metric("loss/mismatch_k3", 0.005),
    8: metric("loss/clipped_share", 0.5),
    9: lambda step: peak(step) | ({"rewards": fallen} if step >= 7 else {}),
    10: lambda step: {"metrics": {"loss/entropy": 0.5 if step < 4 else 0.02}, "rewards": flat},
    11: lambda step: {"tokens": lambda reward: int((10 + 30 * reward) * (1 + step / 4))},
    13: metric("train/group_judge/alarm_length", 1.0),
    14: lambda step: {
        "metrics": {"loss/learning_rate": 1e-6, "loss/learning_rate_by_size": 6e-4},
        "rewards": flat,
    },
    16: metric("throughput/step_trainer_idle_s", 9.0),
}
EXTRA = {6: {"data/sheet/started_rollouts": 32}, 16: {"time/step_wall_s": 10.0}}


@pytest.mark.parametrize("number", sorted(BROKEN))
async def test_a_broken_run_shows_its_signature_and_no_other(tmp_path: Path, number: int) -> None:
    def wrong(step: int) -> dict[str, Any]:
        odd = BROKEN[number](step)
        return odd | {"metrics": odd.get("metrics", {}) | EXTRA.get(number, {})}

    found = await made_run(tmp_path, wrong)
    assert numbers(found) == [number], found.text()
    row = next(one for one in SIGNATURES if one.number == number)
    assert f"first broken stage is: {row.stage}" in found.text() and found.findings[0].change in found.text()


async def test_a_reward_that_is_gamed_falls_where_it_is_not_trained(tmp_path: Path) -> None:
    def val(step: int) -> dict[str, Any]:
        return {"rewards": [float(number % STEPS < STEPS - step) for number in range(60)]}

    found = await made_run(tmp_path, val=val)
    assert numbers(found) == [12, 15], found.text()
    assert "Fork from step 1," in found.findings[1].change


async def test_what_comes_first_in_the_chain_is_named_first(tmp_path: Path) -> None:
    found = await made_run(tmp_path, lambda step: {"failed": 2, "metrics": {"loss/clipped_share": 0.5}})
    assert numbers(found)[0] == 1 and 8 in numbers(found)
    assert found.as_json()["first_broken_stage"] == "rollout"
    assert "may be a consequence" in found.text()


async def test_a_healthy_run_and_a_solved_one_have_nothing(tmp_path: Path) -> None:
    def solved(step: int) -> dict[str, Any]:
        return {"rewards": lambda chance: [1.0] * SIZE if step > 5 else rewards(step, chance, top=0.5)}

    assert not (await made_run(tmp_path / "healthy")).findings
    assert not (await made_run(tmp_path / "solved", solved)).findings
    assert not (await made_run(tmp_path / "peak", peak)).findings, "it was clipped, and the reward rose on"


async def test_examples_are_rollouts_of_the_record_and_a_torn_file_is_read(tmp_path: Path) -> None:
    await made_run(tmp_path, BROKEN[1])
    paths = ModelPaths(tmp_path / "p" / "models" / "m")
    paths.rollouts(2).parent.mkdir(parents=True)
    failure = RolloutFailure(type="TimeoutError", message="the tool is down")
    lines = [
        RolloutRecord(rollout=f"r-{place}", group=0, place=place, fate="failed", failure=failure).line()
        for place in range(5)
    ]
    paths.rollouts(2).write_text("".join(lines) + '{"rollout": "r-9", "gro')
    with paths.history.open("a") as history:
        history.write('{"step": 13, "train/rew')
    found = explain(str(paths.path)).findings[0]
    assert [(one.step, one.rollout) for one in found.examples] == [(2, "r-0"), (2, "r-1"), (2, "r-2")]
    assert "'TimeoutError: the tool is down'" in found.words and "25%" in found.words


async def test_the_command_says_it_in_text_and_json_and_by_its_exit_code(tmp_path: Path) -> None:
    await made_run(tmp_path, BROKEN[5])
    text = CliRunner().invoke(app, ["explain", "p/m", "--data-dir", str(tmp_path)])
    assert text.exit_code == 1 and "Use easier scenarios" in text.output
    same = CliRunner().invoke(app, ["explain", str(tmp_path), "--json"])
    said = json.loads(same.output)
    assert same.exit_code == 1 and said["steps"] == STEPS and said["first_broken_stage"] == "group"
    wrong = CliRunner().invoke(app, ["explain", "p/n", "--data-dir", str(tmp_path)])
    assert wrong.exit_code == 2 and "models there: p/m" in wrong.output


def test_a_folder_without_a_step_or_with_two_models_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "p" / "models" / name).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="no training step"):
        explain("p/a", tmp_path)
    with pytest.raises(ConfigurationError, match="must hold one model"):
        explain(str(tmp_path))


def test_the_table_has_sixteen_rows_in_the_order_of_the_chain() -> None:
    assert sorted(one.number for one in SIGNATURES) == [*range(1, 17)]
    assert [one.stage for one in SIGNATURES] == sorted((s.stage for s in SIGNATURES), key=STAGES.index)
    assert all(one.limit and one.source and one.change and one.metrics for one in SIGNATURES)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_healthy_quick_start_has_nothing(tmp_path: Path, seed: int) -> None:
    art_command = str(Path(sys.executable).with_name("art"))
    few = ["--steps", "5", "--evaluation-games", "8", "--seed", str(seed), "--output", str(tmp_path / "run")]
    subprocess.run([art_command, "quickstart", "mail", *few], check=True, capture_output=True, cwd=tmp_path)
    found = explain(str(tmp_path / "run"))
    assert found.steps == 5 and not found.findings, found.text()
