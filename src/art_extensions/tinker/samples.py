"""Samples: futures in memory. After a restart the client is told that one is gone, and asks for it again.

The SDK that polls for all samples at once has no limit of its own: what waits here has one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from art.errors import ARTError, NotFoundError, OverloadedError
from art_extensions.tinker.art_server import ArtServer
from art_extensions.tinker.ended_samples import EndedSamples, client_of
from art_extensions.tinker.prompt_places import alternatives_of, with_alternatives
from art_extensions.tinker.records import SampleAsked
from art_extensions.tinker.refusals import failure_of, refusal
from art_extensions.tinker.sample_response import AnswerSequence, sample_response
from art_extensions.tinker.saved_weights import model_of
from art_extensions.tinker.store import Sampler, now
from art_extensions.tinker.weights_sources import art_step, is_art_path

_log = logging.getLogger(__name__)

KEPT_S = 600.0
"""How long a result stays that nobody fetched, or that nobody said to have."""
MOST_KEPT = 20_000
"""The results that stay. The client asks again for a sample whose result is gone."""
MOST_OPEN = 4096
"""The requests of an owner that are open at once. The client waits after a refusal, and asks again."""
MOST_TOKENS = 1 << 23
"""The tokens of the prompts of all open requests, some 300 MB."""
AT_ONCE = 90
"""The requests of an owner that the server has at once. Its other connections, of 100, are for training."""
NOT_SERVED = "model_not_found"


@dataclass(kw_only=True, slots=True, eq=False)
class SampleFuture:
    """One request for samples."""

    owner: str
    session_id: str
    sequence_ids: list[str]
    ended_at: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: bytes = b""
    failed: bool = False
    task: asyncio.Task[None] | None = None


class SampleFutures:
    """The requests by their ids, which say sampler and number: the same again is the same request."""

    def __init__(self, server_of: Callable[[str], Awaitable[ArtServer]]) -> None:
        self._server_of = server_of
        self._futures: dict[str, SampleFuture] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[tuple[str, int], EndedSamples] = {}
        self._open: Counter[str] = Counter()
        self._open_tokens = 0
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))
        self.fetched: set[str] = set()

    def check_room(self, owner: str, asked: SampleAsked) -> None:
        """Raises OverloadedError (429) where too much of the owner waits already, for samples or for its
        client to fetch them, or too much of all owners together.
        """
        size, opened = _size(asked), self._open[owner]
        if opened >= MOST_OPEN:
            raise OverloadedError(f"{opened} requests for samples are open, of at most {MOST_OPEN}")
        if opened and self._open_tokens + size > MOST_TOKENS:
            raise OverloadedError(
                f"open requests for samples have {self._open_tokens} prompt tokens, of at most {MOST_TOKENS}"
            )
        client = client_of(f"{asked.sampling_session_id}:{asked.seq_id or 0}")
        if client in self._ended and self._ended[client].unread > MOST_KEPT:
            raise OverloadedError(f"more than {MOST_KEPT} samples ended that were not fetched")

    def submit(self, sampler: Sampler, asked: SampleAsked) -> tuple[str, SampleFuture]:
        """The id, and the future, which is being worked on. Raises OverloadedError."""
        request_id = sample_id(sampler, asked)
        known = self._futures.get(request_id)
        if known is None or known.owner != sampler.owner:
            self.check_room(sampler.owner, asked)
            self._prune()
            known = self._futures[request_id] = SampleFuture(
                owner=sampler.owner,
                session_id=sampler.session_id,
                sequence_ids=[f"{request_id}:{number}" for number in range(asked.num_samples)],
            )
            known.task = asyncio.create_task(self._sample(known, sampler, asked, request_id), name=request_id)
            self._count(sampler.owner, 1, size := _size(asked))
            known.task.add_done_callback(lambda _: self._count(sampler.owner, -1, -size))
        return request_id, known

    def _count(self, owner: str, opened: int, tokens: int) -> None:
        self._open[owner] += opened
        self._open_tokens += tokens
        if not self._open[owner]:
            del self._open[owner]
            self._turns.pop(owner, None)

    def find(self, owner: str, request_id: str) -> SampleFuture | None:
        """The future of an owner; None where there is none, or none any more."""
        found = self._futures.get(request_id)
        return found if found is not None and found.owner == owner else None

    def cancel(self, owner: str, request_id: str) -> None:
        """Stops a request; what is no such request is ignored."""
        found = self.find(owner, request_id)
        if found is not None and found.task is not None:
            found.task.cancel()
            del self._futures[request_id]
            self.fetched.add(request_id)

    async def ended(
        self, sampler_id: str, client: int, cursor: int, seconds: float
    ) -> tuple[list[dict[str, Any]], int]:
        """The ended requests of a client of a sampler since a cursor, for the SDK; and the next cursor."""
        found, newest = await self._ended_of((sampler_id, client)).since(cursor, seconds)
        return [self._completion(one) for one in found], newest

    def _completion(self, request_id: str) -> dict[str, Any]:
        one = self._futures.get(request_id)
        if one is not None and one.failed:
            return {"state": "failed", "request_id": request_id}
        size = {} if one is None else {"response_payload_uncompressed_size": len(one.result)}
        return {"state": "finished", "request_id": request_id, **size}

    def _ended_of(self, client: tuple[str, int]) -> EndedSamples:
        return self._ended.setdefault(client, EndedSamples())

    def forget(self, sampler_id: str, request_ids: Sequence[str]) -> None:
        """Forgets results that their client has."""
        for request_id in request_ids:
            one = self._futures.get(request_id)
            if one is not None and one.done.is_set() and client_of(request_id)[0] == sampler_id:
                del self._futures[request_id]

    def tell_lost(self, request_ids: Sequence[str]) -> None:
        """Tells the clients of requests of an earlier process to fetch them: then they ask anew."""
        for request_id in request_ids:
            self._ended_of(client_of(request_id)).put(request_id)

    def take_fetched(self) -> set[str]:
        """The requests that came to their end since the last call."""
        taken, self.fetched = self.fetched, set()
        return taken

    def end_session(self, session_id: str) -> None:
        """Stops and forgets all requests of a session."""
        for request_id, one in list(self._futures.items()):
            if one.session_id == session_id:
                self.cancel(one.owner, request_id)
        for client in [one for one in self._ended if one[0].startswith(f"{session_id}:")]:
            del self._ended[client]

    async def close(self) -> None:
        """Stops all."""
        tasks = [one.task for one in self._futures.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _prune(self) -> None:
        """Forgets results that are old, or more than are kept: futures lie in the order of their requests."""
        ended = [(key, one) for key, one in self._futures.items() if one.done.is_set()]
        surplus, old = len(ended) - MOST_KEPT, now() - KEPT_S
        for place, (request_id, one) in enumerate(ended):
            if place < surplus or one.ended_at < old:
                del self._futures[request_id]
                ended_ones = self._ended_of(client_of(request_id))
                if not ended_ones.is_polled:  # a client that asks for each request
                    ended_ones.places.pop(request_id, None)

    async def _sample(
        self, future: SampleFuture, sampler: Sampler, asked: SampleAsked, request_id: str
    ) -> None:
        try:
            future.result = answer(asked, await self._generate(sampler, asked))
        except ARTError as error:
            future.result, future.failed = failure_of(error), True
        except Exception as error:  # noqa: BLE001  a defect ends this sample alone
            _log.exception("sampling met a defect")
            future.result, future.failed = failure_of(error), True
        future.ended_at = now()
        future.done.set()
        self._ended_of(client_of(request_id)).put(request_id)

    async def _generate(self, sampler: Sampler, asked: SampleAsked) -> dict[str, Any]:
        """The reply of the server."""
        server, wanted = await self._server_of(sampler.owner), generate_request(sampler.model, asked)
        async with self._turns[sampler.owner]:
            return await self._ask(server, wanted, sampler)

    async def _ask(self, server: ArtServer, wanted: dict[str, Any], sampler: Sampler) -> dict[str, Any]:
        """A server that was started again serves nothing, and is told to."""
        try:
            return await server.generate(wanted)
        except NotFoundError as error:
            if error.code != NOT_SERVED:
                raise
        serving = self._serving.get(sampler.model)
        if serving is None:
            serving = self._serving[sampler.model] = asyncio.create_task(_serve(server, sampler))
            serving.add_done_callback(lambda _: self._serving.pop(sampler.model, None))
        await asyncio.shield(serving)
        return await server.generate(wanted)


def sample_id(sampler: Sampler, asked: SampleAsked) -> str:
    """The id of a request."""
    return f"{sampler.sampler_id}:{asked.seq_id or 0}"


def _size(asked: SampleAsked) -> int:
    """The ids of a prompt that was not checked yet."""
    ids = [one.get("tokens") for one in asked.prompt.chunks]
    return sum(len(one) for one in ids if isinstance(one, list))


async def _serve(server: ArtServer, sampler: Sampler) -> None:
    if sampler.step is None:
        await server.load_base(sampler.base_model)
    elif sampler.path is not None and is_art_path(sampler.path):
        project, name, step = art_step(sampler.path)
        await server.serve(name, step, project)
    else:
        await server.serve(model_of(sampler.model), sampler.step)


def generate_request(model: str, asked: SampleAsked) -> dict[str, Any]:
    """The body of `/inference/v1/generate`. Raises RequestError for what this server does not do."""
    params, length = asked.sampling_params, len(prompt_ids(asked.prompt.chunks))
    last = asked.prompt_logprobs_last_n
    if last is not None and last >= length:
        raise refusal(f"prompt_logprobs_last_n={last}: of {length} tokens, {length - 1} have a logprob")
    wanted: dict[str, Any] = {
        "n": asked.num_samples,
        "temperature": params.temperature,
        "logprobs": asked.topk_sample_logprobs,
    }
    if params.max_tokens is not None:
        wanted["max_tokens"] = params.max_tokens
    if params.seed is not None:
        wanted["seed"] = params.seed
    if params.top_k != -1:
        wanted["top_k"] = params.top_k
    if params.top_p != 1.0:
        wanted["top_p"] = params.top_p
    if asked.prompt_logprobs or asked.topk_prompt_logprobs:
        wanted["prompt_logprobs"] = asked.topk_prompt_logprobs
    if (alternatives := alternatives_of(asked, length)) is not None:
        wanted["prompt_alternatives"] = alternatives
    if params.stop == []:
        wanted["ignore_eos"] = True  # an empty list: nothing ends a sample but its length
    stops = [params.stop] if isinstance(params.stop, str) else list(params.stop or ())
    if ids := [one for one in stops if isinstance(one, int)]:
        wanted["stop_token_ids"] = ids
    if texts := [one for one in stops if isinstance(one, str)]:
        wanted["stop"] = texts
    return {"model": model, "token_ids": prompt_ids(asked.prompt.chunks), "sampling_params": wanted}


def prompt_ids(chunks: Sequence[dict[str, Any]]) -> list[int]:
    """The ids of a prompt's chunks. Raises RequestError for a chunk that is no text, and for no id at all."""
    ids: list[int] = []
    for number, chunk in enumerate(chunks):
        tokens = chunk.get("tokens")
        if chunk.get("type", "encoded_text") != "encoded_text" or not isinstance(tokens, list):
            raise refusal(f"prompt.chunks[{number}] is {chunk.get('type')!r}: this server takes encoded_text")
        ids += tokens
    if not ids:
        raise refusal("the prompt has no tokens", param="prompt")
    return ids


