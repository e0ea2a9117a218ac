"""The folder of a run: where it is, and what has been done of it so far."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from art.cli.quickstart.evaluation import Evaluation
from art.cli.quickstart.settings import SETTINGS_FILE
from art.errors import ConfigurationError
from art.process.durable import write_whole

RUNS = Path("runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One line of `steps.jsonl`."""

    step: int
    reward: float
    """Mean over the step's attempts."""
    score: float
    """Mean of the metric that says how good the policy is (`task.SCORE`)."""
    trained: int
    """Rollouts that were trained; the rest had a zero advantage or failed."""
    seconds_rollouts: float
    seconds_training: float


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Settings, steps, one `evaluation-<step>.json` each, the result, the chart, and the server's data."""

    path: Path

    @property
    def data_dir(self) -> Path:
        return self.path / "art"

    @property
    def chart(self) -> Path:
        return self.path / "reward.png"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def steps(self) -> list[StepRow]:
        path = self.path / "steps.jsonl"
        if not path.exists():
            return []
        rows = {row["step"]: StepRow(**row) for row in map(json.loads, path.read_text().splitlines())}
        return [rows[step] for step in sorted(rows)]

    @property
    def done(self) -> int:
        """Steps that were made."""
        return max((row.step for row in self.steps()), default=0)

    def add_step(self, row: StepRow) -> None:
        with (self.path / "steps.jsonl").open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def evaluation(self, step: int) -> tuple[Evaluation, list[dict[str, Any]]] | None:
        """A saved evaluation of an adapter and its attempts, or None."""
        path = self.path / f"evaluation-{step:04d}.json"
        if not path.exists():
            return None
        data = json.loads(path.read_text())
        return Evaluation.from_json(data["evaluation"]), data["attempts"]

    def save_evaluation(self, step: int, evaluation: Evaluation, attempts: list[dict[str, Any]]) -> None:
        text = json.dumps({"evaluation": evaluation.to_json(), "attempts": attempts}, indent=1) + "\n"
        write_whole(self.path / f"evaluation-{step:04d}.json", text, durable=False)


def new_folder(output: Path | None, *, task: str) -> RunFolder:
    """Make the folder of a new run. Raises ConfigurationError where another run lives."""
    path = output or RUNS / f"{task}-{datetime.now():%Y%m%d-%H%M%S}"
    if (path / SETTINGS_FILE).exists():
        raise ConfigurationError(
            f"{str(path)!r} holds a run already: pass --resume to go on with it, or another --output."
        )
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path)


def existing_folder(output: Path | None, *, task: str) -> RunFolder:
    """The folder to resume: `output`, or the newest unfinished run of the task under ./runs."""
    if output is not None:
        return RunFolder(output)
    unfinished = [
        path.parent
        for path in RUNS.glob(f"{task}-*/{SETTINGS_FILE}")
        if not (path.parent / "result.json").exists()
    ]
    if not unfinished:
        raise ConfigurationError(
            f"There is no unfinished run of {task!r} under {str(RUNS)!r}; name one with --output."
        )
    return RunFolder(max(unfinished, key=lambda path: path.stat().st_mtime))
