"""A step between its commit and its row: written down before it is trained, so that no kill loses the row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art.folders import get_model_dir
from art.foreign_backend import as_backend
from art.runs.step import StepRow
from art.tracking.history import read_rows
from art.types import TrainResult

if TYPE_CHECKING:
    from art.model import TrainableModel

TRAINED = "data/sheet/trained_rollouts"


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is known of a step before its gradient, and the job that is to make it."""

    job_id: str
    row: StepRow

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"job_id": self.job_id, "row": asdict(self.row)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Intent:
        """The inverse of `to_dict`."""
        return cls(job_id=data["job_id"], row=StepRow(**data["row"]))

    def options(self, model: TrainableModel[Any, Any]) -> dict[str, Any]:
        """For the backend's `train`: the job's name, where the backend can be asked about it later."""
        return {"job_id": self.job_id, "expected_step": self.row.step - 1} if answers(model) else {}

    async def recover(self, model: TrainableModel[Any, Any]) -> StepRow | None:
        """The row of the step that an earlier process began; None: it was not committed.

        Waits for a job that the server still has. Raises what the backend raises.
        """
        backend: Any = as_backend(model.backend())
        result = await backend.training_result(model, self.job_id) if answers(model) else None
        if result is None and await model.get_step() < self.row.step:
            return None
        logged = logged_at(model, self.row.step)
        metrics = (result.metrics if result is not None else {}) or logged
        if metrics and not logged:
            await model.log(split="train", metrics=metrics, step=self.row.step)
        return replace(trained_row(self.row, TrainResult(self.row.step, dict(metrics))), recovered=True)


def trained_row(row: StepRow, result: TrainResult) -> StepRow:
    """The row with what the trainer says."""
    trained = result.metrics.get(TRAINED)
    return replace(row, step=result.step, trained=None if trained is None else int(trained))


def answers(model: TrainableModel[Any, Any]) -> bool:
    """Whether the backend tells afterwards what came of a job. Programs may bring backends that do not."""
    return hasattr(as_backend(model.backend()), "training_result")


def logged_at(model: TrainableModel[Any, Any], step: int) -> dict[str, float]:
    """The training metrics of a step in the model's own log; empty where the kill came first."""
    rows = read_rows(Path(get_model_dir(model)) / "history.jsonl")
    return next((row for row in rows if row.get("step") == step and TRAINED in row), {})
