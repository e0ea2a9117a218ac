"""One supervised job, from messages to the served step: an update for each batch, one step in all.

A conversation gives one row for each thing that the assistant says. Each prompt extends the prompt and the
reply before it, as it does when a rollout is sampled: so the turns of a conversation, and conversations that
begin alike, share their tokens in the batch's tree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

from art.batch.algorithms import resolve
from art.batch.balance_sheet import add_sheets
from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.encode import encode_batch
from art.errors import RequestError, TrainingError
from art.rendering.chat_renderer import ChatRenderer, Message, Tool
from art.server.chat.messages import read_messages, read_tools
from art.server.checkpoints.canary import Canary, canary_rows
from art.server.jobs.step_job import StepJob
from art.server.ledger.schema import SampleRecord
from art.server.ledger.stitching import BRIDGE_REFUSED, NO_NEW_MESSAGE, Conversation, speaker_of, tools_key
from art.server.tenancy import tenant_of
from art.server.workers.trainer_worker import TrainedModel
from art.wire.algorithm import Algorithm
from art.wire.jobs import BalanceSheet, SftConversation, SftJobRequest, TrainResultInfo
from art.wire.rollout_record import SheetRow
from art.wire.training import ComputedStep, TrainEvent, TrainingKind, TrainRequest


def conversation_row(
    renderer: ChatRenderer,
    conversation: SftConversation,
    name: str,
    sampled: Mapping[int, SampleRow] = MappingProxyType({}),
) -> RolloutRow:
    """The conversation under a name that is unique in its batch; every assistant message is a sample.

    `sampled`: see `exact_rows`. Raises RequestError that names the conversation.
    """
    samples = assistant_rows(
        renderer,
        name,
        conversation.messages,
        conversation.tools,
        about=f"conversation {conversation.name!r}",
        sampled=sampled,
    )
    if not samples:
        raise RequestError(
            f"conversation {conversation.name!r} has no assistant message to train (of weight 1, "
            "the default)",
            status=400,
            code="nothing_to_train",
            param="conversations",
        )
    return RolloutRow(rollout=name, reward=0.0, samples=samples)


def exact_rows(
    conversation: SftConversation, name: str, records: Mapping[str, SampleRecord], speaker: str
) -> dict[int, SampleRow]:
    """Ids as they were sampled, of messages that are word for word a sample of the same conversation.

    `speaker`: what keys of conversations with the model begin with (`Conversation`): samples of another base,
    or of another chat format, have other keys.
    """
    if not conversation.samples:
        return {}
    try:
        messages = read_messages(conversation.messages)
        offered = tools_key(read_tools(conversation.tools) if conversation.tools else None)
    except RequestError:
        return {}  # rendering it will say what is wrong, and with which conversation
    keys = {turn.index: turn.key for turn in Conversation(speaker, messages).turns}
    rows = {}
    for index, sample in conversation.samples.items():
        record = records.get(sample)
        if record is None or (record.turn_key, record.tools_key) != (keys.get(index), offered):
            continue
        rows[index] = SampleRow(
            sample_id=f"{name}.{index}",
            prompt_ids=record.prompt_ids,
            completion_ids=record.completion_ids,
            completion_logprobs=(),
            given=True,  # whatever drew them, they are learned like any example
        )
    return rows


def cut_turns(renderer: ChatRenderer, conversation: SftConversation, row: RolloutRow) -> int:
    """Returns how many of its turns lost a part, because the chat format has no place for it.

    Some formats know no reasoning, some no text beside a call.
    """
    tools, cut = read_tools(conversation.tools) if conversation.tools else None, 0
    for sample in row.samples:
        message = conversation.messages[int(sample.sample_id.rpartition(".")[2])]
        thought, calls = message.get("reasoning_content"), message.get("tool_calls")
        if not thought and not (calls and message.get("content")):
            continue
        read = renderer.parse(sample.completion_ids, sample.prompt_ids, tools)
        cut += bool(thought and not read.reasoning) or bool(calls and not read.content)
    return cut


def assistant_rows(
    renderer: ChatRenderer,
    name: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    *,
    about: str,
    sampled: Mapping[int, SampleRow] = MappingProxyType({}),
) -> list[SampleRow]:
    """Returns the assistant's messages as rows. `sampled`: the rows of messages that were sampled.

    Rows of the others are called `name.index` and are `given`. Raises RequestError that says `about` what.
    """
    try:
        read, offered = read_messages(messages), read_tools(tools) if tools else None
        rows = _rows(renderer, name, read, offered, sampled)
        return [row for index, row in rows if _is_trained(messages[index])]
    except RequestError as error:
        message = f"{about}: {error}"
        raise RequestError(message, status=error.status, code=error.code, param=error.param) from error


def _rows(
    renderer: ChatRenderer,
    name: str,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    sampled: Mapping[int, SampleRow],
) -> Iterator[tuple[int, SampleRow]]:
    before: tuple[int, SampleRow] | None = None
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        row = sampled.get(index)
        if row is None:
            prompt, reason = _prompt(renderer, messages, index, tools, before)
            row = SampleRow(
                sample_id=f"{name}.{index}",
                prompt_ids=prompt,
                completion_ids=renderer.reply(prompt, message, tools),
                completion_logprobs=(),
                fork_reason=reason,
                given=True,
            )
        before = index, row
        yield index, row


def _is_trained(message: Mapping[str, Any]) -> bool:
    """OpenAI's fine-tuning files say `"weight": 0` of context. Raises RequestError for any but 0 and 1."""
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise RequestError(
            f"an assistant message has weight {weight!r}; it is 1 (trained, the default) or 0 (context only)",
            status=400,
            code="invalid_value",
            param="conversations",
        )
    return bool(weight)


