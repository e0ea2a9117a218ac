"""With the real library in offline mode: what is tested is what it wrote."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from offline_run import OfflineRun, offline_runs

import art
from art.errors import ConfigurationError, install_command
from art.process.environment import WANDB_API_KEY
from art_extensions.sinks.wandb import RunKey, chart_lines, open_runs, thinned


@pytest.fixture
def runs(tmp_path, monkeypatch, fresh_wandb) -> Iterator:
    """Ends the runs, then reads them."""
    import wandb

    for name, value in {
        "WANDB_MODE": "offline",
        **dict.fromkeys(("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR"), str(tmp_path)),
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


TABLES = "Custom Chart Tables"
PROGRAM = """
import asyncio, sys
import art

async def main():
    model = art.Model(name="agent", project="games", base_path=sys.argv[1], report_metrics=["wandb"])
    for step in range(14):
        await model.log([art.Trajectory(reward=1.0)], step=step)

asyncio.run(main())
"""


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
    assert (
        run.config["art"].keys() == {"version", "project", "model"} and run.config["art"]["model"] == "agent"
    )
    assert {key: value for key, value in run.config.items() if key not in ("_wandb", "art")} == {
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
async def test_what_people_filter_runs_by_changes_with_the_run(tmp_path, runs):
    """The learning rate of a later job is no conflict, and what the program says itself stays."""
    model = art.TrainableModel(
        name="agent",
        project="games",
        base_model="art/nano-words",
        base_path=str(tmp_path),
        report_metrics=["wandb"],
        config=(config := {"prompt": "be brief", "tags": ["longer", "longer", "", 7, "w" * 70]}),
        run_name="third try",
    )
    model.update_wandb_config({"learning_rate": 7})
    for step, rate in enumerate((1e-4, 5e-5)):
        model._run_log.note_training({"learning_rate": rate})
        await model.log(metrics={"loss/train": 0.5}, split="train", step=step)
    (run,) = runs()
    told = run.config["art"]
    assert (told["base_model"], told["run_name"], told["config"]) == (
        "art/nano-words",
        "third try",
        config,
    )
    assert told["train"]["learning_rate"] == 5e-5 and run.config["learning_rate"] == 7
    assert model._get_wandb_run().tags == ("art/nano-words", "longer", "w" * 64)


def points(run: OfflineRun, chart: str) -> dict[str, list[tuple[int, float]]]:
    """The points of a chart as it was drawn last, by line."""
    [told] = [row for row in run.rows if f"{chart}.path" in row][-1:]
    table = json.loads((run.folder / "files" / told[f"{chart}.path"]).read_text())
    assert table["columns"] == ["step", "lineKey", "lineVal"]
    lines: dict[str, list[tuple[int, float]]] = {}
    for step, line, value in table["data"]:
        lines.setdefault(line, []).append((step, value))
    return lines


def groups_of(*rewards: float) -> list[art.TrajectoryGroup]:
    return [art.TrajectoryGroup([art.Trajectory(reward=one) for one in (reward, 1.0)]) for reward in rewards]


@pytest.mark.slow
async def test_charts_of_reward_faults_and_fates(tmp_path, runs):
    sheet = {"data/sheet/started_rollouts": 4.0, "data/sheet/trained_rollouts": 3.0}
    for step in (1, 2):
        model = model_of(tmp_path, report_metrics=["wandb"])  # each goes on where the last one was
        failed = {"data/sheet/failed_rollouts": 1.0} if step == 2 else {}
        await model.log(
            groups_of(0.0, 1.0), split="train", step=step, metrics={**sheet, **failed, "truncated_rate": 0.25}
        )
    history = [json.loads(line) for line in (model._folder() / "history.jsonl").read_text().splitlines()]
    (run,) = runs()
    told = points(run, f"{TABLES}/charts/train_reward_table")
    assert told["mean"] == [(1, 0.75), (2, 0.75)]
    error = history[0]["train/reward_sem"]
    assert error > 0 and told["mean + 2 standard errors"][0] == (1, pytest.approx(0.75 + 2 * error))
    assert told["mean - 2 standard errors"][1] == (2, pytest.approx(0.75 - 2 * error))
    assert points(run, f"{TABLES}/charts/train_faults_table")["truncated_rate"] == [(1, 0.25), (2, 0.25)]
    fates = points(run, f"{TABLES}/charts/fates_table")
    assert fates == {"trained": [(1, 0.75), (2, 0.75)], "failed": [(1, 0.0), (2, 0.25)]}
    shown = run.config["_wandb.visualize.charts/train_reward"]
    assert shown["panel_config"]["panelDefId"] == "wandb/lineseries/v0"


@pytest.mark.slow
def test_the_charts_of_a_program_that_ends_have_its_last_row(tmp_path):
    variables = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, **variables, "WANDB_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = offline_runs(tmp_path)
    steps = [step for step, _ in points(run, f"{TABLES}/charts/val_reward_table")["mean"]]
    assert steps == list(range(14))
    drawn = [row for row in run.rows if any("charts/val_reward" in name for name in row)]
    assert 10 < len(drawn) < 14  # not with every row


@pytest.mark.slow
async def test_a_chart_that_cannot_be_drawn_costs_no_row(tmp_path, runs, caplog):
    def unreadable():
        raise OSError("no such disk")

    key = RunKey(entity=None, project="games", name="agent", run_id=None)
    for step in (1, 2):
        open_runs().log(key, {}, {"training_step": step, "val/reward": 0.5}, history=unreadable)
    (run,) = runs()
    assert [row["val/reward"] for row in run.rows] == [0.5, 0.5]
    assert [record.message for record in caplog.records if "no such disk" in record.message] == [
        "the charts of W&B are not drawn: OSError: no such disk"
    ]


def test_long_lines_are_thinned_out_and_end_with_the_newest_step():
    rows = [{"training_step": step, "val/reward": 0.5} for step in range(10_001)]
    (line,) = chart_lines(rows)["charts/val_reward"].values()
    kept = thinned(line)
    assert len(line) == 10_001 and len(kept) <= 401 and (kept[0], kept[-1]) == (0, 10_000)


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


def write_checkpoint(model: art.TrainableModel, step: int) -> Path:
    folder = model._folder() / "checkpoints" / f"{step:04d}"
    folder.mkdir(parents=True)
    for name in ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"):
        (folder / name).write_text(f"{name} of {step}")
    return folder


@pytest.mark.slow
async def test_the_adapter_of_a_step_is_an_artifact_where_it_is_asked_for(tmp_path, runs, monkeypatch):
    import wandb

    model = art.TrainableModel(
        name="agent 1",
        project="games",
        base_model="art/nano-words",
        base_path=str(tmp_path / "art"),
        report_metrics=["wandb"],
    )
    model.update_wandb_config({"rank": 8, "made": Path("x")})
    folders = [write_checkpoint(model, step) for step in (1, 2, 3)]
    await model.log(metrics={"loss/train": 0.5}, split="train", step=1)  # nobody has asked
    monkeypatch.setenv("ART_TRACKED_CHECKPOINTS", "1")
    await model.log(metrics={"loss/train": 0.5}, split="train", step=2)
    await model.log(metrics={"acc": 0.5}, split="val", step=2)
    wandb.finish()  # what the program has ended is continued
    await model.log(metrics={"loss/train": 0.5}, split="train", step=3)
    await model.log(metrics={"loss/train": 0.5}, split="train", step=4)  # its checkpoint is elsewhere
    for folder in folders:
        shutil.rmtree(folder)
    logged = sorted((one for run in runs() for one in run.artifacts), key=lambda one: one["metadata"]["step"])
    assert [one["aliases"] for one in logged] == [["latest", "step2"], ["latest", "step3"]]
    assert {(one["name"].partition("-")[0], one["type"]) for one in logged} == {("agent_1", "model")}
    assert all(one["name"].endswith("-adapter") for one in logged)
    for step, one in enumerate(logged, start=2):
        names = ("adapter_config.json", "adapter_model.safetensors")
        assert one["files"] == {name: f"{name} of {step}" for name in names}
        facts = one["metadata"]
        assert facts["step"] == step and facts["config"]["rank"] == 8
        assert facts["config"]["art"]["base_model"] == "art/nano-words"


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
    for name in ("a?b", "a#b"):
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
    model.report_metrics = ["wandb"]
    with pytest.raises(wandb.Error):
        await model.log(metrics={"acc": 1}, step=2)


@pytest.mark.slow
async def test_without_a_network_a_key_in_the_environment_does_not_stop_the_program(
    tmp_path, runs, monkeypatch, caplog
):
    import wandb

    monkeypatch.setattr("art_extensions.sinks.wandb.UNASKED_PATIENCE_S", 1.0)
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
    assert len(told) == 1 and "wandb. Rows are in" in told[0]
