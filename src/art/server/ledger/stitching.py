"""Stitching: the prompt of a request is earlier ids plus the ids of what is new, never earlier text tokenised
again.

    request    system, user, assistant (answered before), user
    prompt     prompt_ids + completion_ids of that answer, exactly, then the ids of the last user message

Where that cannot be done the whole conversation is rendered: a *fork*, with its reason. A conversation of
which nothing was answered here is no fork. Each tenant has conversations, rollouts and samples of its own:
the chain of a conversation's keys begins with its tenant.

The keys (`Conversation`) are a hash chain over messages, blind to what clients do to a reply on its way back.
Clients dump and load what they were given: `content` null or empty, null fields dropped or added, other key
order, arguments parsed and written again, fields like `reasoning_content` or `sample_id` lost. None of that
makes it another conversation. Other text does. Answered turns are kept in memory (`TurnIndex`), the least
recently used forgotten first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import orjson

from art.rendering.chat_renderer import ChatRenderer, Message, Tool
from art.rendering.images import IMAGE
from art.server.catalog import Target
from art.server.http import LARGE, TenantThreads, run_in_thread_if_large
from art.server.ledger.face import SampleLedger
from art.server.ledger.schema import SampleRecord, int_array
from art.server.tenancy import Tenant, internal_name
from art.wire.message_identity import message_identity

DIGEST = 16
"""Bytes of a key."""


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """An assistant message: its index, and the key of the conversation that ends with it."""

    index: int
    key: bytes


class Conversation:
    """The keys of one request's messages."""

    __slots__ = ("_chain", "turns")

    def __init__(self, base_model: str, messages: Sequence[Mapping[str, Any]]) -> None:
        self._chain = hashlib.blake2b(base_model.encode(), digest_size=DIGEST)
        self.turns: list[AssistantTurn] = []
        for index, message in enumerate(messages):
            self._chain.update(_canonical(message))
            if message["role"] == "assistant":
                self.turns.append(AssistantTurn(index, self._chain.digest()))

    @classmethod
    def of_ids(cls, base_model: str, ids: bytes) -> Conversation:
        """A prompt that is no conversation: no messages have its key."""
        raw = cls(f"\0ids\0{base_model}", ())
        raw._chain.update(ids)
        return raw

    @property
    def key(self) -> bytes:
        """Key of all messages."""
        return self._chain.digest()

    def key_with(self, reply: Mapping[str, Any]) -> bytes:
        """Key of all messages and an assistant's reply to them."""
        chain = self._chain.copy()
        chain.update(_canonical(reply))
        return chain.digest()


def tools_key(tools: Sequence[Mapping[str, Any]] | None) -> bytes:
    """Key of a request's tools; empty without."""
    return tools_key_and_size(tools)[0]


def tools_key_and_size(tools: Sequence[Mapping[str, Any]] | None) -> tuple[bytes, int]:
    """Returns the key of the tools, and the bytes of their JSON. Raises: TypeError."""
    if not tools:
        return b"", 0
    chain = hashlib.blake2b(b"[", digest_size=DIGEST)
    size = 0
    for number, tool in enumerate(tools):
        spelled = orjson.dumps(tool, option=orjson.OPT_SORT_KEYS)
        chain.update(b"," + spelled if number else spelled)
        size += len(spelled)
    chain.update(b"]")
    return chain.digest(), size


def _canonical(message: Mapping[str, Any]) -> bytes:
    functions = (call["function"] for call in message.get("tool_calls") or ())
    calls = [(function["name"], function["arguments"]) for function in functions]
    content = message.get("content") or ""
    if not isinstance(content, str):  # images, each by its place in the text
        texts: list[str] = []
        for part in content:
            if part["type"] == IMAGE:
                calls.append((IMAGE, [sum(map(len, texts)), part[IMAGE]]))
            else:
                texts.append(part["text"])
        content = "".join(texts)
    return message_identity(message["role"], content, calls)


