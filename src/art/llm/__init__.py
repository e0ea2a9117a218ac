"""Models that ART asks about the model it trains: judges that score, generators that write scenarios."""

from __future__ import annotations

from art.llm.request import Llm, Reply, Request, Usage

__all__ = ["Llm", "Reply", "Request", "Usage"]
