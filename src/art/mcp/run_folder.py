"""The folder of a run of MCP-RL: what it was asked to do, and what has been done of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.mcp.checked_scenarios import ScenarioSet
from art.trajectories import Trajectory

RUN, SCENARIOS, STEPS = "run.json", "scenarios.json", "steps.jsonl"
REPORT, REPORT_JSON = "report.md", "report.json"


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One line of `steps.jsonl`."""

    step: int
    reward: float | None
    """Mean over the attempts that the judge scored; None: none was."""
    figures: dict[str, float]
    """Means over the attempts, by name."""
    rollouts: int
    failed: int
    unscored: int
    trained: int
    """Rollouts with a gradient; the rest had a zero advantage, no score, or failed."""
    learning_rate: float
    seconds_rollouts: float
    """With the judge."""
    seconds_training: float


@dataclass(frozen=True)
class RunFolder:
    """`run.json`, `scenarios.json`, `steps.jsonl`, `evaluation-<step>.jsonl`, `report.md`, `report.json`."""

    path: Path

    def run(self) -> dict[str, Any] | None:
        """What the run was asked to do; None for a new one."""
        run: dict[str, Any] | None = self._read(RUN)
        return run

    def save_run(self, run: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._write(RUN, run)

    def scenarios(self) -> ScenarioSet | None:
        """The scenarios, once they were generated."""
        data = self._read(SCENARIOS)
        return None if data is None else ScenarioSet.from_dict(data)

    def save_scenarios(self, scenarios: ScenarioSet) -> None:
        self._write(SCENARIOS, scenarios.to_dict())

    def steps(self) -> list[StepRow]:
        """The steps so far, in their order."""
        path = self.path / STEPS
        lines = path.read_text().splitlines() if path.is_file() else []
        return [StepRow(**json.loads(line)) for line in lines]

    def add_step(self, row: StepRow) -> None:
        """A step that is there already is written over: it was repeated."""
        rows = [*(known for known in self.steps() if known.step < row.step), row]
        self._write_text(STEPS, "".join(json.dumps(asdict(one)) + "\n" for one in rows))

    def evaluation(self, step: int) -> list[list[Trajectory]] | None:
        """The attempts of the adapter of `step` at each test scenario; None: not yet made."""
        path = self.path / evaluation_file(step)
        if not path.is_file():
            return None
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [[Trajectory.model_validate(one) for one in row] for row in rows]

    def save_evaluation(self, step: int, attempts: Sequence[Sequence[Trajectory]]) -> None:
        rows = [[one.model_dump(mode="json") for one in row] for row in attempts]
        self._write_text(evaluation_file(step), "".join(json.dumps(row) + "\n" for row in rows))

    def save_report(self, markdown: str, plain: dict[str, Any]) -> Path:
        """Write both forms; returns the path of the Markdown."""
        self._write(REPORT_JSON, plain)
        self._write_text(REPORT, markdown)
        return self.path / REPORT

    def _read(self, name: str) -> Any:
        path = self.path / name
        return json.loads(path.read_text()) if path.is_file() else None

    def _write(self, name: str, data: Any) -> None:
        self._write_text(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        """So that a reader sees the old file or the new one, never a part."""
        unfinished = self.path / f".{name}.unfinished"
        unfinished.write_text(text)
        os.replace(unfinished, self.path / name)


def evaluation_file(step: int) -> str:
    return f"evaluation-{step:04d}.jsonl"
