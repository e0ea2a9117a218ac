"""Answers of a run's model to inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.autorl.rollout import rollout
from art.autorl.settings import AutoRLSettings
from art.runs.attempts import Attempts
from art.runs.measure import metrics_of
from art.trajectories import Trajectory

if TYPE_CHECKING:
    from art.model import TrainableModel

FIGURES = ("answer_chars", "cut")


class InputAttempts(Attempts[str]):
    """A task is its text; an attempt is one answer."""

    def __init__(self, model: TrainableModel[Any, Any], settings: AutoRLSettings, system_prompt: str) -> None:
        super().__init__(model, settings)
        self._settings, self._system_prompt = settings, system_prompt

    async def rollout(self, task: str, *, seed: int | None) -> Trajectory:
        return await rollout(
            self.model,
            task,
            system_prompt=self._system_prompt,
            max_tokens=self._settings.max_tokens,
            temperature=self._settings.temperature,
            timeout=self._settings.timeout,
            seed=seed,
        )

    def text_of(self, task: str) -> str:
        return task

    def figures_of(self, trajectory: Trajectory) -> dict[str, float]:
        # Beside them a judge puts its own into the metrics.
        found = metrics_of(trajectory)
        return {name: found[name] for name in FIGURES}
