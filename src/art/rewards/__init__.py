"""Rewards: from judges (RULER and its siblings), from verifiers and functions, and sums of them."""

from __future__ import annotations

from art.rewards.checks import Alarm, CalibrationGroup, JudgeChecks, calibrate
from art.rewards.function_reward import FunctionReward, as_reward
from art.rewards.judged import JudgedReward
from art.rewards.judging.criterion import Criterion
from art.rewards.judging.scorer import Scorer
from art.rewards.judging.view import View
from art.rewards.pairwise import Pairwise
from art.rewards.reward import GroupScores, Reward, Score
from art.rewards.rubric import Rubric

# The functions must win over the modules of the same names, whichever is imported first.
from art.rewards.ruler import ruler, ruler_score_group
from art.rewards.ruler_reward import Ruler
from art.rewards.weighted import Weighted

__all__ = [
    "Alarm",
    "CalibrationGroup",
    "Criterion",
    "FunctionReward",
    "GroupScores",
    "JudgeChecks",
    "JudgedReward",
    "Pairwise",
    "Reward",
    "Rubric",
    "Ruler",
    "Score",
    "Scorer",
    "View",
    "Weighted",
    "as_reward",
    "calibrate",
    "ruler",
    "ruler_score_group",
]
