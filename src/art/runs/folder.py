"""The folder of a run: what it was asked to do, what has been done of it, what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.process.durable import write_whole
from art.runs.intent import Intent
from art.runs.step import StepRow
from art.schedule import Leg, legs_to
from art.trajectories import Trajectory

if TYPE_CHECKING:
    from art.runs.settings import RunSettings

RUN, STEPS, INTENT = "run.json", "steps.jsonl", "step-under-way.json"
REPORT, REPORT_JSON = "report.md", "report.json"


@dataclass(frozen=True)
class RunFolder:
    """`run.json`, `steps.jsonl`, `evaluation-<step>.jsonl`, `report.md`, `report.json`.

    `step-under-way.json` is there from before a step is trained until it has its row.
    """

    path: Path

    def open(self, now: Mapping[str, Any], settings: RunSettings) -> bool:
        """Begin a new run, or go on with the one that is here (True).

        now: what the run is of, plain values by name. Raises ConfigurationError where the one that is here is
        of something else or of other settings.
        """
        saved = self.run()
        if saved is not None:
            for key, value in now.items():
                if saved[key] != value:
                    raise ConfigurationError(
                        f"the run in {str(self.path)!r} has {key}={saved[key]!r}, not {value!r}; give this "
                        "one another name"
                    )
            settings.check_resumes(type(settings).of(saved["settings"]))
        self.save_run({**(saved or {}), **now, "settings": settings.to_dict()})
        return saved is not None

    def run(self) -> dict[str, Any] | None:
        """What the run was asked to do; None for a new one."""
        run: dict[str, Any] | None = self.read(RUN)
        return run

    def save_run(self, run: Mapping[str, Any]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.write(RUN, run)

    def schedule(self, total: int, *, done: int) -> tuple[Leg, ...]:
        """The learning rate's, recorded with the run, which has made `done` steps and is to have `total`."""
        run = self.run() or {}
        legs = legs_to(total, run.get("legs", ()), done=done)
        self.save_run({**run, "legs": legs})
        return legs

    def steps(self) -> list[StepRow]:
        """The steps so far, in their order."""
        path = self.path / STEPS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        return [StepRow(**json.loads(line)) for line in lines]

    def add_step(self, row: StepRow) -> None:
        """A step that is there already is written over: it was repeated."""
        rows = [*(known for known in self.steps() if known.step < row.step), row]
        self.write_text(STEPS, "".join(json.dumps(asdict(one)) + "\n" for one in rows))
        (self.path / INTENT).unlink(missing_ok=True)

    def begin_step(self, intent: Intent) -> None:
        """To be called before the step is trained; its row ends it."""
        self.write(INTENT, intent.to_dict())

    def step_under_way(self) -> Intent | None:
        """The step that was begun and has no row."""
        data = self.read(INTENT)
        intent = None if data is None else Intent.from_dict(data)
        return None if intent is None or any(row.step == intent.row.step for row in self.steps()) else intent

    def evaluation(self, step: int) -> list[list[Trajectory]] | None:
        """The attempts of the adapter of `step` at each test task; None: not yet made."""
        path = self.path / evaluation_file(step)
        if not path.is_file():
            return None
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [[Trajectory.model_validate(one) for one in row] for row in rows]

    def save_evaluation(self, step: int, attempts: Sequence[Sequence[Trajectory]]) -> None:
        rows = [[one.model_dump(mode="json") for one in row] for row in attempts]
        self.write_text(evaluation_file(step), "".join(json.dumps(row) + "\n" for row in rows))

    def save_report(self, markdown: str, plain: Mapping[str, Any]) -> None:
        self.write(REPORT_JSON, plain)
        self.write_text(REPORT, markdown)

    def read(self, name: str) -> Any:
        """A JSON file; None where there is none."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write(self, name: str, data: Any) -> None:
        """A JSON file."""
        self.write_text(name, json.dumps(data, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """So that a reader sees the old file or the new one, never a part."""
        write_whole(self.path / name, text, durable=False)


def evaluation_file(step: int) -> str:
    return f"evaluation-{step:04d}.jsonl"
