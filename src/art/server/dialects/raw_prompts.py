"""Prompts that are no conversation: ids, or a text that becomes ids as it is.

A prompt that begins with all ids of an earlier completion of its rollout has that sample as its parent.
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from art.errors import RequestError
from art.rendering.chat import Parsed
from art.server.dialects.chat_prepared import Prepared
from art.server.dialects.chat_reply import Completion
from art.server.dialects.chat_request import ChatRequest
from art.server.dialects.chat_sampling import request_id
from art.server.dialects.completions_request import Prompt
from art.server.dialects.length import check_length
from art.server.dialects.refusal import refuse
from art.server.ledger.conversation import Conversation
from art.server.ledger.schema import int_array
from art.server.ledger.stitching import Stitched, speaker_of
from art.server.models.served import Target
from art.server.tenants.tenancy import Tenant

_TURNS = 16
"""Newest completions of a rollout that a prompt is compared with."""

Rollout = tuple[Tenant, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class RawPrepared(Prepared):
    """A raw prompt. What follows it is text, whatever it looks like."""

    def parse(self, token_ids: Sequence[int], *, partial: bool = False) -> Parsed:
        """The text, without the id that ended it."""
        renderer = self.target.renderer
        ended = bool(token_ids) and token_ids[-1] in renderer.stop_token_ids
        return Parsed(content=renderer.decode(token_ids[:-1] if ended else token_ids))


class RawPrompts:
    """Prepares raw prompts, and remembers the ids that the rollouts' newest completions ended with."""

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._answered: OrderedDict[Rollout, list[tuple[str, array[int]]]] = OrderedDict()

    def prepare(
        self,
        request: ChatRequest,
        target: Target,
        prompt: Prompt,
        rollout_id: str | None,
        tenant: Tenant = None,
        special: bool = False,
    ) -> RawPrepared:
        """`special`: with the special tokens that the tokenizer puts around a text.

        Raises: RequestError for a prompt without ids, or with more than there is room for.
        """
        if isinstance(prompt, str):
            check_length([prompt], target, param="prompt")
            ids = target.renderer.encode(prompt, special=special)
            text = target.renderer.decode(ids) if special else prompt
        else:
            text, ids = "", prompt
        if not ids:
            refuse("the prompt has no tokens: there is nothing to continue", "prompt")
        room = target.max_context - len(ids)
        if room < 1:
            raise RequestError(
                f"the prompt has {len(ids)} tokens; {target.name} has room for {target.max_context} tokens "
                "of prompt and completion. Shorten the prompt.",
                status=400,
                code="context_length_exceeded",
                param="prompt",
            )
        if not isinstance(prompt, str):
            text = target.renderer.decode(ids)  # of as many as there is room for, not of millions
        held = int_array(ids)
        speaker = speaker_of(target.base_model, tenant, target.renderer)
        parent, shared = (None, 0) if rollout_id is None else self._parent((tenant, rollout_id), held)
        stitched = Stitched(
            prompt_ids=ids,
            conversation=Conversation.of_ids(speaker, held.tobytes()),
            parent_id=parent,
            shared=shared,
        )
        return RawPrepared(
            # Those who look at what was said see the prompt as one message.
            request=replace(request, messages=[{"role": "user", "content": text}]),
            target=target,
            stitched=stitched,
            tenant=tenant,
            rollout_id=rollout_id,
            max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
            created_at=time.time(),
            request_id=request_id(rollout_id),
            constraint=request.constraint,
        )

    def remember(self, prepared: Prepared, completion: Completion) -> None:
        """Keep a committed completion, so that prompts that go on from it are found to be its children."""
        if prepared.rollout_id is None:
            return
        rollout = (prepared.tenant, prepared.rollout_id)
        turns = self._answered.setdefault(rollout, [])
        self._answered.move_to_end(rollout)
        turns.append(
            (completion.sample_id, int_array([*prepared.stitched.prompt_ids, *completion.token_ids]))
        )
        self._tokens += len(turns[-1][1])
        if len(turns) > _TURNS:
            self._tokens -= len(turns.pop(0)[1])
        while self._tokens > self._max_tokens and self._answered:
            _, forgotten = self._answered.popitem(last=False)
            self._tokens -= sum(len(ids) for _, ids in forgotten)

    def _parent(self, rollout: Rollout, ids: array[int]) -> tuple[str | None, int]:
        """The sample that most of the prompt's first ids are, and how many."""
        best: tuple[str | None, int] = (None, 0)
        for sample_id, earlier in self._answered.get(rollout, ()):
            if best[1] < len(earlier) <= len(ids) and ids[: len(earlier)] == earlier:
                best = (sample_id, len(earlier))
        return best
