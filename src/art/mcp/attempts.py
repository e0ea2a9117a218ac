"""An agent's attempts at scenarios with one server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.mcp.rollout import rollout
from art.mcp.scenarios.difficulty import clean_finish
from art.mcp.scenarios.planned import PlannedScenario
from art.mcp.settings import TrainSettings
from art.runs.attempts import Attempts
from art.trajectories import Trajectory

if TYPE_CHECKING:
    from art.model import TrainableModel

FIGURES = ("task_completed", "success", "ran_out_of_turns", "num_turns", "tool_errors")
"""Of a rollout's metrics: those that are compared."""
CLEAN = "clean_finish"


class ScenarioAttempts(Attempts[PlannedScenario]):
    """A task is a scenario; an attempt is a rollout, in a session of its own."""

    def __init__(self, model: TrainableModel[Any, Any], settings: TrainSettings, server: Any) -> None:
        super().__init__(model, settings)
        self._settings, self._server = settings, server

    async def rollout(self, task: PlannedScenario, *, seed: int | None) -> Trajectory:
        chosen = self._settings
        return await rollout(
            self.model,
            task,
            self._server,
            max_turns=chosen.max_turns,
            deadline=chosen.deadline,
            call_timeout=chosen.call_timeout,
            result_limit=chosen.result_limit,
            allow_writes=chosen.allow_writes,
            system_prompt=chosen.system_prompt,
            temperature=chosen.temperature,
            max_tokens=chosen.max_tokens,
            seed=seed,
        )

    def text_of(self, task: PlannedScenario) -> str:
        return task.task

    def metadata_of(self, task: PlannedScenario) -> dict[str, float | int | str | bool | None]:
        return {"difficulty": task.difficulty}

    def figures_of(self, trajectory: Trajectory) -> dict[str, float]:
        return figures_of(trajectory)


def figures_of(trajectory: Trajectory) -> dict[str, float]:
    """The rollout's own figures, and whether it ended cleanly."""
    metrics = trajectory.metrics
    return {
        **{name: float(metrics[name]) for name in FIGURES if name in metrics},
        CLEAN: clean_finish(trajectory),
    }
