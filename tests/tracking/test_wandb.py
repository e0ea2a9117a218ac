"""With the real library in offline mode: what is tested is what it wrote."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from offline_run import OfflineRun, offline_runs

import art
from art.errors import ConfigurationError, install_command
from art.process.environment import WANDB_API_KEY
from art.tracking.sinks.wandb import open_runs


@pytest.fixture
def runs(tmp_path, monkeypatch, fresh_wandb) -> Iterator:
    """Ends the runs, then reads them."""
    import wandb

    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_DISABLE_GIT": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(WANDB_API_KEY, raising=False)

    def ended() -> list[OfflineRun]:
        wandb.teardown()
        open_runs.cache_clear()
        return offline_runs(tmp_path)

    yield ended
    ended()


def model_of(tmp_path: Path, **fields) -> art.Model:
    return art.Model(**{"name": "agent", "project": "games", "base_path": str(tmp_path), **fields})


def told(row: dict) -> dict:
    return {name: value for name, value in row.items() if not name.startswith("_") and "clock" not in name}


@pytest.mark.slow
async def test_rows_config_and_axes(tmp_path, runs):
    model = model_of(tmp_path, entity="team", report_metrics=["wandb"])
    model.update_wandb_config({"seed": 1, "lr": {"peak": 0.1}})
    await model.log(metrics={"loss/train": 0.5, "costs/train/judge": 2.0}, split="train", step=5)
    model.update_wandb_config({"lr": {"warmup": 3}, "seed": 1})
    await model.log([art.Trajectory(reward=1.0)], split="versus-self", step=2)  # out of order
    assert model._get_wandb_run().id == "agent"  # as older programs reach it
    (run,) = runs()
    assert (run.entity, run.project, run.id, run.name) == ("team", "games", "agent", "agent")
    assert {key: value for key, value in run.config.items() if key != "_wandb"} == {
        "seed": 1,
        "lr": {"peak": 0.1, "warmup": 3},
    }
    first, second = run.rows
    assert told(first) == {
        "loss/train": 0.5,
        "costs/train/judge": 2.0,
        "costs/train": 2.0,
        "costs/all": 2.0,
        "costs/cum/train/judge": 2.0,
        "costs/cum/train": 2.0,
        "costs/cum/all": 2.0,
        "training_step": 5,
    }
    assert told(second)["versus-self/reward"] == 1.0 and second["training_step"] == 2
    axes = ("loss/*", "val/*", "discarded/*", "versus-self/*", "costs/*", "costs/train/judge")
    assert {name: run.axes[name] for name in axes} == dict.fromkeys(axes, "training_step")
    assert run.axes["training_step"] == "" and "costs/all" not in run.axes


@pytest.mark.slow
async def test_trajectories_are_shown_where_they_are_asked_for(tmp_path, runs, monkeypatch):
    model = model_of(tmp_path, report_metrics=["wandb"])
    turn = art.Trajectory(messages_and_choices=[{"role": "user", "content": "hello \udc80"}], reward=1.0)
    await model.log([turn, turn], split="val", step=1)
    monkeypatch.setenv("ART_TRACKED_TRAJECTORIES", "1")
    await model.log([turn, turn], split="val", step=2)
    (run,) = runs()
    shown = [(row["training_step"], row.get("val/trajectories.nrows")) for row in run.rows]
    assert shown == [(1, None), (2, 1)]


@pytest.mark.slow
async def test_who_reports(tmp_path, runs, monkeypatch):
    monkeypatch.setenv(WANDB_API_KEY, "k" * 40)
    for name, sinks in (("by-key", None), ("asked", ["wandb"]), ("silent", [])):
        await model_of(tmp_path, name=name, report_metrics=sinks).log(metrics={"acc": 1}, step=0)
    monkeypatch.delenv(WANDB_API_KEY)
    await model_of(tmp_path, name="no-key").log(metrics={"acc": 1}, step=0)
    assert [run.name for run in runs()] == ["asked", "by-key"]


@pytest.mark.slow
async def test_runs_of_two_projects_and_of_copies_stay_apart(tmp_path, runs):
    model = model_of(tmp_path, report_metrics=["wandb"])
    other = model_of(tmp_path, project="b", report_metrics=["wandb"])
    await asyncio.gather(*(one.log(metrics={"acc": 1}, step=0) for one in (model, other)))
    copied, same = model.model_copy(deep=True), model.model_copy()
    copied.name = "copy/2"
    await asyncio.gather(*(one.log(metrics={"acc": 2}, step=1) for one in (copied, same)))
    found = runs()
    rows = {(run.project, run.name): [row["val/acc"] for row in run.rows] for run in found}
    assert rows == {("games", "agent"): [1, 2], ("games", "copy/2"): [2], ("b", "agent"): [1]}
    assert len({run.id for run in found}) == 3 and "agent" in {run.id for run in found}


@pytest.mark.slow
async def test_a_model_made_again_reports_to_the_same_run(tmp_path, runs):
    for step in range(2):
        await model_of(tmp_path, report_metrics=["wandb"]).log(metrics={"acc": 1}, step=step)
    (run,) = runs()
    assert [row["training_step"] for row in run.rows] == [0, 1]


@pytest.mark.slow
async def test_a_run_that_the_program_ended_goes_on(tmp_path, runs):
    import wandb

    model = model_of(tmp_path, report_metrics=["wandb"])
    await model.log(metrics={"acc": 1}, step=0)
    wandb.finish()
    await model.log(metrics={"acc": 1}, step=1)
    assert sorted(row["training_step"] for run in runs() for row in run.rows) == [0, 1]


@pytest.mark.slow
async def test_a_name_that_cannot_be_an_id(tmp_path, runs):
    for name in ("a/b", "a#b"):
        await model_of(tmp_path, name=name, report_metrics=["wandb"]).log(metrics={"acc": 1}, step=0)
    await model_of(tmp_path, run_id="mine", report_metrics=["wandb"]).log(metrics={"acc": 1}, step=0)
    ids = sorted(run.id for run in runs())
    assert len(set(ids)) == 3 and ids[2] == "mine" and all(id.startswith("a-b-") for id in ids[:2])


@pytest.mark.slow
async def test_a_run_has_a_name_of_its_own(tmp_path, runs):
    await model_of(tmp_path, run_name="night 2", report_metrics=["wandb"]).log(metrics={"acc": 1}, step=0)
    await model_of(tmp_path, run_name="x", run_id="mine", report_metrics=["wandb"]).log(
        metrics={"acc": 1}, step=0
    )
    assert sorted((run.name, run.id) for run in runs()) == [("night 2", "night 2"), ("x", "mine")]


async def test_the_config_is_immutable(tmp_path):
    model = model_of(tmp_path, report_metrics=[])
    model.update_wandb_config({"a": {"b": 1}})
    model.update_wandb_config({"a": {"b": 1, "c": 2}})
    with pytest.raises(ValueError) as refused:
        model.update_wandb_config({"a": {"b": 2}})
    assert str(refused.value) == "W&B config is immutable once set. Conflicting value for 'a.b'."
    with pytest.raises(TypeError, match="must be a dict"):
        model.update_wandb_config(["a"])


async def test_not_installed(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv(WANDB_API_KEY, "k")
    model = model_of(tmp_path)
    for step in range(2):
        await model.log(metrics={"acc": 1}, step=step)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and install_command("wandb") in warnings[0]
    with pytest.raises(ConfigurationError, match=re.escape(install_command("wandb"))):
        await model_of(tmp_path, report_metrics=["wandb"]).log(metrics={"acc": 1}, step=0)


async def test_a_failure_ends_a_run_only_if_it_was_asked_for_by_name(tmp_path, runs, monkeypatch, caplog):
    import wandb

    monkeypatch.setenv(WANDB_API_KEY, "k" * 40)
    refused = {"project": "a%b"}  # W&B has no such project names
    model = model_of(tmp_path, **refused)
    for step in range(2):
        await model.log(metrics={"acc": 1}, step=step)
    assert sum("Weights & Biases failed" in record.message for record in caplog.records) == 1
    assert len((model._folder() / "history.jsonl").read_text().splitlines()) == 2
    with pytest.raises(wandb.Error):
        await model_of(tmp_path, report_metrics=["wandb"], **refused).log(metrics={"acc": 1}, step=0)


@pytest.mark.slow
async def test_without_a_network_a_key_in_the_environment_does_not_stop_the_program(
    tmp_path, runs, monkeypatch, caplog
):
    import wandb

    monkeypatch.setattr("art.tracking.sinks.wandb.UNASKED_PATIENCE_S", 1.0)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setenv(WANDB_API_KEY, "0" * 40)
    wandb.teardown()  # it reads the environment once
    async with asyncio.timeout(60):  # by itself W&B tries for longer
        await model_of(tmp_path).log(metrics={"acc": 1}, step=0)
    assert "report_metrics=[] does not try" in caplog.text
    assert (model_of(tmp_path)._folder() / "history.jsonl").exists()


async def test_an_unknown_sink_is_told_once_and_the_run_is_logged(tmp_path, caplog):
    for name in ("a", "b"):
        model = model_of(tmp_path, name=name, report_metrics=["a sink of my own"])
        await model.log(metrics={"acc": 1}, step=0)
        assert (model._folder() / "history.jsonl").exists()
    told = [record.message for record in caplog.records if "a sink of my own" in record.message]
    assert len(told) == 1 and "known: wandb" in told[0]
