"""What became of the jobs of a program that was killed."""

from __future__ import annotations

import pytest
from wire_double import Double

import art


@pytest.fixture
async def registered(backend: art.RemoteBackend, model: art.TrainableModel) -> art.TrainableModel:
    await model.register(backend)
    return model


def leave(double: Double, job_id: str, *, running: bool) -> None:
    """A job of an earlier program: one group of one rollout."""
    group = {"trajectories": [{"rollout": "r", "reward": 1.0, "samples": []}], "failed": 0}
    double.jobs[job_id] = {"job_id": job_id, "groups": [group]}
    double.unfinished += [job_id] if running else []
    double.step += 1


@pytest.mark.parametrize("running", [False, True])
async def test_a_job_of_an_earlier_program_has_its_result(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double, running: bool
) -> None:
    leave(double, "left", running=running)
    result = await backend.training_result(registered, "left")
    assert result is not None and result.step == 1 and result.metrics["data/sheet/trained_rollouts"] == 1
    assert len(double.events_after) == running, "one that runs is waited for"
    assert await backend.training_result(registered, "never sent") is None


async def test_a_job_that_failed_made_no_step(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    leave(double, "left", running=True)
    double.script = [{"number": 1, "type": "error", "error": "no memory", "error_code": "TrainingError"}]
    assert await backend.training_result(registered, "left") is None
    assert await backend.settled_step(registered) == 1


async def test_the_settled_step_waits_for_what_is_under_way(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    assert await backend.settled_step(registered) == 0
    leave(double, "left", running=True)
    assert await backend.settled_step(registered) == 1 and double.unfinished == []
    assert await backend.checkpoint_steps(registered) == [0, 1]


async def test_a_named_job_with_stale_and_discarded_groups_goes_out_as_it_is(
    backend: art.RemoteBackend, registered: art.TrainableModel, double: Double
) -> None:
    def group(reward: float) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([art.Trajectory(reward=reward), ValueError("x")])

    double.script = None
    with pytest.raises(art.errors.UnbalancedSheetError):  # the double does not count what was discarded
        await backend.train(
            registered, [group(1.0)], discarded_groups=[group(0.0)], max_steps_off_policy=3, job_id="mine"
        )
    sent = double.jobs["mine"]
    assert sent["max_steps_off_policy"] == 3 and len(sent["groups"]) == len(sent["discarded"]) == 1
    names = [one["rollout"] for part in ("groups", "discarded") for one in sent[part][0]["trajectories"]]
    assert len(set(names)) == 2
