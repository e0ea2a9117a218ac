# Written by tests/compat/make_stubs.py of art.compat.import_paths.
from art.pipeline_trainer.rollout import EvalFn as EvalFn
from art.pipeline_trainer.rollout import RolloutFn as RolloutFn
from art.pipeline_trainer.rollout import ScenarioT as ScenarioT
from art.pipeline_trainer.rollout import SingleRolloutFn as SingleRolloutFn

__all__ = ["EvalFn", "RolloutFn", "ScenarioT", "SingleRolloutFn"]

