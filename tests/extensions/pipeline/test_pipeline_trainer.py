"""The trainer's logic over a backend without a model."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fast_backend import FastBackend, pair, scenarios

import art
from art.errors import ConfigurationError
from art.tracking.rollout_figures import has_signal
from art.tracking.trajectory_log import read_trajectory_groups
from art_extensions.pipeline import PipelineRuntimeConfig, PipelineTrainer, keep_recent_and_top
from art_extensions.pipeline.pipeline_state import STATE_KEY
from waiting import DEADLINE_S, turns, until


async def rollout(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
    await asyncio.sleep(0.001 * (scenario["number"] % 3))
    return pair()


def history(model: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(model._get_output_dir()) / "history.jsonl").open()]


def logged_scenarios(model: Any, step: int) -> list[int]:
    """Of the groups in the trajectory log of a training step."""
    file = Path(model._get_output_dir()) / "trajectories" / "train" / f"{step:04d}.parquet"
    return [group.metadata["scenario_id"] for group in read_trajectory_groups(file)] if file.exists() else []


def state(model: Any) -> dict[str, Any]:
    return model.read_state()[STATE_KEY]


async def test_every_scenario_is_trained_once(backend: FastBackend, model: Any) -> None:
    trainer = PipelineTrainer(model, backend, rollout, scenarios(22), None, eval_every_n_steps=0)
    await trainer.train()
    assert sorted(backend.trained()) == list(range(22))
    assert all(len(call["groups"]) >= 4 for call in backend.calls[:-1])
    assert state(model)["outcomes"] == {"trained": 22, "discarded": 0, "stale": 0, "failed": 0}
    assert state(model)["scenario_offset"] == state(model)["total_scenarios_consumed"] == 22
    rows = [row for row in history(model) if "train/reward" in row]
    assert [row["step"] for row in rows] == list(range(1, len(backend.calls) + 1))
    names = {
        "train/discarded_stale_groups",
        "train/steps_off_policy",
        "time/step_wall_s",
        "time/step_trainer_s",
    }
    names |= {"time/step_actor_s", "throughput/step_trainer_idle_s", "throughput/step_actor_idle_s"}
    assert all(names <= row.keys() for row in rows)


async def test_the_log_says_why_a_run_ends_and_what_became_of_its_groups(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def often_equal(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        if scenario["number"] == 3:
            raise LookupError("no such scenario")
        rewards = (0.0, 1.0) if scenario["number"] % 2 else (1.0, 1.0)
        scored = [art.Trajectory(reward=reward) for reward in rewards]
        return art.TrajectoryGroup([*scored, OverflowError("too long")])

    trainer = PipelineTrainer(model, backend, often_equal, scenarios(9), None, max_steps=10, min_batch_size=3)
    await trainer.train()
    (row,) = [row for row in history(model) if "train/reward" in row]
    assert row["train/reward"] == 0.5 < row["train/reward_all_rollouts"] <= 13 / 16
    ends = [record for record in caplog.records if "stopped:" in record.message]
    assert [record.levelname for record in ends] == ["WARNING"]
    assert ends[0].message == (
        f"{model.name} stopped: scenarios exhausted at step 1 of 10; of 9 groups 3 (33%) were trained, "
        "5 (56%) had equal rewards, 1 (11%) failed"
    )
    assert (
        "9 of 25 rollouts failed and are left out: 8 OverflowError (too long), 1 LookupError (" in caplog.text
    )
    assert caplog.text.count("a rollout failed and is left out: ") == 2 and "in often_equal" in caplog.text


def test_a_reward_that_is_not_finite_is_no_other_reward() -> None:
    assert has_signal(pair((math.nan, 0.0, 1.0)))
    assert not has_signal(pair((math.nan, 1.0, 1.0))) and not has_signal(pair((math.inf, 1.0)))


async def test_with_parts_of_rewards_a_group_is_left_out_when_all_of_them_are_equal(
    backend: FastBackend, model: Any
) -> None:
    async def of_parts(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        group, number = pair((1.0, 1.0)), scenario["number"]
        for place, one in enumerate(group):
            one.metrics |= {"right": float(place * (number % 3)), "short": float(-place * (number % 3 == 1))}
        return group

    algorithm = {"name": "gdpo", "reward_parts": {"right": 1.0, "short": 1.0}}
    trainer = PipelineTrainer(
        model, backend, of_parts, scenarios(9), None, min_batch_size=2, algorithm=algorithm
    )
    await trainer.train()
    assert sorted(backend.trained()) == [1, 2, 4, 5, 7, 8], "their sums are equal in all groups"
    assert state(model)["outcomes"]["discarded"] == 3


async def test_the_reward_of_a_step_is_that_of_the_groups_on_its_sheet(
    backend: FastBackend, model: Any
) -> None:
    """Six groups are ready, three are of the step: the others count in their own."""
    backend.allowed.clear()

    async def by_number(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        number = scenario["number"]
        return pair((float(number), float(number) + 1))

    trainer = PipelineTrainer(
        model,
        backend,
        by_number,
        scenarios(9),
        None,
        min_batch_size=3,
        max_batch_size=3,
        eval_every_n_steps=0,
    )
    running = asyncio.create_task(trainer.train())
    await asyncio.wait_for(backend.training.wait(), DEADLINE_S)
    await until(lambda: trainer._run is not None and trainer._run._queue.qsize() >= 6)
    backend.allowed.set()
    await asyncio.wait_for(running, DEADLINE_S)
    of_sheets = {
        call["step"] + 1: [one.reward for group in call["groups"] for one in group] for call in backend.calls
    }
    assert [len(rewards) for rewards in of_sheets.values()] == [6, 6, 6]
    rows = {row["step"]: row for row in history(model) if "train/reward" in row}
    assert {step: row["train/reward"] for step, row in rows.items()} == {
        step: sum(rewards) / len(rewards) for step, rewards in of_sheets.items()
    }
    assert len({row["train/reward"] for row in rows.values()}) == 3
    assert all(row["train/reward"] == row["train/reward_all_rollouts"] for row in rows.values())


async def test_a_run_that_made_its_steps_or_was_asked_to_stop_says_so(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "art")
    options: dict[str, Any] = {"min_batch_size": 2, "eval_every_n_steps": 0}
    await PipelineTrainer(model, backend, rollout, scenarios(22), None, max_steps=1, **options).train()
    assert f"{model.name} stopped: max_steps are made at step 1 of 1; of " in caplog.text

    async def asks_to_stop(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        trainer.request_stop()
        return pair()

    trainer = PipelineTrainer(model, backend, asks_to_stop, scenarios(22), None, **options)
    await trainer.train()
    assert f"{model.name} stopped: a stop was requested at step " in caplog.text


async def test_rollouts_go_on_while_the_trainer_works_and_no_further_than_allowed(
    backend: FastBackend, model: Any
) -> None:
    backend.allowed.clear()
    begun: list[int] = []
    ended: list[int] = []

    async def seen(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        begun.append(scenario["number"])
        group = await rollout(model, scenario, config)
        ended.append(scenario["number"])
        return group

    trainer = PipelineTrainer(
        model, backend, seen, scenarios(40), None, min_batch_size=2, max_steps_off_policy=3, max_steps=5
    )
    running = asyncio.create_task(trainer.train())
    await asyncio.wait_for(backend.training.wait(), DEADLINE_S)
    first = len(backend.calls[0]["groups"])
    await until(lambda: len(ended) == first + 2 * 3)
    await turns()  # all that could begin another one has had its turn
    assert len(begun) == first + 2 * 3, "three steps' groups wait while the first is trained"
    backend.allowed.set()
    await asyncio.wait_for(running, DEADLINE_S)
    assert max(backend.checkpoints) == 5
    for call in backend.calls:
        ages = [call["step"] - one.initial_policy_version for group in call["groups"] for one in group]
        assert max(ages) <= 3


async def test_on_policy_means_that_nothing_begins_while_the_trainer_works(
    backend: FastBackend, model: Any
) -> None:
    trainer = PipelineTrainer(
        model, backend, rollout, scenarios(20), None, min_batch_size=4, max_steps_off_policy=0
    )
    await trainer.train()
    assert [len(call["groups"]) for call in backend.calls] == [4] * 5
    for call in backend.calls:
        versions = {one.initial_policy_version for group in call["groups"] for one in group}
        assert versions == {call["step"]} and call["max_steps_off_policy"] == 0


async def test_a_group_that_took_too_long_is_stale_and_not_trained(backend: FastBackend, model: Any) -> None:
    async def slow_first(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        while scenario["number"] == 0 and max(backend.checkpoints) < 3:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0.001)
        return pair()

    trainer = PipelineTrainer(
        model, backend, slow_first, scenarios(20), None, min_batch_size=2, max_steps_off_policy=2
    )
    await trainer.train()
    assert 0 not in backend.trained() and sorted(backend.trained()) == list(range(1, 20))
    assert state(model)["outcomes"] == {"trained": 19, "discarded": 0, "stale": 1, "failed": 0}
    aside = [group.metadata["scenario_id"] for call in backend.calls for group in call["discarded_groups"]]
    assert aside == [0], "the server's sheet has it"
    assert sum(row.get("train/discarded_stale_groups", 0) for row in history(model)) == 1


async def test_failed_groups_are_counted_and_equal_rewards_are_left_out(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def mixed(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        match scenario["number"] % 5:
            case 0:
                raise ValueError("no sandbox")
            case 1:
                return art.TrajectoryGroup([ValueError("all of them")])
            case 2:
                return pair((0.5, 0.5))
            case 3:
                raise asyncio.CancelledError  # the rollout's own affair
        return pair()

    trainer = PipelineTrainer(model, backend, mixed, scenarios(20), None, min_batch_size=2)
    await trainer.train()
    assert sorted(backend.trained()) == [4, 9, 14, 19]
    assert state(model)["outcomes"] == {"trained": 4, "discarded": 4, "stale": 0, "failed": 12}
    assert "no sandbox" in caplog.text and "all of them" in caplog.text
    folder = Path(model._get_output_dir()) / "trajectories" / "discarded"
    assert list(folder.iterdir()), "they can be looked at"


async def test_a_rollout_function_that_returns_no_group_is_named(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(model: Any, scenario: dict[str, Any], config: Any) -> Any:
        return art.Trajectory() if scenario["number"] == 0 else pair()

    await PipelineTrainer(model, backend, play, scenarios(5), None).train()
    assert state(model)["outcomes"]["failed"] == 1
    assert "play() returned a Trajectory, not a TrajectoryGroup" in caplog.text


async def ends_after(
    reward: float, before: tuple[float, float] | None, backend: FastBackend, model: Any, failing: int = -1
) -> dict[str, int]:
    """The outcomes of a run whose groups have one reward for all, after four with `before`."""

    async def same(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        number = scenario["number"]
        if number == failing:
            return art.TrajectoryGroup([ValueError("no sandbox")])
        return pair(before) if before is not None and number < 4 else pair((reward, reward))

    trainer = PipelineTrainer(
        model, backend, same, scenarios(1000), None, min_batch_size=2, discard_queue_multiplier=5
    )
    await trainer.train()
    outcomes: dict[str, int] = state(model)["outcomes"]
    return outcomes


@pytest.mark.parametrize(
    ("reward", "before"),
    [(0.0, (0.0, 1.0)), (0.5, (0.0, 1.0)), (-1.0, (-1.0, 0.0)), (0.5, (0.4, 1.0)), (0.0, None), (-1.0, None)],
)
async def test_a_model_that_always_answers_the_same_has_collapsed(
    reward: float,
    before: tuple[float, float] | None,
    backend: FastBackend,
    model: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its reward is not high: it fell, or stays in the middle, or nothing ever succeeded."""
    outcomes = await ends_after(reward, before, backend, model)
    assert "MODEL COLLAPSE DETECTED: 11 groups in a row" in caplog.text
    assert "NOTHING LEFT" not in caplog.text
    assert outcomes["trained"] == (0 if before is None else 4) and outcomes["discarded"] == 11


