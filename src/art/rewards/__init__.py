"""Rewards: from judges (RULER and its siblings), from verifiers and functions, and sums of them.

Rewards of extensions, such as `Rubric` and `JudgeChecks`, are names of this module, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art.extensions import REWARD, extension_points, load_extension
from art.rewards.function_reward import FunctionReward, as_reward
from art.rewards.judge_view import Scorer, View
from art.rewards.judged import JudgedReward
from art.rewards.reward import GroupScores, Reward, Score, Weighted

# The functions must win over the modules of the same names, whichever is imported first.
from art.rewards.ruler import Ruler, ruler, ruler_score_group

if TYPE_CHECKING:
    from art.rewards.checks import Alarm as Alarm
    from art.rewards.checks import CalibrationGroup as CalibrationGroup
    from art.rewards.checks import JudgeChecks as JudgeChecks
    from art.rewards.checks import calibrate as calibrate
    from art.rewards.rubric import Criterion as Criterion
    from art.rewards.rubric import Rubric as Rubric


def __getattr__(name: str) -> Any:
    if name in extension_points(REWARD):
        return load_extension(REWARD, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "FunctionReward",
    "GroupScores",
    "JudgedReward",
    "Reward",
    "Ruler",
    "Score",
    "Scorer",
    "View",
    "Weighted",
    "as_reward",
    "ruler",
    "ruler_score_group",
]