def answer(asked: SampleAsked, reply: dict[str, Any]) -> bytes:
    """The reply of the server as the SDK reads it."""
    k = asked.topk_sample_logprobs
    sequences = [_sequence(choice, k) for choice in reply["choices"]]
    ids = prompt_ids(asked.prompt.chunks)
    others = with_alternatives(asked, reply, len(ids))
    scored = reply.get("prompt_logprobs")
    if scored is None or not (asked.prompt_logprobs or asked.topk_prompt_logprobs):
        return sample_response(sequences, **others)
    skip = 0 if asked.prompt_logprobs_last_n is None else len(ids) - asked.prompt_logprobs_last_n
    logprobs = [
        None if one is None or at < skip else float(one[str(ids[at])]["logprob"])
        for at, one in enumerate(scored)
    ]
    tops = None
    if asked.topk_prompt_logprobs:
        tops = [
            None if one is None or at < skip else _ranked(one, asked.topk_prompt_logprobs)
            for at, one in enumerate(scored)
        ]
    return sample_response(sequences, prompt_logprobs=logprobs, top_prompt_logprobs=tops, **others)


def _sequence(choice: dict[str, Any], k: int) -> AnswerSequence:
    content = choice["logprobs"]["content"]
    reason: Literal["stop", "length"] = "length" if choice["finish_reason"] == "length" else "stop"
    tops = [[(one["token_id"], one["logprob"]) for one in entry["top_logprobs"]] for entry in content]
    return AnswerSequence(
        tokens=choice["token_ids"],
        logprobs=[entry["logprob"] for entry in content],
        stop_reason=reason,
        top_tokens=tops if k else None,
    )


def _ranked(entry: dict[str, Any], k: int) -> list[tuple[int, float]]:
    ranked = [(one["rank"], int(name), float(one["logprob"])) for name, one in entry.items() if "rank" in one]
    return [(token, logprob) for _, token, logprob in sorted(ranked)[:k]]
