"""`art explain`: each signature on a broken run that the real log wrote, and nothing on a healthy one.

The rollouts are made by hand and logged with `model.log`; what only a trainer or a server knows (losses,
fates) is passed as the metrics of the step. The two healthy runs are trained for real.
"""

from __future__ import annotations

import itertools
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
from art.tracking.folders import ModelPaths
from art.tracking.model_files import append_history_row
from art.wire.rollout_record import RolloutFailure, RolloutRecord
from art_extensions.ui.explain import FIRST_ROWS, LAST_ROWS, LOOK_EVERY, Explanation, RunWatch, explain
from art_extensions.ui.run_table import slope
from art_extensions.ui.signatures import SIGNATURES, STAGES

STEPS, GROUPS, SIZE = 12, 8, 4
COUNTER = itertools.count()
"""No two replies are alike, if nobody says so."""
Change = Callable[[int], dict[str, Any]]
"""A step, from 1 -> what is wrong in it: `failed` rollouts of a group, fields of a reply, rewards."""


def rewards(step: int, chance: random.Random, top: float = 0.9) -> list[float]:
    """One good and one bad rollout at least, and more good ones as the run learns."""
    good = 0.2 + (top - 0.2) * step / STEPS
    return [1.0, 0.0, *(float(chance.random() < good) for _ in range(SIZE - 2))]


def rollout(
    reward: float | art.Unscored,
    tokens: int = 10,
    question: str = "?",
    scenario: str | None = None,
    **said: Any,
) -> art.Trajectory:
    message = {"role": "assistant", "content": said.pop("content", "reply {}").format(next(COUNTER))}
    fields: dict[str, Any] = {
        "index": 0,
        "finish_reason": "stop",
        "logprobs": None,
        "message": message,
    } | said
    reply = Choice.construct(**fields, completion_tokens=tokens, sample_id=f"s{next(COUNTER)}")
    asked: dict[str, Any] = {"role": "user", "content": question}
    facts: dict[str, Any] = {} if scenario is None else {"scenario_id": scenario}
    return art.Trajectory(reward=reward, messages_and_choices=[asked, reply], metadata=facts)


def reward_turns(one: art.Trajectory, earned: list[float]) -> None:
    """Gives a rollout as many turns, and each its reward, of the reward that the rollout has."""
    (said,) = (item for item in one.messages_and_choices if not isinstance(item, dict))
    for _ in earned[1:]:
        another = said.model_copy(update={"sample_id": f"s{next(COUNTER)}"})
        one.messages_and_choices += [{"role": "user", "content": "Go on."}, another]
    turns = [item for item in one.messages_and_choices if not isinstance(item, dict)]
    total = one.reward
    for turn, reward in zip(turns, earned, strict=True):
        one.reward_turn(turn, reward)
    one.reward = total


async def made_run(
    folder: Path, wrong: Change = lambda step: {}, *, val: Change | None = None
) -> Explanation:
    """Logs a run that learns, changed as asked, and explains it."""
    model, chance = art.Model(name="m", project="p", base_path=str(folder)), random.Random(0)
    for step in range(1, STEPS + 1):
        odd = wrong(step)
        lengths, said = odd.get("tokens", lambda reward: 10), odd.get("said", {})
        groups = []
        for number in range(GROUPS):
            name = f"s-{number}"
            shown = {"question": odd.get("question", name), "scenario": odd.get("scenario", name)}
            given = odd["rewards"](chance) if "rewards" in odd else rewards(step, chance)
            made: list[Any] = [rollout(r, lengths(r), **shown, **said) for r in given]
            failed = odd.get("failed", 0)
            made[SIZE - failed :] = [TimeoutError("the tool is down")] * failed
            for one in made[: SIZE - failed] if "turns" in odd else ():
                reward_turns(one, odd["turns"])
            groups.append(art.TrajectoryGroup(made))
        figures = {"loss/entropy": 0.5, "loss/grad_norm": 0.2, "data/step_num_gradient_steps": 1}
        await model.log(groups, split="train", step=step, metrics=figures | odd.get("metrics", {}))
        if val is not None:
            scores = val(step)["rewards"]
            ids = val(step).get("ids", [f"v-{number}" for number in range(len(scores))])
            held_out = [rollout(s, scenario=one) for s, one in zip(scores, ids, strict=True)]
            await model.log([art.TrajectoryGroup([one]) for one in held_out], split="val", step=step)
    return explain("p/m", folder)


def numbers(found: Explanation) -> list[int]:
    return [one.number for one in found.findings]