def _prompt(
    renderer: ChatRenderer,
    messages: Sequence[Message],
    index: int,
    tools: Sequence[Tool] | None,
    before: tuple[int, SampleRow] | None,
) -> tuple[list[int], str | None]:
    """The ids before an assistant's message, and the reason where they do not extend the turn before."""
    if index == 0:
        return renderer.first_prompt(messages[0], tools), None
    if before is None:
        return renderer.render(messages[:index], tools), None
    answered, row = before
    new_messages = messages[answered + 1 : index]
    if not new_messages:
        return renderer.render(messages[:index], tools), NO_NEW_MESSAGE
    ids = renderer.bridge(row.prompt_ids, row.completion_ids, new_messages, tools)
    if ids is not None:
        return ids, None
    return renderer.render(messages[:index], tools), BRIDGE_REFUSED


_log = logging.getLogger(__name__)

SFT = resolve("sft")
_CANARIES = 8
_SHARES = frozenset({"data/fill"})
"""Numbers of data that are no counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Update:
    """A batch that trains something, and its place."""

    number: int
    batch: Batch
    rate: float


@dataclass(eq=False, kw_only=True)
class SftJob(StepJob):
    """Trains one step on what the assistant says in conversations."""

    kind: ClassVar[TrainingKind] = "sft"
    request: SftJobRequest
    max_length: int
    """Tokens of the longest conversation that the model can see."""

    @property
    def algorithm(self) -> Algorithm:
        """Returns what an update minimises."""
        return SFT

    def __post_init__(self) -> None:
        model = self.served.model.base_model
        self._sheet = BalanceSheet()
        self._speaker = speaker_of(model, tenant_of(self.job.project), self.renderer)
        self._seen: set[int] = set()
        self._cut = 0
        self._update_metrics: list[dict[str, float]] = []

    async def run(self) -> TrainResultInfo:
        if (before := await self.committed()) is not None:
            return before
        opened = await self.open()
        canary: Canary | None = None
        waiting: _Update | None = None  # until it is known whether it is the last one
        async for update in self._updates():
            if canary is None:
                canary = await self.canary(opened, canary_rows(await self.some_ids()))
            if waiting is not None:
                await self._train(opened, waiting, last=False)
            waiting = update
        if waiting is None or canary is None:
            return await self.carry_forward(opened.step, self._metrics(), self._sheet)
        await self._train(opened, waiting, last=True)
        return await self.finish(opened, canary, self._metrics(), self._sheet)

    def computed(self, step: int) -> ComputedStep:
        return super().computed(step).model_copy(update={"max_length": self.max_length})

    async def some_ids(self) -> Sequence[Sequence[int]]:
        first = self.request.batches[0][:_CANARIES]
        rows = await asyncio.to_thread(self._rows, first, await self._records(first))
        fitting = ([*one.prompt_ids, *one.completion_ids] for row in rows for one in row.samples)
        return [ids for ids in fitting if len(ids) <= self.max_length]

    async def report_progress(self, done: int, total: int) -> None:
        """Progress is told in batches: their sizes are not known before they are rendered."""

    async def _updates(self) -> AsyncIterator[_Update]:
        """The batches of which something is trained, in their order."""
        number = 0
        for indices, rate in zip(self.request.batches, self.request.learning_rates, strict=True):
            batch = await asyncio.to_thread(self._build, indices, await self._records(indices))
            self._sheet = add_sheets(self._sheet, batch.sheet)
            if not batch.empty:
                yield _Update(number=number, batch=batch, rate=rate)
                number += 1

    async def _records(self, indices: Sequence[int]) -> dict[str, SampleRecord]:
        """Returns the ledger's records of the samples that a batch's messages name."""
        conversations = [self.request.conversations[index] for index in indices]
        ids = dict.fromkeys(one for each in conversations for one in each.samples.values())
        return await self.ledger.known(list(ids), tenant=tenant_of(self.job.project)) if ids else {}

    def _build(self, indices: Sequence[int], records: Mapping[str, SampleRecord]) -> Batch:
        return self.lay_out(indices, self._rows(indices, records))

    def lay_out(self, indices: Sequence[int], rows: Sequence[RolloutRow]) -> Batch:
        """Makes the batch of an update of its conversations, in their order; `indices`: their places in the
        request. A kind of an extension has a way of its own, and of `learn`.
        """
        groups = [GroupRow(rollouts=[row]) for row in rows]
        return build_batch(groups, algorithm=self.algorithm, max_length=self.max_length)

    async def learn(self, opened: TrainedModel, batch: Batch, request: TrainRequest) -> TrainEvent:
        """Has the trainer make the update. Raises TrainingError, WorkerError."""
        return await opened.trainer.train(encode_batch(batch, request), self.report_progress)

    def _rows(self, indices: Sequence[int], records: Mapping[str, SampleRecord]) -> list[RolloutRow]:
        """Conversations of one batch; the same one may come twice in it."""
        conversations = self.request.conversations
        rows = []
        for place, index in enumerate(indices):
            name = f"c{index}.{place}"
            exact = exact_rows(conversations[index], name, records, self._speaker)
            row = conversation_row(self.renderer, conversations[index], name, exact)
            if index not in self._seen:
                self._seen.add(index)
                self._cut += cut_turns(self.renderer, conversations[index], row)
            rows.append(row)
        return rows

    async def _train(self, opened: TrainedModel, update: _Update, *, last: bool) -> None:
        step, batch = opened.step, update.batch
        request = TrainRequest(
            model=self.served.model.key,
            step=step,
            update=update.number,
            advance=last,
            kind=self.kind,
            algorithm=self.algorithm,
            optimizer=self.request.optimizer,
            rate=update.rate,
            normalizer=batch.normalizer,
            sampling=list(batch.sampling),
        )
        await self.progress("training", done=update.number, total=len(self.request.batches))
        await self.served.workers.rest()
        with self.served.clock.part("gradient"):
            result = await self.learn(opened, batch, request)
        expected = step + 1 if last else step
        if result.step != expected:
            raise TrainingError(
                f"the trainer is at step {result.step} after update {update.number} of step {step + 1}; it "
                f"should be at {expected}"
            )
        self._update_metrics.append({**batch.metrics, **result.metrics})

    def _metrics(self) -> dict[str, float]:
        """Returns the metrics of all updates: means of losses and rates, sums of counts, the peak of
        memory.
        """
        dropped = self._sheet.fates.get("overlong", SheetRow()).rollouts
        names = dict.fromkeys(chain.from_iterable(self._update_metrics))
        metrics = {
            name: _merged_metrics(name, [one[name] for one in self._update_metrics if name in one])
            for name in names
        }
        if self._cut:
            _log.warning(
                "job %s: %d turns lost a part that the chat format cannot say", self.job.job_id, self._cut
            )
        return {
            **metrics,
            "data/step_num_dropped_trajectories": float(dropped),
            "data/step_num_cut_turns": float(self._cut),
        }


def _merged_metrics(name: str, values: Sequence[float]) -> float:
    if name.startswith("memory/"):
        return max(values)
    summed = name.startswith(("data/", "time/")) and name not in _SHARES
    return sum(values) if summed else sum(values) / len(values)
