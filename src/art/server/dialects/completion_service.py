"""The way of a checked request to its prompt, its samples and the ledger, which every dialect goes through.

`CompletionService` prepares, samples and records. `complete_request` returns all choices once they are
committed; `stream_reply_events` yields the events from which each dialect writes its own stream. Text is
sent as soon as it can no longer change: not half a character, not what may become a stop string, and of a
tool call only where the reply is held to calls. A sample is committed before the event that ends its choice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from art.engine.protocol import Delta, GenerateRequest, Sampling
from art.errors import ARTError, NotFoundError, RequestError, ServerError, WorkerError
from art.server.catalog import Catalog, Target
from art.server.chat.chat_request import ChatRequest
from art.server.chat.messages import SAMPLE_PREFIX
from art.server.chat.prompt_and_reply import (
    Completion,
    PreparedRequest,
    calls_of,
    constraint_of,
    finish_reason,
    name_images,
)
from art.server.counts import TokenCounts
from art.server.http import run_in_thread_if_large
from art.server.ledger.face import SampleLedger
from art.server.ledger.schema import SampleRecord, float_array, int_array, keep_images
from art.server.ledger.stitching import Stitcher
from art.server.rollouts import ExchangeRecords, ScopedRollout, ScopedRollouts
from art.server.tenancy import Tenant
from art.server.tenants import TenantConcurrency
from art.wire.sampling import PARAMETERS

_RECORDED = tuple(
    (name, one.default, one.recorded == "always")
    for name, one in PARAMETERS.items()
    if one.recorded != "never"
)
_AS_ASKED = tuple(name for name in PARAMETERS if name not in ("seed", "stop_token_ids"))
"""What the engine is told as the request says it."""
_values_of = attrgetter(*_AS_ASKED)


def record_of(
    prepared: PreparedRequest,
    prompt: array[int],
    completion: Completion,
    message: dict[str, Any],
    masked_by: str,
) -> SampleRecord:
    """The ledger's row of a completion. `masked_by`: what decided under its constraint."""
    target, stitched = prepared.target, prepared.stitched
    return SampleRecord(
        sample_id=completion.sample_id,
        rollout_id=prepared.rollout_id,
        tenant=prepared.tenant,
        project=target.project,
        model=prepared.request.model,
        base_model=target.base_model,
        step=target.step,
        adapter=target.adapter,
        parent_id=stitched.parent_id,
        fork_reason=stitched.fork_reason,
        shared=stitched.shared,
        prompt_ids=prompt,
        completion_ids=int_array(completion.token_ids),
        completion_logprobs=float_array(completion.logprobs),
        sampling=_recorded(prepared, completion, masked_by),
        finish_reason=completion.finish_reason or "stop",
        turn_key=stitched.conversation.key_with(message),
        tools_key=prepared.request.tools_key,
        created_at=prepared.created_at,
        candidates=b"".join(completion.candidates),
    )


def _recorded(prepared: PreparedRequest, completion: Completion, masked_by: str) -> dict[str, Any]:
    request = prepared.request
    sampling: dict[str, Any] = {"max_tokens": prepared.max_tokens}
    for name, default, always in _RECORDED:
        if (value := getattr(request, name)) != default or always:
            sampling[name] = value
    if request.metadata:
        sampling["metadata"] = request.metadata
    if request.ignore_eos:
        sampling["ignore_eos"] = True
    if prepared.constraint is not None:
        constraint = prepared.constraint
        sampling["constraint"] = {"kind": constraint.kind, "text": constraint.text, "by": masked_by}
    if prepared.constraint is not None or request.min_tokens:
        sampling["stop_token_ids"] = list(prepared.stop_token_ids)
    if completion.stop_string is not None:
        sampling["stop_string"] = completion.stop_string
    return sampling


