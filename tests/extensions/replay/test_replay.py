"""Steps of real runs are done again with the server stopped: to the bit, with one change, or refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from replayed_run import BY_EXAMPLES, KEY, STEPS, WITHOUT_SIGNAL, make_run
from rollout_gradients import rollout_gradients
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from art.cli.main import app
from art.server.data_folder import DataFolderLock
from art.wire.models import MANIFEST_FILE, manifest_entry
from art_extensions.replay.kill_place import PLACES

pytestmark = [pytest.mark.slow, pytest.mark.extension]

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo"},
    "gspo": {"algorithm": "gspo", "dropout": 0.2},
    "ppo_critic": {"algorithm": "ppo_critic", "trainer": {"token_budget": 16}},
}
"""gspo makes four updates a step, of a minibatch each, and draws random numbers in each."""
ADAPTER = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, options in ALGORITHMS.items():
        asyncio.run(make_run(folder / name, **options))
    return {name: folder / name for name in ALGORITHMS}


@pytest.fixture
def run(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A run that a test may change."""
    return Path(shutil.copytree(runs["grpo"], tmp_path / "run"))


@pytest.fixture(autouse=True)
def bitsandbytes_stays() -> Iterator[None]:
    """A trainer that does without bitsandbytes says so to its whole process, which here has other tests."""
    yield
    if sys.modules.get("bitsandbytes", run) is None:
        del sys.modules["bitsandbytes"]


def replay(data_dir: Path, step: int, *options: str) -> Result:
    return CliRunner().invoke(app, ["replay", KEY, str(step), "--data-dir", str(data_dir), *options])


def refusal(data_dir: Path, step: int, *options: str) -> str:
    """What a refused replay says; the run is as it was."""
    before = everything(data_dir)
    done = replay(data_dir, step, *options)
    assert done.exit_code == 2, done.output
    assert everything(data_dir) == before
    return done.output


def model_folder(data_dir: Path) -> Path:
    return data_dir / "games" / "models" / "player"


def checkpoint(data_dir: Path, step: int) -> Path:
    return model_folder(data_dir) / "checkpoints" / f"{step:04d}"


def record(data_dir: Path, step: int) -> Path:
    return model_folder(data_dir) / "steps" / f"{step:04d}"


def everything(data_dir: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in data_dir.rglob("*")
        if path.is_file()
    }


def change_jobs(data_dir: Path, query: str, *values: object) -> None:
    with closing(sqlite3.connect(data_dir / "server" / "jobs.sqlite")) as jobs:
        assert jobs.execute(query, values).rowcount
        jobs.commit()


