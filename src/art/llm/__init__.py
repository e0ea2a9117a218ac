"""Models that ART asks about the model it trains: judges that score, generators that write scenarios."""

from __future__ import annotations

from art.llm.budget import Budget
from art.llm.cache import AnswerCache
from art.llm.channel import Channel
from art.llm.names import base_of, resolve_llm
from art.llm.pace import Pace
from art.llm.request import Llm, Reply, Request, Usage

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
