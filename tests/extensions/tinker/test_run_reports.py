"""The steps of a Tinker program reach the trackers that `art tinker --report` names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tinker_fixtures import run_program, started
from tinker_service import with_sdk
from typer.testing import CliRunner

from art.cli.main import app
from art.errors import ServerUnreachableError
from art.tracking.sinks.sink import ReportedRun, TableRow
from art.wire.gradients import MadeStep
from art.wire.models import ModelSummary
from art_extensions.tinker import run_records
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.run_folders import RunFolders
from art_extensions.tinker.run_records import RunRecords
from art_extensions.tinker.store import Run, TinkerStore
from waiting import until

STEPS = 4


@pytest.mark.slow
class TestTheSdk:
    """With the real SDK, and TensorBoard's own reader."""

    pytestmark = with_sdk

    def test_its_steps_are_curves_of_a_tracker(self, tmp_path: Path) -> None:
        with started(tmp_path / "data", "--report", "tensorboard") as service:
            *steps, run = run_program(service, "taught_answer.py", str(STEPS), "Who?", "no yes no")
            folder = service.data / "tinker" / "models" / run["run"].replace(":train:", "-") / "tensorboard"
            found = EventAccumulator(str(folder))
            found.Reload()
        losses = found.Scalars("loss/train")
        assert [one.step for one in losses] == [*range(1, STEPS + 1)]
        assert [one.value for one in losses] == pytest.approx([one["loss"] for one in steps], rel=1e-6)
        norms = found.Scalars("loss/grad_norm")
        assert [one.value for one in norms] == pytest.approx([one["norm"] for one in steps], rel=1e-6)


class LineSink:
    """A tracker that keeps what it is told."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def open(self, run: ReportedRun, config: Mapping[str, Any]) -> None:
        self.name = run.name
        self.lines.append(f"open {run.project}/{run.name} {config['base_model']} {config['lora']['r']}")

    def config(self, values: Mapping[str, Any]) -> None:
        """It was told when it was opened."""

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if row["loss/grad_norm"] < 0:
            raise RuntimeError("no room")
        self.lines.append(f"{self.name} {step} {row['loss/grad_norm']}")

    def table(self, name: str, step: int, rows: Sequence[TableRow]) -> None:
        raise AssertionError("no table was made")

    def close(self) -> None:
        self.lines.append(f"close {self.name}")


def make_run(name: str = "s-0") -> Run:
    return Run(
        run_id="s:train:0",
        session_id="s",
        owner="o",
        base_model="b",
        name=name,
        lora={"r": 4},
        metadata={},
        created_at=0.0,
        used_at=0.0,
    )


async def test_a_run_is_opened_once_and_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(run_records, "make_sink", lambda name: LineSink(lines))
    store = TinkerStore(tmp_path / "tinker.sqlite")
    folders = RunFolders("operator", lambda: pytest.fail("the operator's folder was asked for"))
    records = RunRecords(store, lambda request: pytest.fail("no batch was made"), folders, ["lines"])

    async def step(number: int, norm: float, name: str = "s-0", folder: Path | None = None) -> None:
        path = (folder or tmp_path / "tinker" / "models" / name) / "checkpoints" / f"{number:04d}"
        if folder is None:
            path.mkdir(parents=True)
        made = MadeStep(step=number, metrics={"loss/grad_norm": norm}, checkpoint_path=str(path))
        await records.record(make_run(name), made, number, [])

    await step(1, 0.5)
    await step(2, 0.25)
    await step(3, -1.0)  # the tracker refuses it
    await step(9, 0.75, folder=Path("/nowhere"))  # a server elsewhere
    await step(4, 1.0, "s-0.7")  # other weights were loaded
    records.forget("s:train:0")
    await until(lambda: len(lines) == 7)
    records.close()
    assert sorted(lines) == sorted(
        [
            *("open tinker/s-0 b 4", "s-0 1 0.5", "s-0 2 0.25", "close s-0"),
            *("open tinker/s-0.7 b 4", "s-0.7 4 1.0", "close s-0.7"),
        ]
    )
    history = (tmp_path / "tinker" / "models" / "s-0" / "history.jsonl").read_text()
    assert history.count("\n") == 3
    store.close()


class Unreachable:
    """The server of an operator that nobody reaches at first."""

    def __init__(self) -> None:
        self.asked: list[ModelSummary] = []

    async def models(self) -> list[ModelSummary]:
        if not self.asked:
            raise ServerUnreachableError("nobody answers")
        return self.asked


async def test_the_folder_of_a_tenant_s_run_is_asked_for_until_it_is_known(tmp_path: Path) -> None:
    server, run = Unreachable(), make_run()
    folders = RunFolders("operator", lambda: cast("ArtServer", server))
    made = MadeStep(step=1, metrics={}, checkpoint_path=None)
    assert await folders.find(run, made) is None
    model = tmp_path / "ann~tinker" / "models" / run.name
    (model / "checkpoints").mkdir(parents=True)
    for project in ("other", "ann~tinker"):
        one = ModelSummary(
            project=project,
            name=run.name,
            base_model="b",
            inference_name=run.name,
            step=1,
            checkpoint_dir=str(tmp_path / project / "models" / run.name / "checkpoints"),
        )
        server.asked.append(one)
    assert await folders.find(run, made) == model
    server.asked.clear()
    assert await folders.find(run, made) == model


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        ("x", "known: mlflow, otel, tensorboard, trackio"),
        ("wandb", "the program reports to W&B itself"),
    ],
)
def test_another_name_is_refused(name: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["tinker", "--report", name, "--data-dir", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.output.split())
