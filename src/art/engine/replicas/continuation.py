"""A request that goes on with another engine after its own has died."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

from art.engine.protocol import Delta, GenerateRequest
from art.errors import WorkerDiedError
from art.wire.samples import candidates_without_first


class Continuation:
    """The ids of a completion that were sent, and its continuation on another engine.

    No id sent        the request is made again.
    Ids were sent     they become part of the prompt, and fewer are asked for: the distribution is the same.
    It has a seed, or is greedy, or is bound to its own beginning (stop strings, a constraint, penalties,
    min_tokens)       it is sampled again from its beginning, and what was sent already is checked and left
                      out: a seed's ids depend on their place, and a stop string may begin before the seam.

    A stream that is bound to its beginning gets a seed if it has none, so that it can be sampled again: a
    seed changes no distribution.
    """

    def __init__(self, request: GenerateRequest) -> None:
        sampling = request.sampling
        bound = bool(sampling.stop or sampling.min_tokens or sampling.constraint or sampling.penalised)
        if request.stream and bound and sampling.seed is None and sampling.temperature > 0:
            request = replace(request, sampling=replace(sampling, seed=secrets.randbits(63)))
        self._request = request
        self._again = bound or request.sampling.seed is not None or sampling.temperature == 0
        self._delivered: list[int] = []
        self._ahead = 0
        """Ids of `_delivered` that the present engine has yet to sample again."""
        self.broken = False
        """Whether no engine can go on with it."""

    def request(self) -> GenerateRequest:
        """Returns the request to the first engine, or to the next one."""
        if not self._delivered:
            return self._request
        if self._again:
            self._ahead = len(self._delivered)
            return self._request
        sampling = self._request.sampling
        return replace(
            self._request,
            prompt_ids=[*self._request.prompt_ids, *self._delivered],
            sampling=replace(sampling, max_tokens=sampling.max_tokens - len(self._delivered)),
        )

    def next_delta(self, delta: Delta) -> Delta | None:
        """Returns the new part of an engine's delta; None if there is none.

        Raises WorkerDiedError when the engine samples other ids than the one before it.
        """
        if not self._ahead:
            if delta.finish_reason is None:
                self._delivered.extend(delta.token_ids)
            return delta
        known, ids = self._delivered[-self._ahead :], delta.token_ids
        if not _is_prefix(known, ids) or (delta.finish_reason is not None and len(ids) < len(known)):
            self.broken = True
            raise WorkerDiedError(
                f"an engine died when {len(self._delivered)} ids of request {self._request.request_id!r} had "
                f"been sent, and another engine does not sample the same ones: send the request again"
            )
        old = min(len(known), len(ids))
        self._ahead -= old
        if old == len(ids) and delta.finish_reason is None:
            return None
        news = replace(
            delta,
            token_ids=ids[old:],
            logprobs=delta.logprobs[old:],
            top_logprobs=delta.top_logprobs[old:],
            candidates=candidates_without_first(delta.candidates, old),
        )
        if delta.finish_reason is None:
            self._delivered.extend(news.token_ids)
        return news


def _is_prefix(known: Sequence[int], ids: Sequence[int]) -> bool:
    """Returns whether one begins with the other."""
    return all(one == other for one, other in zip(known, ids, strict=False))