class CompletionService:
    """Prepares requests, samples their completions and writes them down."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: SampleLedger,
        stitcher: Stitcher,
        rollouts: ScopedRollouts | None = None,
        *,
        in_flight: TenantConcurrency,
        masked_by: str = "builtin",
        tokens: TokenCounts | None = None,
    ) -> None:
        """`masked_by`: what decides which ids a constraint allows (`art.engine.registry.masked_by`)."""
        self._tokens = tokens or TokenCounts()
        self.catalog = catalog
        self._in_flight = in_flight
        self._masked_by = masked_by
        self._rollouts = rollouts
        self._ledger = ledger
        self._stitcher = stitcher

    async def resolve(self, model: str, rollout_id: str | None, *, tenant: Tenant = None) -> Target:
        """Returns the target of a name; in a scoped rollout its own model. Raises: NotFoundError,
        RequestError.
        """
        scoped = self._rollout_scope(rollout_id, tenant)
        if scoped is None or self._rollouts is None:
            return await self.catalog.resolve(model, tenant)
        return await self._rollouts.target_of(scoped, model)

    async def rendered(self, request: ChatRequest, target: Target, *, tenant: Tenant = None) -> list[int]:
        """The ids of a request as a first turn. Raises: RequestError."""
        await name_images(request, target.renderer)
        return await self._stitcher.render(
            target.renderer, request.messages, request.tools, size=request.size, tenant=tenant
        )

    async def prepare(
        self, request: ChatRequest, target: Target, rollout_id: str | None, *, tenant: Tenant = None
    ) -> PreparedRequest:
        """Stitch or render the prompt. Raises: RequestError (context_length_exceeded among others)."""
        images = await name_images(request, target.renderer)
        stitched = await self._stitcher.prompt(
            target,
            request.messages,
            request.tools,
            tools_key=request.tools_key,
            rollout_id=rollout_id,
            tenant=tenant,
            sample_hint=request.sample_hint,
            size=request.size,
        )
        length = len(stitched.prompt_ids)
        room = target.max_context - length
        if room < 1:
            raise RequestError(
                f"the prompt has {length} tokens; the maximum context length of {target.name} is "
                f"{target.max_context} tokens of prompt and completion. Shorten the messages.",
                status=400,
                code="context_length_exceeded",
                param="messages",
            )
        constraint = await run_in_thread_if_large(
            request.size, constraint_of, request, target.renderer, stitched.prompt_ids
        )
        return PreparedRequest(
            request=request,
            target=target,
            stitched=stitched,
            tenant=tenant,
            rollout_id=rollout_id,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            created_at=time.time(),
            constraint=constraint,
            request_id=request_id(rollout_id),
            images=images,
        )

    async def deltas(
        self, prepared: PreparedRequest, index: int, completion: Completion
    ) -> AsyncIterator[Delta]:
        """Sample one choice into `completion`; closing cancels it. Raises: what the engine raises."""
        target, request = prepared.target, prepared.request
        sampling = Sampling(
            **dict(zip(_AS_ASKED, _values_of(request), strict=True)),
            max_tokens=prepared.max_tokens,
            # Choices of one request differ; each is repeatable.
            seed=None if request.seed is None else _seed_in_63_bits(request.seed + index),
            stop_token_ids=prepared.stop_token_ids,
            constraint=prepared.constraint,
        )
        completion.named_call = request.tool_choice.names_one_tool
        asked = GenerateRequest(
            request_id=completion.sample_id,
            adapter=target.adapter,
            prompt_ids=prepared.stitched.prompt_ids,
            sampling=sampling,
            images=prepared.image_prompt,
            stream=request.stream,
            affinity=prepared.affinity,
            owner=prepared.owner,
        )
        try:
            clock = self.catalog.clock(target.project, target.name)
            with self._in_flight.count_request(prepared.tenant), clock.sampling():
                async with aclosing(target.engine.generate(asked)) as stream:  # type: ignore[type-var]
                    async for delta in stream:
                        completion.token_ids.extend(delta.token_ids)
                        completion.logprobs.extend(delta.logprobs)
                        completion.tops.extend(delta.top_logprobs)
                        completion.candidates.append(delta.candidates)
                        completion.finish_reason = delta.finish_reason
                        completion.stop_string = delta.stop_string
                        yield delta
        except RequestError as error:
            raise prepared.with_field(error) from error
        except NotFoundError as error:
            # The catalog gave this adapter out, so the engine lost it: it was restarted a moment ago.
            raise ServerError(
                # What the engine says lists the names of others.
                f"the engine does not have {prepared.fingerprint} loaded now; try again",
                status=503,
                code="adapter_not_loaded",
            ) from error
        finally:
            # The choices of a request share its prompt.
            read = len(asked.prompt_ids) if index == 0 and completion.token_ids else 0
            self._tokens.count(target, prompt=read, sampled=len(completion.token_ids))
        if completion.finish_reason is None:
            raise WorkerError(f"the engine ended {completion.sample_id} without a finish reason")

    async def keep(self, prepared: PreparedRequest, done: list[tuple[Completion, dict[str, Any]]]) -> None:
        """Write completions with the messages they were read as; return when they are committed."""
        prompt: array[int] = int_array(prepared.stitched.prompt_ids)
        records = [
            record_of(prepared, prompt, completion, message, self._masked_by) for completion, message in done
        ]
        scoped = self._rollout_scope(prepared.rollout_id, prepared.tenant)
        # Of the base model nothing is learned: what it says is context.
        exchanges: ExchangeRecords | None = None
        if scoped is not None and prepared.target.project:
            exchanges = await run_in_thread_if_large(
                prepared.request.size, ExchangeRecords, scoped, prepared, done
            )
            scoped.text_bytes += exchanges.size
        also = keep_images(prepared.images, prepared.created_at)
        also += exchanges.statements if exchanges is not None else ()
        await self._ledger.writer.append(records, also)
        if exchanges is not None:
            exchanges.remember()
        for record in records:
            self._stitcher.remember(record)

    def delivered(self, *prompts: PreparedRequest) -> None:
        """Records that the replies were sent completely: each of their samples counts. The record is written
        in the background.
        """
        for prepared in prompts:
            if prepared.rollout_id is not None and self._rollouts is not None:
                self._rollouts.note_delivered(prepared.rollout_id, prepared.tenant, prepared.request_id)

    def _rollout_scope(self, rollout_id: str | None, tenant: Tenant) -> ScopedRollout | None:
        if self._rollouts is None or rollout_id is None:
            return None
        return self._rollouts.open_one(rollout_id, tenant)


def request_id(rollout_id: str | None) -> str:
    """A new name for a rollout's request; others are never asked for theirs."""
    return "" if rollout_id is None else f"req_{secrets.token_hex(8)}"


