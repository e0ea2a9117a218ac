"""What a rollout and an evaluation are; the code is in `rollout`."""

from __future__ import annotations

from art.pipeline_trainer.rollout import EvalFn, RolloutFn, ScenarioT, SingleRolloutFn

__all__ = ["EvalFn", "RolloutFn", "ScenarioT", "SingleRolloutFn"]
