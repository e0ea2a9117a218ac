"""The way to a model that is asked: kept answers, a budget, a pace, retries, and what was done so far.

The pace is how many questions are under way at once: as many as the endpoint likes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from art.errors import (
    ARTError,
    ConfigurationError,
    LlmAnswerError,
    LlmBusyError,
    LlmError,
    LlmRefusedError,
    LlmTimeoutError,
    LlmUnavailableError,
)
from art.process.environment import captures_content
from art.rewards.llm.budget import Budget
from art.rewards.llm.cache import AnswerCache, key_of
from art.rewards.llm.request import Llm, Reply, Request, Usage, json_in, repair_of
from art.tracking.metrics_builder import active_builder
from art.types import JudgeCall, heard_judges

LONGEST_PAUSE_S = 120.0
"""However long `Retry-After` says."""


@dataclass
class Slot:
    """Permission for one attempt."""

    began: float


class Pace:
    """Additive increase, multiplicative decrease (as TCP does): one more for each round of answers, half for
    each round with a 429 or a time-out. After `Retry-After` nothing begins until its time has come.

    Channels of one event loop may share it: they then share one endpoint's limit.
    """

    def __init__(self, *, start: int = 8, limit: int = 64) -> None:
        """start: questions at once in the beginning; limit: at most. Raises ConfigurationError."""
        if not 1 <= start <= limit:
            raise ConfigurationError(f"Pace(start={start!r}, limit={limit!r}): 1 <= start <= limit")
        self.window = float(start)
        self.limit = limit
        self.running = 0
        self._changed = 0.0
        self._resumes = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def slot(self, patience: float = LONGEST_PAUSE_S) -> AsyncIterator[Slot]:
        """Wait for a place. What the block raises, or that it raises nothing, sets the pace.

        patience: the longest pause, in seconds, that is waited for. Raises LlmBusyError for a longer one.
        """
        await self._enter(patience)
        slot = Slot(began=time.monotonic())
        try:
            yield slot
        except LlmBusyError as error:
            self._slower(slot)
            self._pause(error.retry_after)
            raise
        except LlmTimeoutError:
            self._slower(slot)
            raise
        else:
            self.window = min(self.limit, self.window + 1 / self.window)
        finally:
            self.running -= 1
            self._wake()

    async def _enter(self, patience: float = LONGEST_PAUSE_S) -> None:
        try:
            while (pause := self._resumes - time.monotonic()) > 0 or self.running >= int(self.window):
                if pause > patience:
                    raise LlmBusyError(
                        f"the endpoint asked for a pause; {pause:.0f} s of it are left", retry_after=pause
                    )
                await (asyncio.sleep(pause) if pause > 0 else self._turn())
        except (asyncio.CancelledError, LlmBusyError):
            self._wake()  # who was woken, and then goes without a slot, lets the next one in
            raise
        self.running += 1

    async def _turn(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _slower(self, slot: Slot) -> None:
        # Of many that began before the last decrease, each would halve the window again.
        if slot.began >= self._changed:
            self.window = max(1.0, self.window / 2)
            self._changed = time.monotonic()

    def _pause(self, seconds: float | None) -> None:
        if seconds is not None:
            self._resumes = max(self._resumes, time.monotonic() + min(seconds, LONGEST_PAUSE_S))

    def _wake(self) -> None:
        free = int(self.window) - self.running
        while self._waiting and free > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1


@dataclass
class ChannelTotals:
    """Counts since the channel was made. usd: of the answers whose price is known."""

    calls: int = 0
    """Attempts at the model."""
    cached: int = 0
    """Questions whose answer was kept, or came with an equal question under way."""
    retries: int = 0
    failures: int = 0
    """Questions that got no answer."""
    repairs: int = 0
    """Answers that were asked for again because of their form."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0

    def add(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.usd += usage.usd or 0.0


T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

ATTEMPTS = 4
LONGEST_WAIT_S = 30.0


class Channel:
    """The channel for all requests to a judge or generator.

    cache -> budget -> pace -> model; equal questions under way share one call.

        channel = Channel(resolve_llm("openai/o3"), budget=Budget(usd=5.0), source="judge/ruler")
        reply = await channel.ask(Request(messages=({"role": "user", "content": "Hello"},)))
    """

    def __init__(
        self,
        llm: Llm,
        *,
        cache: AnswerCache | None = None,
        budget: Budget | None = None,
        pace: Pace | None = None,
        attempts: int | None = None,
        deadline: float = 120.0,
        first_wait: float = 0.5,
        source: str | None = None,
    ) -> None:
        """attempts: at one question; None: the model's own `num_retries`, else 4. deadline: seconds of each.

        first_wait: seconds before the second attempt; twice as long before each further one, at most 30.

        source: costs become `costs/<context>/<source>` of the active MetricsBuilder; None: not logged.
        Raises ConfigurationError, also for a budget in dollars where the model's price is unknown.
        """
        chosen = attempts if attempts is not None else (getattr(llm, "attempts", None) or ATTEMPTS)
        if chosen < 1 or not deadline > 0:
            raise ConfigurationError(f"Channel(attempts={chosen!r}, deadline={deadline!r}): both above 0")
        self.llm, self.cache, self.budget, self.pace = llm, cache, budget, pace or Pace()
        self.attempts, self.deadline, self.source = chosen, deadline, source
        self._first_wait = first_wait
        self.totals = ChannelTotals()
        self._asking: dict[str, tuple[asyncio.Task[Reply], list[None]]] = {}
        if budget is not None:
            budget.accepts(getattr(llm, "pricing", None), llm.name)

    async def ask(self, request: Request) -> Reply:
        """An answer as it came. Raises LlmError: of the last attempt, or BudgetExceededError."""
        heard, started_at = heard_judges(), time.time()
        cached_reply = self._cached_reply(request)
        key = key_of(self._identity() or self.llm.name, request)
        cached = cached_reply is not None or key in self._asking
        self.totals.cached += cached
        try:
            reply = cached_reply if cached_reply is not None else await self._ask_once(key, request)
        except BaseException as error:
            if heard is not None:
                heard.append(self._judge_call(started_at, cached, error=type(error).__name__))
            raise
        if heard is not None:
            heard.append(self._judge_call(started_at, cached, request, reply))
        return reply

    def _judge_call(
        self,
        started_at: float,
        cached: bool,
        request: Request | None = None,
        reply: Reply | None = None,
        error: str | None = None,
    ) -> JudgeCall:
        usage = reply.usage if reply is not None else Usage()
        with_content = captures_content()
        return JudgeCall(
            source=self.source or "judge",
            model=self.llm.name,
            started_at=started_at,
            ended_at=max(started_at, time.time()),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            usd=usage.usd,
            cached=cached,
            finish_reason=reply.finish_reason if reply is not None else None,
            error=error,
            messages=request.messages if request is not None and with_content else (),
            text=reply.text if reply is not None and with_content else None,
        )

    async def ask_json(self, request: Request, parse: Callable[[Any], T], *, repairs: int = 1) -> T:
        """Returns the result of `parse` on the JSON of the answer.

        parse: raises ValueError (pydantic's errors are), TypeError or LookupError for an answer that is of no
        use; the model is then told and asked again, `repairs` times, as it is once more when it declined.
        Raises LlmAnswerError after that, LlmRefusedError where it declines for good.
        """
        asked: list[Request] = []
        for repair in range(repairs + 1):
            asked.append(request)
            try:
                reply = await self.ask(request)
            except LlmRefusedError:
                if repair == repairs:
                    raise
                continue
            try:
                return parse(json_in(reply.text))
            except (ValueError, TypeError, LookupError) as error:
                if repair == repairs:
                    self._forget(asked)
                    raise LlmAnswerError(
                        f"{self.llm.name!r} was asked {repairs + 1} times and gave no answer of the right "
                        f"form: {error}"
                    ) from error
                self.totals.repairs += 1
                request = repair_of(request, reply, error)
        raise LlmAnswerError(f"ask_json(repairs={repairs!r}): 0 or more")

    def _identity(self) -> str | None:
        """Returns the model's identity for the cache; None: nothing is cached."""
        identity: str | None = getattr(self.llm, "identity", self.llm.name)
        return identity

    def _cached_reply(self, request: Request) -> Reply | None:
        identity = self._identity()
        return None if self.cache is None or identity is None else self.cache.get(identity, request)

    def _cache_reply(self, request: Request, reply: Reply) -> None:
        identity = self._identity()
        if self.cache is not None and identity is not None:
            self.cache.put(identity, request, reply)

    def _forget(self, requests: list[Request]) -> None:
        identity = self._identity()
        if self.cache is not None and identity is not None:
            for request in requests:
                self.cache.forget(identity, request)

    async def _ask_once(self, key: str, request: Request) -> Reply:
        """One call for equal questions; it ends early only when all that wait for it are cancelled."""
        task, waiters = self._asking.get(key) or (None, [])
        if task is None:
            task = asyncio.create_task(self._ask_now(request))
            self._asking[key] = (task, waiters)
            task.add_done_callback(lambda ended: self._ended(key, ended))
        waiters.append(None)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if len(waiters) == 1:
                self._ended(key, task)  # who asks now would be cancelled with it
                task.cancel()
            raise
        finally:
            waiters.pop()

    def _ended(self, key: str, task: asyncio.Task[Reply]) -> None:
        if key in self._asking and self._asking[key][0] is task:
            del self._asking[key]

    async def _ask_now(self, request: Request) -> Reply:
        asking = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.attempts),
            retry=tenacity.retry_if_exception(self._may_pass),
            wait=self._wait,
            before_sleep=self._count_retry,
            reraise=True,
        )
        try:
            reply: Reply = await asking(self._attempt, request)
        except LlmError:
            self.totals.failures += 1
            raise
        self._cache_reply(request, reply)
        return reply

    def _may_pass(self, error: BaseException) -> bool:
        """Returns whether another attempt may have an answer while whoever asked still waits for it."""
        if isinstance(error, LlmBusyError) and (error.retry_after or 0) > self.deadline:
            return False
        return isinstance(error, LlmUnavailableError)

    def _count_retry(self, state: tenacity.RetryCallState) -> None:
        self.totals.retries += 1
        error = state.outcome and state.outcome.exception()
        _LOGGER.info("%s: attempt %d of %d: %s", self.llm.name, state.attempt_number, self.attempts, error)

    async def _attempt(self, request: Request) -> Reply:
        reserved = None
        if self.budget is not None:
            reserved = await self.budget.reserve(
                request, getattr(self.llm, "pricing", None), limit=getattr(self.llm, "max_tokens", None)
            )
        usage, asked = None, False
        try:
            async with self.pace.slot(self.deadline):
                asked = True
                self.totals.calls += 1
                reply = await self._in_time(request)
            usage = reply.usage
        except (LlmRefusedError, LlmTimeoutError):
            usage = Usage()  # it may have worked, and be paid; how much nobody says
            raise
        finally:
            if self.budget is not None and reserved is not None:
                self.budget.charge(reserved, usage, asked=asked)
        self.totals.add(reply.usage)
        builder = active_builder()
        if self.source is not None and builder is not None and reply.usage.usd:
            builder.add_cost(f"{builder.cost_context}/{self.source}", reply.usage.usd)
        return reply

    async def _in_time(self, request: Request) -> Reply:
        try:
            async with asyncio.timeout(self.deadline):
                return await self.llm.complete(request)
        except ARTError:
            raise
        except TimeoutError as error:
            raise LlmTimeoutError(f"{self.llm.name!r} did not answer within {self.deadline:g} s") from error
        except Exception as error:  # a judge's trouble is one answer's, never the run's
            raise LlmError(f"{self.llm.name!r} raised {type(error).__name__}: {error}") from error

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds before the next attempt, scattered; `Retry-After` itself is heeded by the pace."""
        error = state.outcome and state.outcome.exception()
        if isinstance(error, LlmBusyError) and error.retry_after is not None:
            return random.uniform(0, self._first_wait)
        longest = min(LONGEST_WAIT_S, self._first_wait * 2 ** (state.attempt_number - 1))
        return random.uniform(longest / 2, longest)