@pytest.mark.parametrize(
    ("reward", "before"), [(1.0, (0.0, 1.0)), (0.97, (0.0, 1.0)), (0.0, (-1.0, 0.0)), (1.0, None)]
)
async def test_a_solved_task_is_no_collapse(
    reward: float,
    before: tuple[float, float] | None,
    backend: FastBackend,
    model: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcomes = await ends_after(reward, before, backend, model)
    assert "COLLAPSE" not in caplog.text
    assert "NOTHING LEFT TO LEARN: 11 groups in a row had equal rewards" in caplog.text
    assert outcomes["trained"] == (0 if before is None else 4) and outcomes["discarded"] == 11


async def test_good_groups_among_which_one_failed_are_not_called_solved(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await ends_after(1.0, (0.0, 1.0), backend, model, failing=8)
    assert "MODEL COLLAPSE DETECTED" in caplog.text and "NOTHING LEFT" not in caplog.text


@pytest.mark.parametrize("name", ["eval_at_start", "eval_step_0"])
async def test_numbers_in_one_object_and_older_names(backend: FastBackend, model: Any, name: str) -> None:
    seen: list[int] = []

    async def evaluate(model: Any, step: int, config: Any) -> list[Any]:
        seen.append(step)
        return []

    numbers = PipelineRuntimeConfig(num_rollout_workers=3, min_batch_size=3, max_batch_size=3)
    trainer = PipelineTrainer(
        model, backend, rollout, scenarios(6), None, evaluate, pipeline=numbers, eval_every_n_steps=9,
        **{name: False},
    )  # fmt: skip
    await trainer.train()
    assert [len(call["groups"]) for call in backend.calls] == [3, 3] and seen == []
    with pytest.raises(ConfigurationError, match="min_batch_size=0"):
        zero = PipelineRuntimeConfig(min_batch_size=0)
        PipelineTrainer(model, backend, rollout, scenarios(6), None, pipeline=zero)


@pytest.mark.slow
async def test_evaluations_run_on_their_own_step_and_are_not_repeated(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def evaluate(model: Any, step: int, config: Any) -> dict[str, list[Any]]:
        seen.append(step)
        if step == 4:
            raise ValueError("the judge is ill")
        return {"val": [art.Trajectory(reward=step)], "test": [pair(), art.Trajectory(reward=0.0)]}

    def again(steps: int) -> PipelineTrainer[Any, Any]:
        return PipelineTrainer(
            model, backend, rollout, scenarios(300), None, evaluate, max_steps=steps, eval_every_n_steps=2
        )

    await again(5).train()
    assert seen == backend.leased == [0, 2, 4, 4], "a failed one is tried once more"
    assert [call["save_checkpoint"] for call in backend.calls] == [False, True, False, True, False]
    known = state(model)
    assert known["completed_eval_steps"] == [0, 2] and known["last_eval_step"] == 2
    assert known["failed_eval_steps"] == [4] and known["waiting_eval_steps"] == []
    assert "no evaluation of the steps [4]" in caplog.records[-1].message, "the run's last word"
    rows = history(model)
    assert [(row["step"], row["val/reward"]) for row in rows if "val/reward" in row] == [(0, 0.0), (2, 2.0)]
    assert [row["step"] for row in rows if row.get("checkpoint/eval_completed")] == [0, 2]
    assert [row["step"] for row in rows if row.get("checkpoint/eval_failed")] == [4]
    await again(6).train()
    assert seen == [0, 2, 4, 4, 6], "a resumed run does not begin again"


async def test_an_evaluation_that_fails_once_is_made_up_for_and_its_splits_are_logged_once(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def evaluate(model: Any, step: int, config: Any) -> dict[str, list[Any]]:
        seen.append(step)
        odd: Any = "no trajectory" if seen.count(2) == 1 and step == 2 else art.Trajectory(reward=0.5)
        return {"val": [art.Trajectory(reward=step)], "test": [odd]}

    trainer = PipelineTrainer(
        model, backend, rollout, scenarios(300), None, evaluate,
        max_steps=5, eval_every_n_steps=2, eval_at_start=False,
        checkpoint_retention_strategy=keep_recent_and_top(recent=0, top=0),
    )  # fmt: skip
    await trainer.train()
    assert seen == [2, 4, 2], "after the next one"
    rows = history(model)
    assert [row["step"] for row in rows if "val/reward" in row] == [2, 4]
    assert [row["step"] for row in rows if "test/reward" in row] == [4, 2]
    assert state(model)["completed_eval_steps"] == [2, 4] and state(model)["failed_eval_steps"] == []
    assert "tried once more" in caplog.text and "no evaluation of" not in caplog.text


@pytest.mark.slow
async def test_checkpoints_are_kept_by_the_strategy(backend: FastBackend, model: Any) -> None:
    async def evaluate(model: Any, step: int, config: Any) -> list[Any]:
        return [art.Trajectory(reward=1.0 if step == 2 else 0.0)]

    trainer = PipelineTrainer(
        model,
        backend,
        rollout,
        scenarios(300),
        None,
        evaluate,
        max_steps=8,
        eval_every_n_steps=2,
        checkpoint_retention_strategy=keep_recent_and_top(recent=1, top=1),
    )
    await trainer.train()
    assert backend.checkpoints[0] == 2 and backend.checkpoints[-1] == 8 and len(backend.checkpoints) <= 4


@pytest.mark.parametrize("ask", ["signal", "method"])
async def test_a_request_to_stop_finishes_what_has_begun(backend: FastBackend, model: Any, ask: str) -> None:
    begun: list[int] = []

    async def stopping(model: Any, scenario: dict[str, Any], config: Any) -> art.TrajectoryGroup:
        begun.append(scenario["number"])
        if scenario["number"] == 10:
            if ask == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            else:
                trainer.request_stop()
        return await rollout(model, scenario, config)

    before = signal.getsignal(signal.SIGINT)
    trainer: PipelineTrainer[Any, Any] = PipelineTrainer(model, backend, stopping, scenarios(1000), None)
    await trainer.train()
    assert sorted(backend.trained()) == sorted(begun) and 10 in begun and len(begun) < 60
    assert signal.getsignal(signal.SIGINT) is before
    backend.trained()
    following = PipelineTrainer(model, backend, rollout, scenarios(len(begun) + 8), None)
    await following.train()
    assert sorted(backend.trained()) == list(range(len(begun) + 8))


async def test_a_lost_reply_is_asked_for_and_an_unknown_job_s_groups_are_sampled_again(
    backend: FastBackend, model: Any
) -> None:
    evaluated: list[int] = []

    async def evaluate(model: Any, step: int, config: Any) -> list[Any]:
        evaluated.append(step)
        return []

    def run() -> Any:
        trainer = PipelineTrainer(
            model, backend, rollout, scenarios(8), None, evaluate, eval_every_n_steps=1, eval_at_start=False
        )
        return trainer.train()

    backend.die_after_commit = True
    with pytest.raises(ConnectionError, match="reply was lost"):
        await run()
    assert state(model)["training_job"]["step"] == 0 and len(backend.trained()) >= 4
    assert not logged_scenarios(model, 1)
    backend.die_after_commit = False
    await run()
    assert sorted(backend.trained()) == list(range(8))
    for step, job in enumerate(backend.jobs.values(), start=1):
        assert logged_scenarios(model, step) == job["scenarios"], "those of the lost step too"
    assert evaluated == list(range(1, len(backend.jobs) + 1))
    rows = [row for row in history(model) if "train/reward" in row]
    assert [(row["step"], row["train/reward"]) for row in rows] == [(step, 0.5) for step in evaluated]

    forgotten = {**state(model), "training_step": 2}
    forgotten["training_job"] = {"job_id": "never came", "step": 2, "scenarios": [8, 9]}
    model.merge_state({STATE_KEY: forgotten})
    await PipelineTrainer(model, backend, rollout, scenarios(12), None).train()
    assert sorted(backend.trained()) == list(range(12))


async def test_async_scenarios_and_their_metadata(backend: FastBackend, model: Any) -> None:
    async def stream() -> Any:
        for n in range(6):
            yield {"number": n, "metadata": {"scenario_id": n, "kind": "x", "deep": [1]}}

    await PipelineTrainer(model, backend, rollout, stream(), None, min_batch_size=3).train()
    groups = [group for call in backend.calls for group in call["groups"]]
    assert sorted(group.metadata["scenario_id"] for group in groups) == list(range(6))
    assert all(group.metadata["scenario_kind"] == "x" for group in groups)
    assert all("scenario_deep" not in group.metadata for group in groups)


async def test_a_broken_stream_of_scenarios_is_the_program_s_error(backend: FastBackend, model: Any) -> None:
    def broken() -> Any:
        yield from scenarios(2)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        await asyncio.wait_for(PipelineTrainer(model, backend, rollout, broken(), None).train(), DEADLINE_S)


@pytest.mark.slow
async def test_the_status_line_is_logged(
    backend: FastBackend, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    trainer = PipelineTrainer(
        model, backend, rollout, scenarios(60), None,
        log_interval_seconds=0.02, total_scenarios=77, max_batch_size=6,
    )  # fmt: skip
    running = asyncio.create_task(trainer.train())
    async with asyncio.timeout(DEADLINE_S):
        while len(backend.calls) < 3:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0)
        backend.allowed.clear()  # the next step lasts until the line has told of those before it
        while "s a step" not in caplog.text:  # noqa: ASYNC110 - nor has a text
            await asyncio.sleep(0.01)
        backend.allowed.set()
        await running
    assert "scenarios" in caplog.text and "/77, running" in caplog.text and "s a step" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"num_rollout_workers": 0}, "num_rollout_workers=0"),
        ({"min_batch_size": True}, "min_batch_size=True"),
        ({"min_batch_size": 4, "max_batch_size": 3}, "at least min_batch_size = 4"),
        ({"max_steps_off_policy": -1}, "max_steps_off_policy=-1"),
        ({"queue_maxsize": 0}, "queue_maxsize=0"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"discard_queue_multiplier": 0.5}, "discard_queue_multiplier=0.5"),
        ({"log_interval_seconds": 0}, "log_interval_seconds=0"),
        ({"status_ewa_alpha": 1.5}, "status_ewa_alpha=1.5"),
        ({"total_scenarios": -1}, "total_scenarios=-1"),
        ({"eval_every_n_steps": -1}, "eval_every_n_steps=-1"),
        ({"checkpoint_retention_interval": 0}, "checkpoint_retention_interval=0"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"loss_fn": "pppo"}, "pppo"),
        ({"packed_sequence_length": 0}, "packed_sequence_length=0"),
        ({"adam_params": 3}, "adam_params=3"),
        ({"learning_rte": 1}, "did you mean 'learning_rate'"),
        ({"job_id": "x"}, "chooses it itself"),
        ({"scenarios": 3}, "scenarios=3"),
    ],
)
def test_what_is_out_of_range_or_unknown_is_refused(model: Any, wrong: dict[str, Any], named: str) -> None:
    given = {"scenarios": scenarios(1), **wrong}
    stream = given.pop("scenarios")
    with pytest.raises(ValueError) as refused:
        PipelineTrainer(model, art.RemoteBackend("http://127.0.0.1:1", "k"), rollout, stream, None, **given)
    assert named in str(refused.value)


async def test_a_second_run_of_one_model_is_refused_while_the_first_goes_on(
    backend: FastBackend, model: Any
) -> None:
    backend.allowed.clear()
    first = PipelineTrainer(model, backend, rollout, scenarios(8), None, eval_every_n_steps=0)
    running = asyncio.create_task(first.train())
    await backend.training.wait()
    second = PipelineTrainer(model, backend, rollout, scenarios(8), None, eval_every_n_steps=0)
    with pytest.raises(ConfigurationError, match=f"another PipelineTrainer is training.*{model.name!r}"):
        await second.train()
    backend.allowed.set()
    await running
    assert sorted(backend.trained()) == list(range(8))
    await second.train()  # it goes on where the first ended: nothing is left
    assert sorted(backend.trained()) == list(range(8))
