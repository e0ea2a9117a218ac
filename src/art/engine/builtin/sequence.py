"""One request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from art.constraints.guide import Guide
from art.engine.builtin.shaping import Bias, Penalties
from art.engine.builtin.stops import StopStrings
from art.engine.protocol import Delta, FinishReason, GenerateRequest, TopLogprobs
from art.errors import ARTError, RequestError

NOWHERE = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """Made when a request is accepted; `row` is its cache row while it runs."""

    request: GenerateRequest
    adapter: int
    """Number of the adapter, 0 for the base model."""
    seed: int
    limit: int
    """Completion tokens that are wanted and fit in the context."""
    stops: StopStrings | None
    row: int = NOWHERE
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopLogprobs] = field(default_factory=list)
    """Empty where they were not asked for."""
    candidates: list[bytes] = field(default_factory=list)
    """Of each id; empty where nothing truncates."""
    delivered: int = 0
    stop_ids: frozenset[int] = frozenset()
    guide: Guide | None = None
    """What its constraint allows next."""
    bias: Bias | None = None
    penalties: Penalties | None = None
    forbidden: frozenset[int] = frozenset()
    """Ids that cannot be sampled now: those that would end it before `min_tokens`."""

    @property
    def owner(self) -> str:
        """Whose turn it takes."""
        return self.request.owner

    def ids(self) -> np.ndarray:
        """Everything known so far; more than the prompt when the request was sent back to the queue."""
        return np.fromiter((*self.request.prompt_ids, *self.completion), np.int64)

    def append(
        self, token: int, logprob: float, top: TopLogprobs | None = None, candidates: bytes = b""
    ) -> Delta | None:
        """Take a sampled token; the delta to deliver now, if any. Raises: RequestError (constraint)."""
        self.completion.append(token)
        self.logprobs.append(logprob)
        if top is not None:
            self.tops.append(top)
        if candidates:
            self.candidates.append(candidates)
        if self.penalties is not None:
            self.penalties.count(token)
        if self.forbidden and len(self.completion) >= self.request.sampling.min_tokens:
            self.forbidden = frozenset()
        reason: FinishReason | None = None
        stop_string = self._stop_string()
        if stop_string is not None or token in self.stop_ids:
            reason = "stop"
        elif len(self.completion) >= self.limit:
            reason = "length"
        if reason is None and self.guide is not None:
            self.guide.advance(token)
            if self.guide.over:
                reason = "stop"
        if reason is None and not self.request.stream:
            return None
        first, self.delivered = self.delivered, len(self.completion)
        return Delta(
            token_ids=self.completion[first:],
            logprobs=self.logprobs[first:],
            finish_reason=reason,
            stop_string=stop_string,
            top_logprobs=self.tops[first:],
            candidates=b"".join(self.candidates[first:]),
        )

    def _stop_string(self) -> str | None:
        """The one that ends it now."""
        if self.stops is None:
            return None
        if len(self.completion) <= self.request.sampling.min_tokens:
            self.stops.pass_over(self.completion)
            return None
        return self.stops.find(self.completion)


def appended(
    sequence: Sequence, token: int, logprob: float, top: TopLogprobs | None, candidates: bytes
) -> Delta | ARTError | None:
    """`Sequence.append`, with a constraint that cannot be followed as news like any other."""
    try:
        return sequence.append(token, logprob, top, candidates)
    except RequestError as error:
        return error
