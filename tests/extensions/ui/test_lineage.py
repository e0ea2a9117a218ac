"""The lineage of checkpoints: forks below their step, deleted steps and those set aside; settings."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from made_run import MadeRun, made_run, trajectory
from starlette.testclient import TestClient

from art.server.jobs.job_store import _SCHEMA
from art_extensions.ui.access import Viewer
from art_extensions.ui.app import RunPages
from art_extensions.ui.lineage import Lineage, lineage_of
from art_extensions.ui.run_files import find_runs


def forked(root: Path, name: str, origin: str, *steps: int, project: str = "games") -> MadeRun:
    """A model that was forked from a step of another one."""
    made = MadeRun(root, project=project, name=name)
    registration = {"base_model": "art/nano", "origin": origin}
    (made.model / "registration.json").write_text(json.dumps(registration))
    for step in steps:
        made.checkpoint(step)
    return made


def family(root: Path, key: str) -> Lineage:
    runs = find_runs(root)
    found = lineage_of(runs[key], list(runs.values()))
    assert found is not None
    return found


def states(found: Lineage, model: str) -> dict[int, str]:
    return {place.step: place.state for place in found.places if place.model == model}


def test_each_step_is_kept_newest_deleted_or_set_aside(tmp_path: Path) -> None:
    made = made_run(tmp_path)
    for step in (3, 4, 5):
        made.record(step, [[trajectory(f"n{step}", 1.0, "tea")]])
    made.checkpoint(4)
    (made.model / "checkpoints" / ".0005.rejected-1").mkdir()
    found = family(tmp_path, "-/games/player")
    expected = {1: "kept", 2: "kept", 3: "deleted", 4: "newest", 5: "rejected"}
    assert states(found, "games/player") == expected and found.forks == []
    assert [place.href.rpartition("/")[2] for place in found.places] == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("key", ["-/games/player", "-/games/second", "-/games/third"])
def test_a_family_is_whole_whichever_of_its_models_is_asked_for(tmp_path: Path, key: str) -> None:
    made_run(tmp_path)
    forked(tmp_path, "second", "games/player@1", 1, 2, 3)
    forked(tmp_path, "third", "games/second@3", 3, 4)
    forked(tmp_path, "aside", "games/other@7", 7)
    found = family(tmp_path, key)
    assert [(lane.steps.name, lane.depth) for lane in found.lanes] == [
        ("games/player", 0),
        ("games/second", 1),
        ("games/third", 2),
    ]
    at = {(place.model, place.step): (place.x, place.y) for place in found.places}
    begin, end = at["games/player", 1], at["games/second", 1]
    assert begin[0] == end[0] and found.forks[0].startswith(f"M{begin[0]} {begin[1]} ")
    assert found.forks[0].endswith(f" {end[0]} {end[1]}") and len(found.forks) == 2
    assert [step for step, _ in found.columns] == [1, 2, 3, 4]


def test_an_origin_that_is_gone_a_circle_and_nonsense_are_borne(tmp_path: Path) -> None:
    forked(tmp_path, "lost", "games/removed@7", 7, 8)
    assert family(tmp_path, "-/games/lost").lanes[0].missing_origin
    forked(tmp_path, "one", "games/two@1", 1)
    forked(tmp_path, "two", "games/one@1", 1)
    assert {lane.steps.name for lane in family(tmp_path, "-/games/one").lanes} == {"games/one", "games/two"}
    forked(tmp_path, "odd", "../../etc@x", 1)
    assert family(tmp_path, "-/games/odd").lanes[0].steps.origin is None
    MadeRun(tmp_path, name="empty")
    runs = find_runs(tmp_path)
    assert lineage_of(runs["-/games/empty"], list(runs.values())) is None


def test_a_fork_before_its_registration_names_its_origin_in_a_file(tmp_path: Path) -> None:
    made_run(tmp_path)
    made = MadeRun(tmp_path, name="early")
    (made.model / ".origin").write_text("games/player@2")
    made.checkpoint(2)
    assert len(family(tmp_path, "-/games/early").lanes) == 2


def test_a_tenant_sees_no_origin_of_another(tmp_path: Path) -> None:
    forked(tmp_path, "player", "bob~games/player@1", 1, project="alice~games")
    forked(tmp_path, "own", "alice~games/player@1", 1, 2, project="alice~games")
    forked(tmp_path, "player", "alice~games/player@1", 1, project="bob~games")
    runs = find_runs(tmp_path, Viewer("alice", "alice~"))
    found = lineage_of(runs["-/games/own"], list(runs.values()))
    assert found is not None
    assert [lane.steps.name for lane in found.lanes] == ["games/player", "games/own"]
    page = TestClient(RunPages(tmp_path, Viewer("alice", "alice~")).app()).get("/runs/-/games/own").text
    assert "bob" not in page and "alice" not in page and "games/player" in page


def job_of(root: Path, name: str, rate: float, *, kind: str = "rl") -> None:
    """Writes a job that has made a step down, as a server does."""
    (root / "server").mkdir(exist_ok=True)
    asked = {
        "job_id": f"j-{name}",
        "groups": [{"trajectories": []}],
        "algorithm": {"name": "grpo", "loss": {"name": "ppo", "params": {"epsilon": 0.2}}},
        "optimizer": {"learning_rate": rate},
    }
    with sqlite3.connect(root / "server" / "jobs.sqlite") as file:
        file.executescript(_SCHEMA)
        file.execute(
            "INSERT INTO jobs (job_id, project, name, request, digest, state, phase, created_at, kind, step) "
            "VALUES (?, 'games', ?, ?, x'00', 'done', 'done', 1.0, ?, 2)",
            (f"j-{name}", name, json.dumps(asked), kind),
        )


def test_settings_are_as_the_server_used_them_and_two_runs_show_what_differs(
    tmp_path: Path, read: Callable[[str], str]
) -> None:
    for name, rate in (("player", 0.001), ("second", 0.002)):
        MadeRun(tmp_path, name=name).history(2, **{"train/reward": 0.5})
        job_of(tmp_path, name, rate)
    shown = read("/runs/-/games/player")
    assert "The newest training job step 2 kind rl algorithm.name grpo" in shown
    assert "algorithm.loss.params.epsilon 0.2" in shown and "optimizer.learning_rate 0.001" in shown
    assert "j-player" not in shown and "trajectories" not in shown
    compared = read("/compare?run=-/games/player&run=-/games/second")
    table = compared.partition("Settings that differ")[2]
    assert "training.optimizer.learning_rate 0.001 0.002" in table and "loss" not in table
    assert "6 settings are the same" in table
