"""From a checked request to prompt, samples and the ledger: what both kinds of reply share."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from art.engine.protocol import Delta, GenerateRequest, Sampling
from art.errors import NotFoundError, RequestError, ServerError, WorkerError
from art.server.bodies import aside
from art.server.counts import TokenCounts
from art.server.dialects.chat_messages import SAMPLE_PREFIX
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_record import record_of
from art.server.dialects.chat_reply import Completion
from art.server.dialects.chat_request import ChatRequest
from art.server.dialects.constraining import constraint_of
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import int_array
from art.server.ledger.stitching import Stitcher
from art.server.models.catalog import Catalog
from art.server.models.served import Target
from art.server.rollouts.exchanges import Told
from art.server.rollouts.rollouts import Rollouts
from art.server.rollouts.scope import ScopedRollout
from art.server.tenants.in_flight import InFlight
from art.server.tenants.tenancy import Tenant


class Sampler:
    """Prepares requests, samples their completions and writes them down."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: Ledger,
        stitcher: Stitcher,
        rollouts: Rollouts | None = None,
        *,
        in_flight: InFlight,
        engine: str = "builtin",
        tokens: TokenCounts | None = None,
    ) -> None:
        """`engine` is the name of what samples: under constraints, not all draw alike."""
        self._tokens = tokens or TokenCounts()
        self.catalog = catalog
        self._in_flight = in_flight
        self._engine = engine
        self._rollouts = rollouts
        self._ledger = ledger
        self._stitcher = stitcher

    async def resolve(self, model: str, rollout_id: str | None, *, tenant: Tenant = None) -> Target:
        """What answers to a name; in a scoped rollout its own model. Raises: NotFoundError, RequestError."""
        scoped = self._scoped(rollout_id, tenant)
        if scoped is None or self._rollouts is None:
            return await self.catalog.resolve(model, tenant)
        return await self._rollouts.target_of(scoped, model)

    async def rendered(self, request: ChatRequest, target: Target, *, tenant: Tenant = None) -> list[int]:
        """The ids of a request as a first turn. Raises: RequestError."""
        return await self._stitcher.render(
            target.renderer, request.messages, request.tools, size=request.size, tenant=tenant
        )

    async def prepare(
        self, request: ChatRequest, target: Target, rollout_id: str | None, *, tenant: Tenant = None
    ) -> Prepared:
        """Stitch or render the prompt. Raises: RequestError (context_length_exceeded among others)."""
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
                f"the prompt has {length} tokens; {target.name} has room for {target.max_context} tokens of "
                "prompt and completion. Shorten the messages.",
                status=400,
                code="context_length_exceeded",
                param="messages",
            )
        constraint = await aside(request.size, constraint_of, request, target.renderer, stitched.prompt_ids)
        return Prepared(
            request=request,
            target=target,
            stitched=stitched,
            tenant=tenant,
            rollout_id=rollout_id,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            created_at=time.time(),
            constraint=constraint,
            request_id=request_id(rollout_id),
        )

    async def deltas(self, prepared: Prepared, index: int, completion: Completion) -> AsyncIterator[Delta]:
        """Sample one choice into `completion`; closing cancels it. Raises: what the engine raises."""
        target, request = prepared.target, prepared.request
        sampling = Sampling(
            max_tokens=prepared.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            # Choices of one request differ; each is repeatable.
            seed=None if request.seed is None else _wrapped(request.seed + index),
            stop=request.stop,
            stop_token_ids=prepared.stop_token_ids,
            logit_bias=request.logit_bias,
            constraint=prepared.constraint,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            repetition_penalty=request.repetition_penalty,
            min_tokens=request.min_tokens,
            top_logprobs=request.top_logprobs,
        )
        completion.named_call = request.tool_choice.named
        asked = GenerateRequest(
            request_id=completion.sample_id,
            adapter=target.adapter,
            prompt_ids=prepared.stitched.prompt_ids,
            sampling=sampling,
            stream=request.stream,
            affinity=prepared.affinity,
            owner=prepared.owner,
        )
        try:
            with self._in_flight.holding(prepared.tenant):
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
            raise prepared.blamed(error) from error
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

    async def keep(self, prepared: Prepared, done: list[tuple[Completion, dict[str, Any]]]) -> None:
        """Write completions with the messages they were read as; return when they are committed."""
        prompt: array[int] = int_array(prepared.stitched.prompt_ids)
        records = [
            record_of(prepared, prompt, completion, message, self._engine) for completion, message in done
        ]
        scoped = self._scoped(prepared.rollout_id, prepared.tenant)
        # Of the base model nothing is learned: what it says is context.
        told: Told | None = None
        if scoped is not None and prepared.target.project:
            told = await aside(prepared.request.size, Told, scoped, prepared, done)
            scoped.text_bytes += told.size
        await self._ledger.append(records, told.statements if told is not None else ())
        if told is not None:
            told.remember()
        for record in records:
            self._stitcher.remember(record)

    def delivered(self, *prompts: Prepared) -> None:
        """Their reply was sent to its end: each of its samples counts. Nobody waits for the note."""
        for prepared in prompts:
            if prepared.rollout_id is not None and self._rollouts is not None:
                self._rollouts.note_delivered(prepared.rollout_id, prepared.tenant, prepared.request_id)

    def _scoped(self, rollout_id: str | None, tenant: Tenant) -> ScopedRollout | None:
        if self._rollouts is None or rollout_id is None:
            return None
        return self._rollouts.open_one(rollout_id, tenant)


def request_id(rollout_id: str | None) -> str:
    """A new name for a rollout's request; others are never asked for theirs."""
    return "" if rollout_id is None else f"req_{secrets.token_hex(8)}"


def new_completion() -> Completion:
    """An empty completion with an id of its own."""
    return Completion(sample_id=SAMPLE_PREFIX + secrets.token_hex(12), token_ids=[], logprobs=[])


def _wrapped(seed: int) -> int:
    """A seed within 63 bits, so that every engine can take it."""
    return seed & (2**63 - 1)