def flat(chance: random.Random) -> list[float]:
    return [1.0, 0.0, 1.0, 0.0]


def high(chance: random.Random) -> list[float]:
    return [1.0, 1.0, 1.0, 0.6]


def fallen(chance: random.Random) -> list[float]:
    return [1.0, 0.0, 0.0, 0.0]


def peak(step: int) -> dict[str, Any]:
    return {"metrics": {"loss/grad_norm": 30.0 if step == 7 else 0.2}}


def metric(name: str, value: float, **others: Any) -> Change:
    return lambda step: {"metrics": {name: value}, **others}


TURNED = {"reward/turn_return_mean": 0.3}
"""What an algorithm of turns reports."""
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
    17: lambda step: {"question": "Solve it."},
    18: lambda step: {"said": {}, "question": " "},
    21: lambda step: {"said": {"content": "noB{}\n<|im_start|><|im_start|>assistant"}, "rewards": flat},
    22: metric("data/step_num_gradient_steps", 0, rewards=flat),
    23: lambda step: {"said": {"content": "2"} if step > 3 else {}, "rewards": fallen},
    25: lambda step: {"turns": [0.0, 0.0], "rewards": flat, "metrics": TURNED},
    26: lambda step: {"turns": [0.01, -0.9, 0.02], "rewards": flat, "metrics": TURNED},
    27: lambda step: {"turns": [0.2, 0.2]},
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


async def test_a_policy_that_has_diverged_comes_before_what_it_breaks_and_after_what_was_broken_before(
    tmp_path: Path,
) -> None:
    def wrong(step: int, **also: Any) -> dict[str, Any]:
        dead = {"rewards": lambda chance: [0.0] * SIZE, "said": {"finish_reason": "length"}}
        return also | (dead if step > 4 else {})

    found = await made_run(tmp_path / "sound", wrong)
    assert numbers(found) == [20, 4, 5], found.text()
    assert "first broken stage is: gradient" in found.text() and "from a checkpoint before" in found.text()
    found = await made_run(tmp_path / "failing", lambda step: wrong(step, failed=1))
    assert numbers(found) == [1, 20, 4, 5], found.text()


def test_a_step_of_equal_rewards_counts_in_a_slope_and_not_alone() -> None:
    values, errors = {1: 0.9, 2: 0.7, 3: 0.5, 4: 0.5}, {1: 0.1, 2: 0.1, 3: 0.0, 4: 0.0}
    assert slope(values, errors) == pytest.approx(slope(values, dict.fromkeys(values, 0.1)))
    assert slope(values, dict.fromkeys(values, 0.0)) == (0.0, float("inf"))


async def test_a_validation_of_trained_scenarios_is_named(tmp_path: Path) -> None:
    def val(step: int, known: int) -> dict[str, Any]:
        return {"rewards": [0.0, 1.0] * 4, "ids": [f"{'s' if n < known else 'v'}-{n}" for n in range(8)]}

    found = await made_run(tmp_path / "most", val=lambda step: val(step, 6))
    assert numbers(found) == [19] and "75% of the 8 scenarios" in found.text()
    assert not (await made_run(tmp_path / "few", val=lambda step: val(step, 2))).findings


async def test_one_scenario_that_is_meant_to_be_one_is_healthy(tmp_path: Path) -> None:
    same = {"question": "Solve it.", "scenario": "the only one"}
    assert not (await made_run(tmp_path, lambda step: same)).findings


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


async def test_turns_that_are_paid_are_healthy_and_one_that_earns_all_is_where_it_learns(
    tmp_path: Path,
) -> None:
    paid = {"turns": [0.2, 0.1, 0.2], "metrics": TURNED}
    assert not (await made_run(tmp_path / "turns", lambda step: paid)).findings
    late = {"turns": [0.0, 0.9], "metrics": TURNED}
    assert not (await made_run(tmp_path / "learns", lambda step: late)).findings, (
        "one turn earns all, and it learns"
    )


