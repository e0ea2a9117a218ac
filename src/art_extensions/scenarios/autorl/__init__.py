"""AutoRL: from the description of a task to a trained model, and its single steps.

report = await art.autorl.train("Answer questions about ...", base_model="Qwen/Qwen2.5-1.5B-Instruct")
"""

from __future__ import annotations

from art.runs.comparison import Comparison, Estimate, compare
from art_extensions.scenarios.autorl.autorl_run import AutoRLReport, AutoRLSettings, rollout
from art_extensions.scenarios.autorl.preparation import (
    Inputs,
    generate_inputs,
    write_rubric,
    write_system_prompt,
)
from art_extensions.scenarios.autorl.verbs import prepare, train

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
