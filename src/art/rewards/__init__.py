"""Rewards: from judges (RULER and its siblings), from verifiers and functions, and sums of them."""

from __future__ import annotations

from art.rewards.judged import JudgedReward
from art.rewards.reward import GroupScores, Reward, Score

# The functions must win over the modules of the same names, whichever is imported first.
from art.rewards.ruler import ruler, ruler_score_group
from art.rewards.ruler_reward import Ruler
from art.rewards.scorer import Scorer
from art.rewards.view import View

__all__ = [
    "GroupScores",
    "JudgedReward",
    "Reward",
    "Ruler",
    "Score",
    "Scorer",
    "View",
    "ruler",
    "ruler_score_group",
]
