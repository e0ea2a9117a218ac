"""Rewards: from judges (RULER and its siblings), from verifiers and functions, and sums of them."""

from __future__ import annotations

from art.rewards.function_reward import FunctionReward, as_reward
from art.rewards.judge_checks import Alarm, CalibrationGroup, JudgeChecks, calibrate
from art.rewards.judge_view import Scorer, View
from art.rewards.judged import JudgedReward
from art.rewards.pairwise import Pairwise
from art.rewards.reward import GroupScores, Reward, Score, Weighted
from art.rewards.rubric import Criterion, Rubric

# The functions must win over the modules of the same names, whichever is imported first.
from art.rewards.ruler import Ruler, ruler, ruler_score_group

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