Rollout = tuple[Tenant, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredTurn:
    """A sample as stitching needs it."""

    sample_id: str
    tenant: Tenant
    rollout_id: str | None
    key: bytes
    """The key of the conversation; the keys of two tenants are never the same."""
    tools_key: bytes

    prompt_ids: array[int]
    completion_ids: array[int]
    truncated: bool
    """The reply was cut off at its token limit."""

    @property
    def rollout(self) -> Rollout | None:
        """The rollout among everybody's."""
        return None if self.rollout_id is None else (self.tenant, self.rollout_id)

    @property
    def tokens(self) -> int:
        """Ids held."""
        return len(self.prompt_ids) + len(self.completion_ids)


TURN_IDS = 240
"""The memory of a turn beside its ids (names, keys, entries of tables), in ids of four bytes."""


class TurnIndex:
    """Finds an answered turn by its conversation's key, within a rollout or anywhere. max_tokens: the ids to
    keep; a turn counts as `TURN_IDS` more than it has, so that many short ones take no more memory.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.forgot = False
        """Whether a turn ever had to go: then only the ledger knows all."""
        self._tokens = 0
        self._turns: OrderedDict[str, AnsweredTurn] = OrderedDict()
        self._newest: dict[tuple[Rollout | None, bytes], str] = {}
        self._rollouts: dict[Rollout, int] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: AnsweredTurn) -> None:
        """Keep a turn; the newest one of a key is found first."""
        if turn.sample_id in self._turns:
            return
        self._turns[turn.sample_id] = turn
        self._tokens += turn.tokens + TURN_IDS
        self._newest[None, turn.key] = turn.sample_id
        if turn.rollout is not None:
            self._newest[turn.rollout, turn.key] = turn.sample_id
            self._rollouts[turn.rollout] = self._rollouts.get(turn.rollout, 0) + 1
        while self._tokens > self.max_tokens and len(self._turns) > 1:
            self._forget_oldest()

    def find(self, key: bytes, rollout: Rollout | None) -> AnsweredTurn | None:
        """The newest turn of this key in the rollout, else in any."""
        sample_id = self._newest.get((rollout, key)) if rollout is not None else None
        return self.get(sample_id or self._newest.get((None, key)))

    def get(self, sample_id: str | None) -> AnsweredTurn | None:
        """The turn of a sample."""
        turn = self._turns.get(sample_id) if sample_id is not None else None
        if turn is not None:
            self._turns.move_to_end(turn.sample_id)
        return turn

    def knows_rollout(self, rollout: Rollout) -> bool:
        """Returns whether a turn of the rollout is kept."""
        return rollout in self._rollouts

    def _forget_oldest(self) -> None:
        sample_id, turn = self._turns.popitem(last=False)
        self.forgot = True
        self._tokens -= turn.tokens + TURN_IDS
        for scope in {None, turn.rollout}:
            if self._newest.get((scope, turn.key)) == sample_id:
                del self._newest[scope, turn.key]
        if turn.rollout is not None:
            left = self._rollouts[turn.rollout] - 1
            if left:
                self._rollouts[turn.rollout] = left
            else:
                del self._rollouts[turn.rollout]


HISTORY_EDITED = "history_edited"
"""A part of this conversation was answered here, but its newest reply differs from what was answered."""
UNKNOWN_HISTORY = "unknown_history"
"""The rollout has samples, but not of this conversation."""
TOOLS_CHANGED = "tools_changed"
NO_NEW_MESSAGE = "no_new_message"
"""The conversation ends with the reply itself."""
TRUNCATED_REPLY = "truncated_reply"
"""The reply was cut off, and the format cannot close it."""
BRIDGE_REFUSED = "bridge_refused"
"""The renderer cannot prove that the extension is safe."""

RENDERED_SHARE = 8
"""First turns are remembered in this part of the memory of answered turns."""
RENDERED_IDS = 120
"""The memory of a first turn beside its ids, in ids of four bytes."""


R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stitched:
    """A prompt, and where it comes from."""

    prompt_ids: list[int]
    conversation: Conversation
    parent_id: str | None = None
    shared: int = 0
    """The number of the prompt's first ids that are the parent's."""
    fork_reason: str | None = None


class Stitcher:
    """Makes prompts, and remembers what was answered."""

    def __init__(self, ledger: SampleLedger, *, max_tokens: int, ledger_is_empty: bool) -> None:
        self.forks: Counter[str] = Counter()
        """Forks since the start, by reason."""
        self.stitched = 0
        """Prompts that extend earlier ids, since the start."""
        self._ledger = ledger
        self._ledger_has_more = not ledger_is_empty
        self._index = TurnIndex(max_tokens)
        self._foreign = TenantThreads()
        self._rendered: OrderedDict[tuple[bytes, bytes], array[int]] = OrderedDict()
        self._rendered_room = max_tokens // RENDERED_SHARE

    async def prompt(
        self,
        target: Target,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        *,
        tools_key: bytes,
        rollout_id: str | None,
        tenant: Tenant = None,
        sample_hint: str | None = None,
        size: int = 0,
    ) -> Stitched:
        """The ids to send to the engine.

        `sample_hint`: the sample that the newest assistant message says it is. `size`: characters of
        messages and tools; what is large is written in a thread.
        Raises: RequestError when the format cannot express the messages.
        """
        speaker = speaker_of(target.base_model, tenant, target.renderer)
        conversation = await run_in_thread_if_large(size, Conversation, speaker, messages)
        if not conversation.turns:
            return Stitched(
                prompt_ids=await self._first(target, messages, tools, conversation, tools_key, size, tenant),
                conversation=conversation,
            )
        turn, reason = await self._answered(conversation, tenant, rollout_id, sample_hint)
        if turn is not None:
            new = messages[conversation.turns[-1].index + 1 :]
            ids, reason = await self._run_beside(
                size, tenant, target.renderer, _extend, target, turn, new, tools, tools_key
            )
            if ids is not None:
                self.stitched += 1
                return Stitched(
                    prompt_ids=ids, conversation=conversation, parent_id=turn.sample_id, shared=turn.tokens
                )
        if reason is not None:
            self.forks[reason] += 1
        rendered = await self.render(target.renderer, messages, tools, size=size, tenant=tenant)
        return Stitched(prompt_ids=rendered, conversation=conversation, fork_reason=reason)

    def remember(self, record: SampleRecord) -> None:
        """Make a sample known to the conversations that continue it."""
        self._index.add(_turn_of(record))

    async def render(
        self,
        renderer: ChatRenderer,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        *,
        size: int,
        tenant: Tenant,
        generate: bool = True,
    ) -> list[int]:
        """A whole conversation's ids; `size`: bytes of the request. Raises: RequestError."""
        write = partial(renderer.render, messages, tools, generate=generate)
        return await self._run_beside(size, tenant, renderer, write)

    async def _run_beside(
        self, size: int, tenant: Tenant, renderer: ChatRenderer, work: Callable[..., R], *arguments: Any
    ) -> R:
        if renderer.foreign:
            return await self._foreign.run(LARGE + 1, tenant, work, *arguments)
        return await run_in_thread_if_large(size, work, *arguments)

    async def _first(
        self,
        target: Target,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None,
        conversation: Conversation,
        tools_key: bytes,
        size: int,
        tenant: Tenant,
    ) -> list[int]:
        """A first turn's rendering; rollouts of one scenario share it."""
        key = (conversation.key, tools_key)
        cached_ids = self._rendered.get(key)
        if cached_ids is not None:
            self._rendered.move_to_end(key)
            return cached_ids.tolist()
        ids = await self.render(target.renderer, messages, tools, size=size, tenant=tenant)
        # Tool results are left out: some formats write their ids or names, which the key does not hold.
        if key not in self._rendered and all(message["role"] != "tool" for message in messages):
            self._rendered[key] = int_array(ids)
            self._rendered_room -= len(ids) + RENDERED_IDS
        while self._rendered_room < 0:
            self._rendered_room += len(self._rendered.popitem(last=False)[1]) + RENDERED_IDS
        return ids

    async def _answered(
        self, conversation: Conversation, tenant: Tenant, rollout_id: str | None, sample_hint: str | None
    ) -> tuple[AnsweredTurn | None, str | None]:
        """The answered turn that the newest assistant message is, or why this is a fork (None: it is not)."""
        newest = conversation.turns[-1].key
        rollout: Rollout | None = None if rollout_id is None else (tenant, rollout_id)
        hinted = self._index.get(sample_hint)
        if hinted is not None and hinted.tenant != tenant:
            hinted = None
        if hinted is not None and hinted.key == newest:
            return hinted, None
        turn = self._index.find(newest, rollout)
        if turn is not None:
            return turn, None
        edited = hinted is not None or any(
            self._index.find(earlier.key, rollout) for earlier in conversation.turns[:-1]
        )
        if edited:
            return None, HISTORY_EDITED
        known = rollout is not None and self._index.knows_rollout(rollout)
        if self._ledger_has_more or self._index.forgot:
            keys = [earlier.key for earlier in reversed(conversation.turns)]
            record = await self._ledger.find_turn(keys, rollout_id)
            if record is not None:
                self.remember(record)
                return (_turn_of(record), None) if record.turn_key == newest else (None, HISTORY_EDITED)
            if rollout_id is not None and not known:
                known = await self._ledger.has_rollout(rollout_id, tenant=tenant)
        return None, UNKNOWN_HISTORY if known else None


def speaker_of(base_model: str, tenant: Tenant, renderer: ChatRenderer) -> str:
    """Returns the prefix of conversation keys: the owner and the settings."""
    return internal_name(tenant, base_model) + renderer.variant


def _extend(
    target: Target,
    turn: AnsweredTurn,
    new_messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    tools_key: bytes,
) -> tuple[list[int] | None, str | None]:
    """The turn's ids with the new messages behind them, or the reason why not."""
    if not new_messages:
        return None, NO_NEW_MESSAGE
    if turn.tools_key != tools_key:
        return None, TOOLS_CHANGED
    ids = target.renderer.bridge(turn.prompt_ids, turn.completion_ids, new_messages, tools)
    if ids is None:
        return None, TRUNCATED_REPLY if turn.truncated else BRIDGE_REFUSED
    return ids, None


def _turn_of(record: SampleRecord) -> AnsweredTurn:
    return AnsweredTurn(
        sample_id=record.sample_id,
        tenant=record.tenant,
        rollout_id=record.rollout_id,
        key=record.turn_key,
        tools_key=record.tools_key,
        prompt_ids=int_array(record.prompt_ids),
        completion_ids=int_array(record.completion_ids),
        truncated=record.finish_reason == "length",
    )
