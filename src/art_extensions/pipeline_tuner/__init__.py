"""Tunes the number of rollout workers of a `PipelineTrainer` while it trains: `autotune=`.

config         what a program asks for
measurement    the numbers of training steps, and how certain they are
worker_search  the rule: which number of workers is next, and why. Pure, and without a clock
profiles       chosen numbers in a model's folder, by name
tuner          between a running trainer and the rule
"""

from __future__ import annotations

from art_extensions.pipeline_tuner.config import PipelineAutotuneConfig
from art_extensions.pipeline_tuner.profiles import PipelineTunerProfile, PipelineTunerProfileStore
from art_extensions.pipeline_tuner.worker_search import WorkerSearch

__all__ = ["PipelineAutotuneConfig", "PipelineTunerProfile", "PipelineTunerProfileStore", "WorkerSearch"]