def job_of(data_dir: Path, step: int) -> str:
    return str(json.loads((checkpoint(data_dir, step) / "job.json").read_text())["job_id"])


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_step_is_bit_equal_and_the_run_untouched(runs: dict[str, Path], name: str) -> None:
    before = everything(runs[name])
    for step in range(1, STEPS + 1):
        done = replay(runs[name], step)
        assert done.exit_code == 0, done.output
        tensors = len(load_file(checkpoint(runs[name], step) / ADAPTER))
        tensors += len(load_file(checkpoint(runs[name], step) / "optimizer.safetensors"))
        if name == "ppo_critic":
            tensors += len(load_file(checkpoint(runs[name], step) / "critic.safetensors"))
        assert done.output.strip() == f"step {step} of {KEY}: bit-equal, {tensors} tensors"
    assert everything(runs[name]) == before
    adapter = json.loads((checkpoint(runs[name], 1) / "adapter_config.json").read_text())
    assert adapter["lora_dropout"] == ALGORITHMS[name].get("dropout", 0.0)


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        (("--without", "0.3"), 0.01, 2.0),
        (("--algorithm", "gspo"), 0.01, 5.0),
        (("--algorithm", '{"updates": {"epochs": 2}}'), 0.01, 5.0),
        (("--row-tokens", "16"), 1e-9, 1e-3),
        (("--dtype", "float64"), 1e-9, 1e-3),
    ],
)
def test_a_change_is_told_with_its_effect(
    runs: dict[str, Path], options: tuple[str, str], least: float, most: float
) -> None:
    done = replay(runs["grpo"], 2, *options, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    name = options[0].removeprefix("--").replace("-", "_")
    assert list(found["changed"]) == [name]
    assert least <= found["update_error"] <= most
    told = "epochs" not in options[1]  # the first update of two epochs is the one of the step
    assert (least <= found["gradient_error"] <= most) if told else found["gradient_error"] == 0.0
    assert not found["bit_equal"] and found["differing_tensors"] and found["first"]["file"] == ADAPTER
    if name == "row_tokens":
        micro = found["metrics"]["data/micro_batches"]
        assert micro["replayed"] > micro["recorded"]
    if name == "without":
        entries = found["metrics"]["data/entries"]
        assert entries["replayed"] < entries["recorded"]


def test_the_gradient_is_compared_with_the_step_as_it_was(runs: dict[str, Path]) -> None:
    """Its direction is computed by plain rows, with the advantages of the rewards that are left."""
    done = replay(runs["grpo"], 2, "--without", "0.3", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    lines = (record(runs["grpo"], 2) / "rollouts.jsonl").read_text().splitlines()
    records = [one for one in map(json.loads, lines) if one["fate"] == "trained"]
    gradients = rollout_gradients(
        checkpoint(runs["grpo"], 1), runs["grpo"] / "server" / "ledger.sqlite", records
    )
    left = {(0, place): advantage for place, advantage in enumerate((-1.0, 0.0, 1.0, 0.0))}  # 0, 0.25, 0.5
    was, now = np.zeros(()), np.zeros(())
    for one in records:
        gradient = gradients[one["rollout"]]
        advantage = left.get((one["group"], one["place"]), one["advantage"])
        was, now = was + gradient, now + gradient * (advantage / one["advantage"])
    norms = found["metrics"]["loss/grad_norm"]
    was *= norms["recorded"] / np.linalg.norm(was)
    now *= norms["replayed"] / np.linalg.norm(now)
    error = np.linalg.norm(now - was) / np.linalg.norm(was)
    assert found["gradient_error"] == pytest.approx(error, rel=1e-3) and error > 0.05
    assert (
        f"relative error of the gradient {error:.2g}"[:-1]
        in replay(runs["grpo"], 2, "--without", "0.3").output
    )
    assert json.loads(replay(runs["grpo"], 2, "--json").output)["gradient_error"] is None


def test_a_step_that_differs_unchanged_is_a_note_beside_the_change(run: Path) -> None:
    """A weight of the recorded checkpoint is another one than the step makes."""
    file = checkpoint(run, 2) / ADAPTER
    weights = load_file(file)
    weights[sorted(weights)[1]][0, 0] += 0.5
    save_file(weights, file)
    manifest = json.loads((file.parent / MANIFEST_FILE).read_text())
    manifest["files"][ADAPTER] = manifest_entry(file).model_dump()
    change_json(file.parent / MANIFEST_FILE, **manifest)
    done = replay(run, 2, "--dtype", "float64")
    assert done.exit_code == 0 and "unchanged, the step is not bit-equal here either" in done.output


def test_a_change_of_what_cannot_be_done_here_unchanged_has_no_gradient_error(run: Path) -> None:
    computed = record(run, 2) / "computed.json"
    trainer = json.loads(computed.read_text())["trainer"]
    change_json(computed, trainer={**trainer, "device": "cuda:77"})
    done = replay(run, 2, "--device", "cpu", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["changed"] == {"device": "cpu"} and found["gradient_error"] is None
    assert "gradient is not compared" in found["notes"][0] and "no device 'cuda:77'" in found["notes"][0]
    assert "no device 'cuda:77'" in refusal(run, 2)


def test_a_rollout_is_found_by_its_name(runs: dict[str, Path]) -> None:
    lines = (record(runs["grpo"], 2) / "rollouts.jsonl").read_text().splitlines()
    rollout = json.loads(lines[3])["rollout"]
    by_name, by_place = (
        json.loads(replay(runs["grpo"], 2, "--without", asked, "--json").output)
        for asked in (rollout[:8], "0.3")
    )
    assert by_name["update_error"] == by_place["update_error"] > 0
    told = refusal(runs["grpo"], 2, "--without", "9.9")
    assert "names 0 rollouts" in told and f"0.3 = {rollout}" in told
    assert "Unknown algorithm 'nope'" in refusal(runs["grpo"], 2, "--algorithm", "nope")
    assert "is no JSON" in refusal(runs["grpo"], 2, "--algorithm", "{grpo")


def test_another_checkpoint_than_the_recorded_one_is_told(run: Path) -> None:
    file = checkpoint(run, 2) / ADAPTER
    weights = load_file(file)
    name = sorted(weights)[1]
    weights[name][0, 0] += 0.5
    expected = 0.5 / float(weights[name].double().norm())
    save_file(weights, file)
    manifest = json.loads((file.parent / MANIFEST_FILE).read_text())
    manifest["files"][ADAPTER] = manifest_entry(file).model_dump()
    change_json(file.parent / MANIFEST_FILE, **manifest)
    done = replay(run, 2, "--json")
    found = json.loads(done.output)
    assert done.exit_code == 1 and found["differing_tensors"] == 1
    assert found["first"]["tensor"] == name and found["first"]["error"] == pytest.approx(expected, rel=1e-3)
    assert name in replay(run, 2).output


def test_a_step_without_its_settings_is_told_so(runs: dict[str, Path], tmp_path: Path) -> None:
    """The server had a token budget; without its record the batch is cut otherwise."""
    run = Path(shutil.copytree(runs["ppo_critic"], tmp_path / "run"))
    (record(run, 2) / "computed.json").unlink()
    done = replay(run, 2)
    assert done.exit_code == 1 and "has no computed.json" in done.output
    assert "data/micro_batches" in done.output


def test_a_request_that_the_table_cut_is_read_from_the_step(run: Path) -> None:
    for step in (1, 2):
        cut = "UPDATE jobs SET request = json_remove(request, '$.groups', '$.discarded') WHERE job_id = ?"
        change_jobs(run, cut, job_of(run, step))
    assert not (record(run, 1) / "request.json.gz").exists()
    told = refusal(run, 1)
    assert job_of(run, 1) in told and "--keep-replay" in told
    assert "bit-equal" in replay(run, 2).output
    change_jobs(run, "DELETE FROM jobs WHERE job_id = ?", job_of(run, 1))
    assert f"has no job {job_of(run, 1)}" in refusal(run, 1)


def test_without_a_step_it_says_what_is_kept_and_its_bytes(run: Path) -> None:
    told = CliRunner().invoke(app, ["replay", KEY, "--data-dir", str(run), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    sizes = {
        name: {int(file.parent.name): file.stat().st_size for file in run.rglob(name)}
        for name in ("computed.json", "request.json.gz")
    }
    assert found["computed"] == sum(sizes["computed.json"].values()) > 0
    assert found["request"] == sum(sizes["request.json.gz"].values()) > 0
    by_step = {one["step"]: one for one in found["steps"]}
    assert {step: one["request"] for step, one in by_step.items() if one["request"]} == {
        step: size for step, size in sizes["request.json.gz"].items() if step in by_step
    }
    assert [step for step, one in by_step.items() if one["refusal"] is None] == [1, 2, 3, BY_EXAMPLES]
    assert "trained nothing" in by_step[WITHOUT_SIGNAL]["refusal"]

    shutil.rmtree(checkpoint(run, 1))
    before = everything(run)
    text = CliRunner().invoke(app, ["replay", KEY, "--data-dir", str(run)]).output
    assert everything(run) == before
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "step 2 of games/player began with is not there" in lines["2"] and lines["3"].endswith("yes")
    assert lines["all"].split() == ["all", f"{found['computed']:,}", f"{found['request']:,}"]
    assert "1 more" in text and "checkpoints are gone" in text

    lost = CliRunner().invoke(app, ["replay", KEY, "--data-dir", str(run), "--row-tokens", "8"])
    assert lost.exit_code == 2 and "name the step" in lost.output


def test_a_job_that_is_going_on_is_waited_for(run: Path) -> None:
    """The job that a killed server left is going on nowhere."""
    change_jobs(run, "UPDATE jobs SET state = 'running' WHERE job_id = ?", job_of(run, 3))
    lock = DataFolderLock(run / "server")
    try:
        assert f"job {job_of(run, 3)} of {KEY} is going on" in refusal(run, 2)
    finally:
        lock.release()
    assert "bit-equal" in replay(run, 2).output


def test_a_ledger_that_is_in_use_is_read(run: Path) -> None:
    with closing(sqlite3.connect(run / "server" / "ledger.sqlite")) as ledger:
        ledger.execute("PRAGMA user_version = 77")  # a change that is in the -wal alone
        ledger.commit()
        assert (run / "server" / "ledger.sqlite-wal").stat().st_size
        assert "bit-equal" in replay(run, 2).output


def test_a_missing_record_is_named(run: Path) -> None:
    assert "model begins with step 0" in refusal(run, 0)
    assert "checkpoint that step 99 of games/player made is not there" in refusal(run, 99)
    assert f"trained nothing: its weights are those of step {BY_EXAMPLES}" in refusal(run, WITHOUT_SIGNAL)
    sample = json.loads((record(run, 3) / "rollouts.jsonl").read_text().splitlines()[0])["samples"][1]
    with closing(sqlite3.connect(run / "server" / "ledger.sqlite")) as ledger:
        ledger.execute("DELETE FROM samples WHERE sample_id = ?", (sample,))
        ledger.commit()
    assert repr(sample) in refusal(run, 3)
    change_json(record(run, 3) / "computed.json", versions={"agent-reinforcement-trainer": "0.0.1"})
    assert "ART 0.0.1 made step 3" in refusal(run, 3)
    weights = checkpoint(run, 1) / ADAPTER
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    told = refusal(run, 2)
    assert ADAPTER in told and "was changed" in told
    shutil.rmtree(checkpoint(run, 1))
    assert "step 2 of games/player began with is not there" in refusal(run, 2)
    (checkpoint(run, 3) / "job.json").unlink()
    assert "has no job.json" in refusal(run, 3)
    unknown = CliRunner().invoke(app, ["replay", "games/x", "1", "--data-dir", str(run)])
    assert unknown.exit_code == 2 and "no such model" in unknown.output


@pytest.mark.parametrize("place", [place for place in PLACES if place != "before-commit"])  # with ranks
def test_a_step_that_was_killed_and_started_again_is_bit_equal(runs: dict[str, Path], place: str) -> None:
    """A process of its own is killed by SIGKILL; gspo has moved the weights when half of the tokens are
    forwarded.
    """
    before = everything(runs["gspo"])
    done = replay(runs["gspo"], 2, "--kill-at", place, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["bit_equal"] and found["changed"] == {} and found["killed"]["at"] == place
    left = found["killed"]["left"]
    if place == "during-save":
        assert re.fullmatch(r"\.\.0002\.saving\.\w+\.partial", *left)
    else:
        assert left == (["0002"] if place == "before-promote" else [])
    assert everything(runs["gspo"]) == before


def test_two_ranks_do_the_step_to_rounding(runs: dict[str, Path]) -> None:
    done = replay(runs["grpo"], 2, "--ranks", "2", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["changed"] == {"ranks": 2} and found["differing_tensors"]
    assert 0 < found["update_error"] < 1e-3 and 0 < found["gradient_error"] < 1e-3
    micro = found["metrics"]["data/micro_batches"]
    assert micro["replayed"] > micro["recorded"]


def test_a_device_that_is_not_here_is_refused_with_those_that_are(runs: dict[str, Path]) -> None:
    assert "no device 'cuda:77'; its devices: cpu" in refusal(runs["grpo"], 2, "--device", "cuda:77")
    assert "forwarded" in (done := replay(runs["grpo"], 2, "--device", "cpu", "--progress")).output
    assert done.exit_code == 0 and "bit-equal" in done.output
    if not torch.cuda.is_available():
        refused = refusal(runs["grpo"], 2, "--device", "cuda")
        assert "no device 'cuda'; its devices: cpu. Give one by --device" in refused
    assert "no device 'gpu'" in refusal(runs["grpo"], 2, "--device", "gpu")
    assert json.loads((record(runs["grpo"], 2) / "computed.json").read_text())["trainer"]["device"] in (
        "cpu",
        "auto",  # nobody had asked the trainer for its health yet
    )


@pytest.mark.parametrize("options", [("--kill-at", "during-save"), ("--ranks", "2")])
def test_shares_are_those_of_one_process(runs: dict[str, Path], options: tuple[str, str]) -> None:
    assert "--shares are measured by one process" in refusal(runs["grpo"], 2, "--shares", *options)


def test_shares_are_those_of_plain_rows_and_add_up_to_one(runs: dict[str, Path]) -> None:
    done = replay(runs["grpo"], 2, "--shares", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["bit_equal"], "to measure changes nothing of the step"
    shares = {one["rollout"]: one["gradient"] for one in found["shares"]}
    assert sum(one["share"] for one in shares.values()) == pytest.approx(1.0, abs=1e-5)
    lines = (record(runs["grpo"], 2) / "rollouts.jsonl").read_text().splitlines()
    records = [one for one in map(json.loads, lines) if one["fate"] == "trained"]
    gradients = rollout_gradients(
        checkpoint(runs["grpo"], 1), runs["grpo"] / "server" / "ledger.sqlite", records
    )
    whole = sum(gradients.values())
    assert shares.keys() == gradients.keys() and len(shares) > 4
    for name, one in gradients.items():
        share, norm = one @ whole / (whole @ whole), np.linalg.norm(one)
        assert shares[name]["share"] == pytest.approx(share, rel=1e-3, abs=1e-4)
        cosine = one @ whole / norm / np.linalg.norm(whole)
        assert shares[name]["cosine"] == pytest.approx(cosine, rel=1e-3, abs=1e-4)
    told = replay(runs["grpo"], 2, "--shares").output
    assert "add up to 1.0000" in told and max(shares, key=lambda name: shares[name]["share"])[:12] in told


def test_a_lost_table_is_named(run: Path) -> None:
    (run / "server" / "ledger.sqlite").unlink()
    assert "ledger.sqlite: the samples are missing" in refusal(run, 3)
    (run / "server" / "jobs.sqlite").unlink()
    assert f"the request of job {job_of(run, 1)} is missing" in refusal(run, 1)
    (record(run, 3) / "request.json.gz").write_bytes(b"{}")
    assert "request.json.gz cannot be read" in refusal(run, 3)