async def test_an_example_says_why_its_turns_earned_what_they_did(tmp_path: Path) -> None:
    await made_run(tmp_path, BROKEN[26])
    made = RolloutRecord(
        rollout="r-0", group=0, place=0, fate="trained", samples=[f"s{k}" for k in range(5)],
        turn_rewards=[0.0, 0.01, -0.9, 0.02, 0.03],
        turn_reasons={"s1": "It asked\ntwice.", "s2": "w" * 900, "s3": "a\u202eb", "s0": "no", "s9": "?"},
    )  # fmt: skip
    path = ModelPaths(tmp_path / "p" / "models" / "m").rollouts(2)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.line())
    found = explain("p/m", tmp_path)
    (example,) = next(one.examples for one in found.findings if one.number == 26)
    first, second, third = example.reasons
    assert first == "turn 2 earned 0.01: It asked twice." and third == "turn 4 earned 0.02: a⟨202e⟩b"
    assert second.startswith("turn 3 earned -0.9: www") and len(second) < 230
    assert f"      {first}\n      {second}\n" in found.text()
    (shown,) = next(one["examples"] for one in found.as_json()["findings"] if one["number"] == 26)
    assert [*shown["reasons"]] == [*example.reasons]


async def test_one_answer_that_earns_all_is_no_collapse(tmp_path: Path) -> None:
    def solved(step: int) -> dict[str, Any]:
        best = {"rewards": lambda chance: [1.0] * SIZE, "said": {"content": "maybe"}}
        return best if step > 5 else {}

    assert not (await made_run(tmp_path, solved)).findings


async def test_noise_and_near_random_replies_are_not_cured_by_a_larger_limit(tmp_path: Path) -> None:
    cut: dict[str, Any] = {"finish_reason": "length"}

    def noisy(step: int) -> dict[str, Any]:
        return {"said": cut | {"content": "<|im_end|>{}"}, "rewards": flat}

    def hot(step: int) -> dict[str, Any]:
        return {"said": cut, "rewards": flat, "metrics": {"loss/entropy": 2.5}}

    found = await made_run(tmp_path / "noise", noisy)
    assert numbers(found) == [21, 4] and "art/nano-words" in found.findings[0].change
    assert found.findings[1].change.startswith("Leave max_tokens: noise")
    found = await made_run(tmp_path / "hot", hot)
    assert numbers(found) == [4] and found.findings[0].change.startswith("Leave max_tokens: the replies are")

    def learns_to_end(step: int) -> dict[str, Any]:
        return {"said": cut} if step < 6 else {}

    assert not (await made_run(tmp_path / "ends", learns_to_end)).findings


@pytest.mark.slow
async def test_a_reward_that_stays_where_it_was_is_told_where_nothing_else_is(tmp_path: Path) -> None:
    await log_steps(tmp_path / "flat", range(1, 36), lambda step: {"rewards": flat})
    found = explain("p/m", tmp_path / "flat")
    assert numbers(found) == [24], found.text()
    assert "has not risen in 35 steps: it is 0.5, where single rollouts earned 1" in found.text()

    def falls(until: int) -> Change:
        return lambda step: {"rewards": high if 4 < step < until else flat}

    await log_steps(tmp_path / "dip", range(1, 36), falls(until=31))
    assert not explain("p/m", tmp_path / "dip").findings
    await log_steps(tmp_path / "fallen", range(1, 46), falls(until=15))
    assert numbers(explain("p/m", tmp_path / "fallen")) == [24]
    clipped = {"rewards": flat, "metrics": {"loss/clipped_share": 0.5}}
    await log_steps(tmp_path / "cause", range(1, 36), lambda step: clipped)
    assert numbers(explain("p/m", tmp_path / "cause")) == [8]


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
    explanation = explain(str(paths.path))
    assert "      http://127.0.0.1:8765/runs/-/p/m/train/2/0/1\n" in explanation.text()
    assert f"run `art ui {tmp_path} --port 8765`" in explanation.text()
    found = explanation.findings[0]
    assert [(one.step, one.rollout) for one in found.examples] == [(2, "r-0"), (2, "r-1"), (2, "r-2")]
    assert "'TimeoutError: the tool is down'" in found.sentence() and "25%" in found.words


async def test_the_command_says_it_in_text_and_json_and_by_its_exit_code(tmp_path: Path) -> None:
    await made_run(tmp_path, BROKEN[5])
    text = CliRunner().invoke(app, ["explain", "p/m", "--data-dir", str(tmp_path)])
    assert text.exit_code == 1 and "Use easier scenarios" in text.output
    same = CliRunner().invoke(app, ["explain", str(tmp_path), "--json"])
    said = json.loads(same.output)
    assert same.exit_code == 1 and said["steps"] == STEPS and said["first_broken_stage"] == "group"
    wrong = CliRunner().invoke(app, ["explain", "p/n", "--data-dir", str(tmp_path)])
    assert wrong.exit_code == 2 and "models there: p/m" in wrong.output


