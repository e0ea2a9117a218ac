"""A trainer of several ranks that loses one is started again as a whole, and each step is made once."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import psutil
import pytest
from server_process import ServerProcess, running_server

from waiting import eventually, gone

pytestmark = pytest.mark.slow

STEPS = 3


def ranks_of(server: ServerProcess) -> list[psutil.Process]:
    """The ranks that live, the leader first: the others were started after it."""
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    found = [one for one in children if not gone(one) and "art.training.worker" in " ".join(one.cmdline())]
    return sorted(found, key=lambda one: (one.create_time(), one.pid))


def adapter(server: ServerProcess, step: int) -> bytes:
    folder = Path(server.model()["checkpoint_dir"]) / f"{step:04d}"
    return b"".join(
        (folder / name).read_bytes() for name in ("adapter_model.safetensors", "optimizer.safetensors")
    )


def prompts(server: ServerProcess, step: int) -> dict[str, object]:
    """A job whose samples are greedy but for their seeds: the same in every run."""
    samples = [
        server.choice("player", text=f"step {step}", temperature=1.0, seed=at)["sample_id"] for at in range(4)
    ]
    trajectories = [
        {"rollout": f"r{at}", "reward": float(at % 2), "samples": [one]} for at, one in enumerate(samples)
    ]
    return {
        "job_id": f"job{step}",
        "groups": [{"trajectories": trajectories}],
        "optimizer": {"learning_rate": 1e-2},
    }


def test_ranks_killed_at_random_moments_change_nothing(tmp_path: Path, base: Path) -> None:
    """Each step is submitted while one of the ranks is killed, at a moment that differs from step to step.
    The adapter and its moments are those of a run in which nobody died, bit for bit.
    """
    chance = random.Random(5)
    found, seen = {}, 0
    for kind in ("undisturbed", "killed"):
        with running_server(tmp_path / kind, base, trainer={"ranks": 2}, restarts=20) as server:
            for step in range(STEPS):
                job = prompts(server, step)
                victim = ranks_of(server)[step % 2]
                server.submit(job)
                if kind == "killed":
                    time.sleep(chance.random() * 0.3)
                    victim.kill()
                assert server.result(f"job{step}")["step"] == step + 1
                if kind == "killed":
                    up = {"state": "up", "restarts": step + 1}
                    eventually(lambda up=up: server.health()["trainer"] == up)
                    log = (tmp_path / "server.log").read_text()
                    assert set(re.findall(r"rank (\d) of 2", log[seen:])) == {str(step % 2)}
                    seen = len(log)
            assert server.model()["checkpoints"] == list(range(STEPS + 1))
            found[kind] = adapter(server, STEPS)
    assert found["killed"] == found["undisturbed"]


def test_a_rank_that_hangs_ends_the_gang_within_its_deadline(tmp_path: Path, base: Path) -> None:
    with running_server(
        tmp_path / "data", base, trainer={"ranks": 2}, health_deadline=3.0, restarts=20
    ) as server:
        follower = ranks_of(server)[1]
        follower.suspend()
        server.submit(server.job("first"))
        assert server.result("first")["step"] == 1
        assert server.model()["checkpoints"] == [0, 1]
        assert gone(follower)
        assert "rank 1 of 2" in (tmp_path / "server.log").read_text()
        assert list((tmp_path / "data" / "server" / "logs").glob("trainer-*-rank1.log"))


def test_a_base_in_shards_is_probed_trained_and_saved(tmp_path: Path, base: Path) -> None:
    """The parity gate, the canary and two steps, all through ranks that have half of the layers each."""
    with running_server(tmp_path / "data", base, trainer={"ranks": 2, "sharding": "fsdp"}) as server:
        workers = server.http.get("/health").json()["workers"][str(base)]
        assert workers["parity"][0]["ok"]
        assert [server.train(name)["step"] for name in ("first", "second")] == [1, 2]
        assert server.choice()["step"] == 2
        refused = server.http.post(
            "/art/models",
            json={"project": "games", "name": "whole", "base_model": str(base), "lora": None},
        )
        assert refused.status_code == 400 and "trainer.sharding" in refused.text