def new_completion() -> Completion:
    """An empty completion with an id of its own."""
    return Completion(sample_id=SAMPLE_PREFIX + secrets.token_hex(12), token_ids=[], logprobs=[])


def _seed_in_63_bits(seed: int) -> int:
    """A seed within 63 bits, so that every engine can take it."""
    return seed & (2**63 - 1)


@dataclass(frozen=True, slots=True)
class CommittedChoice:
    """One committed choice."""

    completion: Completion
    message: dict[str, Any]
    """The assistant's message as the chat API spells it."""
    finish: str
    """`stop`, `length` or `tool_calls`."""


async def complete_request(service: CompletionService, prepared: PreparedRequest) -> list[CommittedChoice]:
    """Sample every choice; return when all are in the ledger. Raises: what the engine raises."""
    completions = [new_completion() for _ in range(prepared.request.n)]
    if len(completions) == 1:
        await _sample_to_end(service, prepared, 0, completions[0])
    else:
        await gather_or_cancel(
            [_sample_to_end(service, prepared, n, one) for n, one in enumerate(completions)]
        )
    done = [(one, prepared.message(one)) for one in completions]
    await service.keep(prepared, done)
    return [CommittedChoice(one, message, finish_reason(one, message)) for one, message in done]


async def gather_or_cancel(runs: list[Any]) -> list[Any]:
    """All of them, in order; the first failure cancels the rest."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sample_to_end(
    service: CompletionService, prepared: PreparedRequest, index: int, completion: Completion
) -> None:
    async for _ in service.deltas(prepared, index, completion):
        pass


_log = logging.getLogger(__name__)

Emission = tuple[int, Delta | None]
"""(choice, what is new); None: the choice has ended."""


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The engine has begun: from here on the reply is 200."""

    choices: list[StreamedChoice]


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The new part of a call. Calls come one after the other: a new one ends the one before."""

    index: int
    call: dict[str, Any]
    """Its id, and its function with all arguments so far."""
    arguments: str
    """Those that are new."""
    opens: bool
    """Nothing was told of it yet."""


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """New ids of a choice, and the text that they let be told: often none."""

    choice: StreamedChoice
    delta: Delta
    content: str
    reasoning: str
    calls: list[CallPiece] = field(default_factory=list)
    """The pieces of calls, which follow the text. Before the end only a reply held to calls has them."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """A choice that is committed: the rest of its text and calls; all of it is `choice.message`."""

    choice: StreamedChoice
    content: str
    reasoning: str
    finish: str
    """`stop`, `length` or `tool_calls`."""
    calls: list[CallPiece] = field(default_factory=list)


StreamEvent = StreamStarted | ReplyDelta | ChoiceFinished


class StreamedChoice:
    """One choice of a stream: what was sampled, and what of it was told."""

    def __init__(self, prepared: PreparedRequest, index: int, place: int) -> None:
        self.index = index
        """The index of the choice among all choices of the reply."""
        self.place = place
        """The index of the choice among the choices of its prompt."""
        self.prepared = prepared
        self.completion: Completion = new_completion()
        self.message: dict[str, Any] = {}
        """What the client has; known at the end."""
        self._content = ""
        self._reasoning = ""
        self._arguments: list[str] = []
        """What was told of each call."""
        self._read_at = 0

    def delta_event(self, delta: Delta) -> ReplyDelta:
        """Returns the event that can be sent after a delta."""
        content = reasoning = ""
        calls: list[CallPiece] = []
        total = len(self.completion.token_ids)
        # Reading starts from the first id, so a long reply is read more rarely.
        if delta.finish_reason is None and total - self._read_at > total // 64:
            self._read_at = total
            parsed = self.prepared.parse(self.completion.token_ids, partial=True)
            stops = self.prepared.request.stop
            text, thought = parsed.content, parsed.reasoning or ""
            if not parsed.tool_calls:
                text, thought = _unchangeable_part(text, stops), _unchangeable_part(thought, stops)
            content, reasoning = self._advance(text, thought)
            calls = self._call_pieces(calls_of(self.completion, parsed))
        return ReplyDelta(self, delta, content, reasoning, calls)

    def end(self) -> ChoiceFinished:
        """The rest of the text and the reason of the end; sets `message`."""
        message = self.prepared.message(self.completion)
        content, reasoning = self._advance(message["content"] or "", message.get("reasoning_content") or "")
        calls = self._call_pieces(message.get("tool_calls", []))
        # What was told cannot be taken back: the message is what the client can put together.
        self.message = {**message, "content": self._content}
        for call, arguments in zip(message.get("tool_calls", []), self._arguments, strict=True):
            call["function"]["arguments"] = arguments
        return ChoiceFinished(self, content, reasoning, finish_reason(self.completion, message), calls)

    def _call_pieces(self, calls: list[dict[str, Any]]) -> list[CallPiece]:
        pieces = []
        for index, call in enumerate(calls):
            opens = index == len(self._arguments)
            if opens:
                self._arguments.append("")
            arguments, sent = call["function"]["arguments"], self._arguments[index]
            new = arguments[len(sent) :] if arguments.startswith(sent) else ""
            self._arguments[index] += new
            if new or opens:
                pieces.append(CallPiece(index, call, new, opens))
        return pieces

    def _advance(self, content: str, reasoning: str) -> tuple[str, str]:
        new_content = new_reasoning = ""
        if len(reasoning) > len(self._reasoning) and reasoning.startswith(self._reasoning):
            new_reasoning = reasoning[len(self._reasoning) :]
            self._reasoning = reasoning
        if len(content) > len(self._content) and content.startswith(self._content):
            new_content = content[len(self._content) :]
            self._content = content
        return new_content, new_reasoning


async def stream_reply_events(
    service: CompletionService, *prompts: PreparedRequest
) -> AsyncIterator[StreamEvent]:
    """`StreamStarted`, then `ReplyDelta` and `ChoiceFinished` of each choice; close it with `aclosing`.

    Raises: ARTError. Before `StreamStarted` the request has failed as a whole.
    """
    places = [(prepared, place) for prepared in prompts for place in range(prepared.request.n)]
    choices = [StreamedChoice(prepared, index, place) for index, (prepared, place) in enumerate(places)]
    queue: asyncio.Queue[Emission | ARTError] = asyncio.Queue()
    tasks = [asyncio.create_task(_sample_into_queue(service, choice, queue)) for choice in choices]
    open_choices = len(choices)
    begun = False
    try:
        while open_choices:
            item = await queue.get()
            if isinstance(item, ARTError):
                raise item
            if not begun:
                begun = True
                yield StreamStarted(choices)
            index, delta = item
            choice = choices[index]
            if delta is not None:
                yield choice.delta_event(delta)
                continue
            ended = choice.end()
            await service.keep(choice.prepared, [(choice.completion, choice.message)])
            open_choices -= 1
            yield ended
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _sample_into_queue(
    service: CompletionService, choice: StreamedChoice, queue: asyncio.Queue[Emission | ARTError]
) -> None:
    last: Emission | ARTError = WorkerError(f"sampling {choice.completion.sample_id} ended unexpectedly")
    try:
        async for delta in service.deltas(choice.prepared, choice.place, choice.completion):
            queue.put_nowait((choice.index, delta))
        last = (choice.index, None)
    except ARTError as error:
        last = error
    except Exception:
        # A defect in an engine: the client is told that it failed, the log says how.
        _log.exception("sampling %s failed", choice.completion.sample_id)
        raise
    finally:
        queue.put_nowait(last)


def _unchangeable_part(text: str, stops: tuple[str, ...]) -> str:
    """The text without an unfinished character, and without an end that may become a stop string."""
    text = text.rstrip("\ufffd")
    unfinished = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), unfinished, -1):
            if text.endswith(stop[:length]):
                unfinished = length
                break
    return text[: len(text) - unfinished]
