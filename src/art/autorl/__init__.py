"""AutoRL: from the description of a task to a trained model, and its single steps.

report = await art.autorl.train("Answer questions about ...", base_model="Qwen/Qwen2.5-1.5B-Instruct")
"""

from __future__ import annotations

from art.autorl.inputs import Inputs, generate_inputs
from art.autorl.instructions import write_rubric, write_system_prompt
from art.autorl.report import AutoRLReport
from art.autorl.rollout import rollout
from art.autorl.settings import AutoRLSettings
from art.autorl.training import prepare, train
from art.runs.comparison import Comparison, compare
from art.runs.estimate import Estimate

__all__ = [
    "AutoRLReport",
    "AutoRLSettings",
    "Comparison",
    "Estimate",
    "Inputs",
    "compare",
    "generate_inputs",
    "prepare",
    "rollout",
    "train",
    "write_rubric",
    "write_system_prompt",
]