async def log_steps(folder: Path, steps: range, wrong: Change, **names: str) -> art.Model[None]:
    """Logs training steps as a program does that is started anew."""
    model, chance = art.Model(name="m", project="p", base_path=str(folder)), random.Random(0)
    for step in steps:
        odd = wrong(step)
        made = [odd["rewards"](chance) if "rewards" in odd else rewards(step, chance) for _ in range(GROUPS)]
        asked = [[rollout(r, question=f"{n}") for r in one] for n, one in enumerate(made)]
        groups = [art.TrajectoryGroup(one) for one in asked]
        await model.log(groups, split="train", step=step, metrics=odd.get("metrics", {}))
    return model


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "art_extensions.ui.explain"]


async def test_a_finding_is_one_line_of_the_log_while_it_trains_and_no_second_one_after_a_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await log_steps(tmp_path, range(1, LOOK_EVERY), BROKEN[5])
    assert told(caplog) == []
    await log_steps(tmp_path, range(LOOK_EVERY, 3 * LOOK_EVERY), BROKEN[5])
    (line,) = told(caplog)
    assert line.startswith("group: in every group all rollouts got the same reward, so there is no gradient")
    assert "5 steps in a row trained nothing" in line
    assert "(signature 5): Use easier scenarios" in line
    named = line.partition(" -> art explain ")[2]
    assert explain(named).findings[0].number == 5
    await log_steps(tmp_path, range(3 * LOOK_EVERY, 5 * LOOK_EVERY), BROKEN[5])
    assert told(caplog) == [line]
    also = {"metrics": {"loss/clipped_share": 0.5}}
    await log_steps(tmp_path, range(5 * LOOK_EVERY, 7 * LOOK_EVERY), lambda step: BROKEN[5](step) | also)
    assert [one.partition(":")[0] for one in told(caplog)] == ["group", "gradient"]


async def test_a_healthy_run_is_silent_and_what_fails_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await log_steps(tmp_path / "healthy", range(1, 20), lambda step: {})
    assert told(caplog) == []
    await log_steps(tmp_path / "broken", range(1, 3), BROKEN[5])
    ModelPaths(tmp_path / "broken" / "p" / "models" / "m").findings.mkdir()
    await log_steps(tmp_path / "broken", range(3, 20), BROKEN[5])
    (line,) = told(caplog)
    assert "no longer looked for" in line
    history = ModelPaths(tmp_path / "broken" / "p" / "models" / "m").history
    assert len(history.read_text().splitlines()) == 19


async def test_the_log_names_the_run_as_the_command_takes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await log_steps(tmp_path / ".art", range(1, 6), BROKEN[5])
    assert told(caplog)[0].endswith(" -> art explain p/m")
    await log_steps(tmp_path / "my runs", range(1, 6), BROKEN[5])
    assert told(caplog)[1].endswith(" -> art explain 'my runs/p/models/m'")


async def test_a_long_run_is_looked_at_through_a_window(tmp_path: Path) -> None:
    watch, folder = RunWatch(), tmp_path / "p" / "models" / "m"
    for step in range(1, 500):
        row = {"step": step, "train/reward": step / 500}
        append_history_row(ModelPaths(folder).history, row)
        watch.see(folder, row)
    assert [*watch.rows.train][:2] == [1, 2] and [*watch.rows.train][-1] == 499
    assert len(watch.rows.train) == FIRST_ROWS + LAST_ROWS and not ModelPaths(folder).findings.exists()


def test_a_folder_without_a_step_or_with_two_models_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "p" / "models" / name).mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="no training step"):
        explain("p/a", tmp_path)
    with pytest.raises(ConfigurationError, match="must hold one model"):
        explain(str(tmp_path))


def test_the_table_has_every_number_once_in_the_order_of_the_chain() -> None:
    assert sorted(one.number for one in SIGNATURES) == [*range(1, 28)]
    assert [one.stage for one in SIGNATURES] == sorted((s.stage for s in SIGNATURES), key=STAGES.index)
    assert all(one.limit and one.source and one.change and one.metrics for one in SIGNATURES)


@pytest.mark.slow
def test_a_healthy_quick_start_has_nothing(tmp_path: Path) -> None:
    art_command = str(Path(sys.executable).with_name("art"))
    few = ["--steps", "5", "--eval-rollouts", "8", "--output", str(tmp_path / "run")]
    subprocess.run([art_command, "quickstart", "mail", *few], check=True, capture_output=True, cwd=tmp_path)
    found = explain(str(tmp_path / "run"))
    assert found.steps == 5 and not found.findings, found.text()
