"""The folder of a run of AutoRL: what was prepared, what has been done, what came of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from art.autorl.inputs import Inputs
from art.trajectories import Trajectory

VERSION = 1
RUN, INPUTS, STEPS = "run.json", "inputs.json", "steps.jsonl"
SYSTEM_PROMPT, RUBRIC = "system_prompt.txt", "rubric.txt"
PREPARED = (INPUTS, SYSTEM_PROMPT, RUBRIC)
REPORT, REPORT_JSON = "report.md", "report.json"


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One line of `steps.jsonl`."""

    step: int
    reward: float | None
    """Mean over the attempts that the judge scored; None: none was."""
    rollouts: int
    failed: int
    unscored: int
    trained: int
    """Rollouts with a gradient; the rest had a zero advantage, no score, or failed."""
    answer_chars: float | None
    """Mean length of the answers; None: there were none."""
    learning_rate: float
    seconds_rollouts: float
    """With the judge."""
    seconds_training: float
    judge: dict[str, float]
    """Figures of the judge's checks, means over the groups; empty without checks."""


@dataclass(frozen=True)
class AutoRLFolder:
    """Texts may be edited before the training begins; `digests` says which ones it began with."""

    path: Path

    def run(self) -> dict[str, Any] | None:
        """What the run was asked to do; None for a new one."""
        run: dict[str, Any] | None = self._json(RUN)
        return run

    def save_run(self, run: dict[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._save_json(RUN, {"version": VERSION, **run})

    def inputs(self) -> Inputs | None:
        """The inputs, once there are any."""
        data = self._json(INPUTS)
        return None if data is None else Inputs.from_dict(data)

    def save_inputs(self, inputs: Inputs) -> None:
        self._save_json(INPUTS, inputs.to_dict())

    def text(self, name: str) -> str | None:
        """The system prompt or the rubric, once it is there."""
        path = self.path / name
        return path.read_text().strip() if path.is_file() else None

    def save_text(self, name: str, text: str) -> None:
        self._save(name, text + "\n")

    def digests(self) -> dict[str, str]:
        """By file: the first 12 digits of the sha256 of what was prepared."""
        return {name: hashlib.sha256((self.path / name).read_bytes()).hexdigest()[:12] for name in PREPARED}

    def steps(self) -> list[StepRow]:
        """The steps so far, in their order."""
        path = self.path / STEPS
        lines = path.read_text().splitlines() if path.is_file() else []
        return [StepRow(**json.loads(line)) for line in lines]

    def add_step(self, row: StepRow) -> None:
        """A step that is there already is written over: it was repeated."""
        rows = [*(known for known in self.steps() if known.step < row.step), row]
        self._save(STEPS, "".join(json.dumps(asdict(one)) + "\n" for one in rows))

    def evaluation(self, step: int) -> list[list[Trajectory]] | None:
        """The attempts of the adapter of `step`, by test input; None: not yet made."""
        path = self.path / _evaluation(step)
        if not path.is_file():
            return None
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [[Trajectory.model_validate(one) for one in row] for row in rows]

    def save_evaluation(self, step: int, attempts: Sequence[Sequence[Trajectory]]) -> None:
        rows = [[one.model_dump(mode="json") for one in row] for row in attempts]
        self._save(_evaluation(step), "".join(json.dumps(row) + "\n" for row in rows))

    def save_report(self, markdown: str, plain: dict[str, Any]) -> None:
        self._save_json(REPORT_JSON, plain)
        self._save(REPORT, markdown)

    def _json(self, name: str) -> Any:
        path = self.path / name
        return json.loads(path.read_text()) if path.is_file() else None

    def _save_json(self, name: str, data: Any) -> None:
        self._save(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def _save(self, name: str, text: str) -> None:
        """So that a reader sees the old file or the new one, never a part."""
        unfinished = self.path / f".{name}.unfinished"
        unfinished.write_text(text)
        os.replace(unfinished, self.path / name)


def _evaluation(step: int) -> str:
    return f"evaluation-{step:04d}.jsonl"
