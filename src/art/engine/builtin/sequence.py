"""One request on its way through the engine, and its stop strings: they are found in a growing completion
without decoding it again from its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from art.engine.builtin.sampler import LogitBias, Penalties
from art.engine.constraints import Guide
from art.engine.protocol import Delta, FinishReason, GenerateRequest, TopLogprobs
from art.errors import ARTError, RequestError

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decodes(Protocol):
    def decode(self, token_ids: list[int]) -> str: ...


class StopStrings:
    """The strings of one request and the text decoded so far.

    A token's text can depend on its neighbour and may be a part of a character, so a short tail of ids is
    decoded twice, with and without the new ones, and the difference is the new text (the scheme of vLLM and
    TGI).
    """

    def __init__(self, strings: tuple[str, ...], tokenizer: Decodes) -> None:
        self.strings = strings
        self.tokenizer = tokenizer
        self.keep = max(len(string) for string in strings) - 1
        self.tail = ""
        """The end of the settled text, long enough to begin any stop string."""
        self.context = 0
        self.settled = 0
        self.passed = 0
        """Characters of the text that is not settled which were passed over."""

    def find(self, completion: list[int]) -> str | None:
        """The first stop string that the completion contains now, or None. One that ends in text that was
        passed over is none.
        """
        new = self._new(completion)
        text, old = self.tail + new, len(self.tail) + self.passed
        places = [(text.find(string, max(0, old - len(string) + 1)), string) for string in self.strings]
        found = [place for place in places if place[0] >= 0]
        if found:
            return min(found)[1]
        self._settle_text(completion, new)
        return None

    def pass_over(self, completion: list[int]) -> None:
        """Marks the completion so far as free of stop strings, except for one that may begin at its end."""
        new = self._new(completion)
        self.passed = len(new.rstrip(REPLACEMENT))
        self._settle_text(completion, new)

    def _new(self, completion: list[int]) -> str:
        before = self.tokenizer.decode(completion[self.context : self.settled])
        return self.tokenizer.decode(completion[self.context :])[len(before) :]

    def _settle_text(self, completion: list[int], new: str) -> None:
        if new and not new.endswith(REPLACEMENT):
            self.context, self.settled, self.passed = self.settled, len(completion), 0
            self.tail = (self.tail + new)[-self.keep :] if self.keep else ""


class TokenizerLoader:
    """Loads the model folder's tokenizer when the first stop string asks for it."""

    def __init__(self, base_model: str) -> None:
        self.base_model = base_model
        self._tokenizer: Decodes | None = None

    def tokenizer(self) -> Decodes:
        """Raises: RequestError when the model has no fast tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = _FastTokenizer(self.base_model)
        return self._tokenizer


class _FastTokenizer:
    def __init__(self, base_model: str) -> None:
        from transformers import PreTrainedTokenizerFast

        try:
            self._fast = PreTrainedTokenizerFast.from_pretrained(
                base_model, local_files_only=Path(base_model).is_dir()
            )
        except (OSError, ValueError) as error:
            raise RequestError(
                f"stop strings need a tokenizer, and {base_model!r} has none that loads ({error}); "
                "use stop_token_ids",
                status=400,
                code="unsupported_stop",
            ) from error

    def decode(self, token_ids: list[int]) -> str:
        """Special tokens are written out, so that they can be stop strings too."""
        return str(
            self._fast.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


NOWHERE = -1


@dataclass(slots=True, eq=False)
class Sequence:
    """A request, from its acceptance to its end; `row` is its cache row while it runs."""

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
    bias: LogitBias | None = None
    penalties: Penalties | None = None
    forbidden: frozenset[int] = frozenset()
    """Ids that cannot be sampled now: those that would end it before `min_tokens`."""

    @property
    def owner(self) -> str:
        """The owner in the queue."""
        return self.request.owner

    def ids(self) -> np.ndarray:
        """All ids known so far; more than the prompt if the request was sent back to the queue."""
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
            if self.guide.is_over:
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
