"""The loop closes through real workers: sample, train, check, serve, in one server for all these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from server_process import ServerProcess, running_server

from art.wire.jobs import STEP_PARTS, part_metric

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("loop") / "data", base, keep_loaded=2) as running:
        yield running


def test_registering_makes_step_zero_and_serves_it(loop: ServerProcess) -> None:
    again = loop.register()
    assert again["inference_name"] == "player" and again["checkpoints"][0] == 0
    assert loop.choice("player@0")["step"] == 0


def test_a_job_makes_a_step_that_is_served(loop: ServerProcess) -> None:
    before = loop.model()["step"]
    result = loop.train("a-step")
    assert result["step"] == before + 1 == loop.model()["step"]
    assert loop.choice()["step"] == before + 1
    assert result["metrics"]["trained"] == 1.0
    assert 0 <= result["metrics"]["canary/logprob_difference_max"] < 1e-3
    seconds = {part: result["metrics"][part_metric(part)] for part in STEP_PARTS}
    assert min(seconds[part] for part in ("sampling", "prepare", "gradient", "save", "load", "canary")) > 0
    assert result["sheet"]["started"]["rollouts"] == 2 == result["sheet"]["fates"]["trained"]["rollouts"]
    checkpoint = Path(result["checkpoint_path"])
    assert (checkpoint / "adapter_model.safetensors").exists() and checkpoint.name == f"{before + 1:04d}"


def test_the_events_are_numbered_and_can_be_asked_for_again(loop: ServerProcess) -> None:
    loop.train("events")
    events = loop.events("events")
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    phases = [event["phase"] for event in events if event["type"] == "progress"]
    assert phases[0] == "preparing" and "training" in phases and phases[-1] == "checking"
    assert loop.events("events", after=2) == events[2:]


def test_the_same_job_sent_twice_trains_once(loop: ServerProcess) -> None:
    job = loop.job("twice")
    loop.submit(job)
    step = loop.result("twice")["step"]
    assert loop.submit(job)["result"]["step"] == step == loop.model()["step"]
    refused = loop.http.post("/art/models/games/player/train", json={**job, "groups": []})
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "job_conflict"


def test_equal_rewards_advance_the_step_without_new_weights(loop: ServerProcess) -> None:
    before = loop.model()["step"]
    result = loop.train("equal", rewards=(0.5, 0.5))
    assert result["step"] == before + 1 and result["metrics"]["trained"] == 0.0
    assert result["sheet"]["fates"]["zero_advantage"]["rollouts"] == 2
    folder = loop.data_dir / "games" / "models" / "player" / "checkpoints"
    old, new = (folder / f"{step:04d}" / "adapter_model.safetensors" for step in (before, before + 1))
    assert old.stat().st_ino == new.stat().st_ino
    assert result["metrics"][part_metric("canary")] == 0.0, "no weight moved"
    assert loop.choice()["step"] == before + 1
    assert loop.train("after-equal")["step"] == before + 2


def test_an_old_step_answers_from_its_checkpoint(loop: ServerProcess) -> None:
    for number in range(2):
        loop.train(f"older-{number}")
    assert "player@0" not in [row["id"] for row in loop.http.get("/v1/models").json()["data"]]
    assert loop.choice("player@0")["step"] == 0
    missing = loop.chat("player@9999")
    assert missing.status_code == 404 and "checkpoints" in missing.json()["error"]["message"]


def test_samples_of_another_model_and_unknown_samples_are_refused_by_name(loop: ServerProcess) -> None:
    loop.register(name="other")
    foreign = loop.job("foreign")
    foreign["groups"][0]["trajectories"][0]["samples"] = [loop.choice("other")["sample_id"]]
    loop.submit(foreign)
    failed = loop.events("foreign")[-1]
    assert failed["error_code"] == "sample_of_other_model" and "games/other@0" in failed["error"]
    unknown = loop.job("unknown")
    unknown["groups"][0]["trajectories"][0]["samples"] = ["no-such-sample"]
    loop.submit(unknown)
    failed = loop.events("unknown")[-1]
    assert failed["error_code"] == "sample_not_found" and "no-such-sample" in failed["error"]
    base = loop.job("base")
    base["groups"][0]["trajectories"][0]["samples"] = [loop.choice(str(loop.base))["sample_id"]]
    loop.submit(base)
    assert "base model" in loop.events("base")[-1]["error"]


def test_a_job_for_another_step_is_refused(loop: ServerProcess) -> None:
    loop.submit({**loop.job("early"), "expected_step": 999})
    failed = loop.events("early")[-1]
    assert failed["error_code"] == "step_conflict" and "999" in failed["error"]


def test_an_unknown_loss_is_refused_with_the_known_ones(loop: ServerProcess) -> None:
    step = loop.model()["step"]
    loop.submit({**loop.job("loss"), "algorithm": {"loss": {"name": "guess"}}})
    failed = loop.events("loss")[-1]
    assert failed["error_code"] == "ConfigurationError" and "cispo" in failed["error"]
    assert loop.train("after-loss")["step"] == step + 1


def test_a_model_keeps_its_base_and_shape(loop: ServerProcess) -> None:
    body = {"project": "games", "name": "player", "base_model": str(loop.base), "lora": {"r": 8}}
    refused = loop.http.post("/art/models", json=body)
    assert refused.status_code == 409 and refused.json()["error"]["param"] == "lora"


@pytest.mark.parametrize("name", ["..", "a/b", ""])
def test_no_name_is_a_path(loop: ServerProcess, name: str) -> None:
    body = {"project": "games", "name": name, "base_model": str(loop.base)}
    refused = loop.http.post("/art/models", json=body)
    assert refused.status_code == 400 and "is not a name" in refused.json()["error"]["message"]


def test_control_needs_the_key(loop: ServerProcess) -> None:
    for path in ("/art/models", "/art/jobs/x", "/art/jobs/x/events"):
        assert loop.http.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_old_checkpoints_can_be_deleted(loop: ServerProcess) -> None:
    steps = loop.model()["checkpoints"]
    url = "/art/models/games/player/delete_checkpoints"
    deleted = loop.http.post(url, json={"keep_steps": [0]}).json()["deleted"]
    assert deleted == steps[1:-1] and loop.model()["checkpoints"] == [0, steps[-1]]
    assert loop.choice()["step"] == steps[-1]
    assert loop.chat(f"player@{steps[1]}").status_code == 404


def test_a_base_model_that_is_not_there_is_named(loop: ServerProcess) -> None:
    body = {"project": "games", "name": "lost", "base_model": "/no/such/folder"}
    refused = loop.http.post("/art/models", json=body)
    assert refused.status_code == 400 and "/no/such/folder" in refused.json()["error"]["message"]


def test_samples_of_an_old_step_are_stale_and_discarded_groups_are_on_the_sheet(loop: ServerProcess) -> None:
    old, older_discarded = loop.job("stale"), loop.job("unused")["groups"]
    step = loop.train("in-between")["step"]
    fresh = loop.job("fresh")["groups"]
    for number, trajectory in enumerate([*older_discarded[0]["trajectories"], *fresh[0]["trajectories"]]):
        trajectory["rollout"] = f"another{number}"
    groups = [*old["groups"], *fresh]
    loop.submit({**old, "groups": groups, "discarded": older_discarded, "max_steps_off_policy": 0})
    result = loop.result("stale")
    fates = {name: row["rollouts"] for name, row in result["sheet"]["fates"].items()}
    assert fates == {"stale": 4, "trained": 2} and result["step"] == step + 1
    assert result["metrics"]["offpolicy/steps_max"] == 0
    again = loop.job("within")
    loop.train("in-between-again")
    loop.submit({**again, "max_steps_off_policy": 1})
    result = loop.result("within")
    assert set(result["sheet"]["fates"]) == {"trained"} and result["metrics"]["offpolicy/steps_max"] == 1
