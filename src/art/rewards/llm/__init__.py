"""Models that ART asks about the model it trains: judges that score, generators that write scenarios."""

from __future__ import annotations

from art.rewards.llm.budget import Budget
from art.rewards.llm.cache import AnswerCache
from art.rewards.llm.channel import Channel, Pace
from art.rewards.llm.names import base_of, resolve_llm
from art.rewards.llm.request import Llm, Reply, Request, Usage

__all__ = [
    "AnswerCache",
    "Budget",
    "Channel",
    "Llm",
    "Pace",
    "Reply",
    "Request",
    "Usage",
    "base_of",
    "resolve_llm",
]
