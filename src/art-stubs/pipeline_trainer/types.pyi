# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art.runs.pipeline.rollout_workers import EvalFn as EvalFn
from art.runs.pipeline.rollout_workers import RolloutFn as RolloutFn
from art.runs.pipeline.rollout_workers import ScenarioT as ScenarioT
from art.runs.pipeline.rollout_workers import SingleRolloutFn as SingleRolloutFn

__all__ = ["EvalFn", "RolloutFn", "ScenarioT", "SingleRolloutFn"]

