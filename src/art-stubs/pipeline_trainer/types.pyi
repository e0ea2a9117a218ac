# Written by tests/promises/compat/make_stubs.py of art.compat.import_paths.
from art_extensions.pipeline.rollout_workers import EvalFn as EvalFn
from art_extensions.pipeline.rollout_workers import RolloutFn as RolloutFn
from art_extensions.pipeline.rollout_workers import ScenarioT as ScenarioT
from art_extensions.pipeline.rollout_workers import SingleRolloutFn as SingleRolloutFn

__all__ = ["EvalFn", "RolloutFn", "ScenarioT", "SingleRolloutFn"]

