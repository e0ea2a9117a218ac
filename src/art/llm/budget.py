"""A hard limit on what may be asked: in calls, in tokens, in US dollars."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from art.errors import BudgetExceededError, ConfigurationError
from art.llm.request import Request, Usage
from art.tracking.price_tables import MILLION, TokenPricing

BYTES_PER_TOKEN = 3
"""Of UTF-8: on the safe side for English and JSON, and about right where a character is a token."""
ASSUMED_COMPLETION = 512
"""Tokens of an answer that has no limit, until a longer one was seen."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """An amount, spent or set aside."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            calls=self.calls + other.calls, tokens=self.tokens + other.tokens, usd=self.usd + other.usd
        )

    def __sub__(self, other: Spending) -> Spending:
        return Spending(
            calls=self.calls - other.calls, tokens=self.tokens - other.tokens, usd=self.usd - other.usd
        )


class Budget:
    """Set aside before a call, settled after it. Each attempt counts. Channels of one event loop share it.

    An answer without `max_tokens` is assumed as long as the longest so far, so calls under way may end a
    little above the limit in tokens and dollars; the next one is refused.
    """

    def __init__(
        self, *, calls: int | None = None, tokens: int | None = None, usd: float | None = None
    ) -> None:
        """Limits; None: none. Raises ConfigurationError for a limit that is not above 0."""
        self.limits = {"calls": calls, "tokens": tokens, "usd": usd}
        for name, limit in self.limits.items():
            if limit is not None and not limit > 0:
                raise ConfigurationError(f"Budget({name}={limit!r}): a limit above 0, or None for no limit")
        self.spent = Spending()
        self._set_aside = Spending()
        self._longest = ASSUMED_COMPLETION
        self._waiting: deque[asyncio.Future[None]] = deque()

    def accepts(self, pricing: TokenPricing | None, name: str) -> None:
        """Raises ConfigurationError when there is a limit in dollars and the model's price is not known."""
        if self.limits["usd"] is not None and pricing is None:
            raise ConfigurationError(
                f"a budget in US dollars needs the price of {name!r}: give params="
                "{'input_cost_per_token': ..., 'output_cost_per_token': ...}, or a budget in calls or tokens"
            )

    async def reserve(
        self, request: Request, pricing: TokenPricing | None, *, limit: int | None = None
    ) -> Spending:
        """Set aside what the request may cost; waits for calls under way where only they stand in the way.

        limit: of the answer, in tokens, where the model has one of its own.
        Raises BudgetExceededError, and then nothing may be asked.
        """
        while True:
            need = self._estimate(request, pricing, limit or request.max_tokens)
            over = self._over(self.spent + need)
            if over is not None:
                raise BudgetExceededError(
                    f"the budget is spent: {over}={self.limits[over]} and {getattr(self.spent, over)} used, "
                    f"the next question needs about {getattr(need, over)}"
                )
            if self._over(self.spent + self._set_aside + need) is None:
                self._set_aside += need
                return need
            await self._settled()

    def settle(self, reserved: Spending, usage: Usage | None, *, asked: bool = True) -> None:
        """Put what was used in the place of what was set aside; None: there was no answer.

        A usage that tells no tokens, or no price, counts as what was set aside. asked: whether the attempt
        was made at all.
        """
        tokens = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens or reserved.tokens
        usd = 0.0 if usage is None else (reserved.usd if usage.usd is None else usage.usd)
        self._set_aside -= reserved
        self.spent += Spending(calls=reserved.calls if asked else 0, tokens=tokens, usd=usd)
        self._longest = max(self._longest, 0 if usage is None else usage.completion_tokens)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _estimate(self, request: Request, pricing: TokenPricing | None, limit: int | None) -> Spending:
        texts = [*map(str, request.messages), str(request.schema or "")]
        prompt = sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN + 1
        completion = limit or self._longest
        usd = 0.0
        if pricing is not None:
            usd = prompt * (pricing.prompt_per_million or 0) + completion * (
                pricing.completion_per_million or 0
            )
        return Spending(calls=1, tokens=prompt + completion, usd=usd / MILLION)

    def _over(self, amount: Spending) -> str | None:
        for name, limit in self.limits.items():
            if limit is not None and getattr(amount, name) > limit:
                return name
        return None

    async def _settled(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter
