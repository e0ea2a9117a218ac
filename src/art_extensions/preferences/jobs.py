"""The jobs of preferences on the server: which conversations belong together, and the sign of each.

    dpo           chosen, rejected                                  +1 -1
    reward_model  chosen with "1", "0", rejected with "1", "0"      +1 -1 -1 +1, the first token of each
    kto           one conversation each                             + its weight, or - its weight

All of a pair is one rollout: its prompt is one path of the tree, and it is trained, or left out, as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from pydantic import Field, ValidationError

from art.batch.algorithms import check_algorithm
from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.errors import RequestError
from art.server.checkpoints.reference_adapter import reference_folder
from art.server.jobs.sft_job import SftJob
from art.server.workers.trainer_worker import TrainedModel
from art.wire.algorithm import Algorithm
from art.wire.jobs import ExtensionJobRequest, TrainResultInfo
from art.wire.records import Strict, first_flaw
from art.wire.training import TrainEvent, TrainRequest

_SIDES = tuple(
    f"objective/{side}_{what}" for side in ("chosen", "rejected") for what in ("reward", "logprob")
)
"""Metrics of one side of a pair, or of replies with one label."""


class KtoOptions(Strict):
    """The labels of a job's conversations."""

    desirable: list[int]
    """The indices of those that are desirable; all others are not."""
    desirable_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    undesirable_weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


def signed_batch(
    rollouts: Sequence[RolloutRow],
    signs: Mapping[str, float],
    algorithm: Algorithm,
    max_length: int | None = None,
) -> Batch:
    """Returns the batch of rollouts, with the sign of each sample as the advantage of its tokens."""
    batch = build_batch(
        [GroupRow(rollouts=[one]) for one in rollouts], algorithm=algorithm, max_length=max_length
    )
    sign_E = [np.full(one.tokens, signs[one.sample_id], np.float32) for one in batch.samples]
    advantage_E = np.concatenate([np.zeros(0, np.float32), *sign_E])
    return replace(batch, entries=replace(batch.entries, advantage_E=advantage_E))


@dataclass(eq=False, kw_only=True)
class PreferenceJob(SftJob):
    """The part that all jobs of preferences share. Raises RequestError for a batch that is none of theirs."""

    kind = "preference"
    request: ExtensionJobRequest
    LOSS: ClassVar[str]
    SIGNS: ClassVar[Sequence[int]]
    """The signs of the conversations of one rollout, in their order in a batch."""

    @property
    def algorithm(self) -> Algorithm:
        return self.request.algorithm

    async def run(self) -> TrainResultInfo:
        self.check()
        return await super().run()

    def check(self) -> None:
        """Raises RequestError, and ConfigurationError for parts that do not fit each other."""
        check_algorithm(self.algorithm)
        if self.algorithm.loss.name != self.LOSS:
            raise self.refusal(f"its loss is {self.LOSS!r}, not {self.algorithm.loss.name!r}", "algorithm")
        size = len(self.SIGNS)
        for number, batch in enumerate(self.request.batches):
            if len(batch) % size:
                raise self.refusal(
                    f"batch {number} has {len(batch)} conversations, not {size} a pair", "batches"
                )

    def refusal(self, problem: str, param: str) -> RequestError:
        """A refusal of this job's request."""
        message = f"job {self.request.job!r}: {problem}"
        return RequestError(message, status=400, code="invalid_preferences", param=param)

    def lay_out(self, indices: Sequence[int], rows: Sequence[RolloutRow]) -> Batch:
        size, signs, together = len(self.SIGNS), dict[str, float](), []
        for at in range(0, len(rows), size):
            names = [self.request.conversations[index].name for index in indices[at : at + size]]
            parts = self.parts(rows[at : at + size], names)
            for part, sign in zip(parts, self.SIGNS, strict=True):
                signs |= {row.sample_id: float(sign) for row in part}
            samples = [row for part in parts for row in part]
            together.append(RolloutRow(rollout=rows[at].rollout, reward=0.0, samples=samples))
        return signed_batch(together, signs, self.algorithm, self.max_length)

    def parts(self, rows: Sequence[RolloutRow], names: Sequence[str]) -> Sequence[Sequence[SampleRow]]:
        """Returns what is trained of each conversation of a rollout; `names`: the client's for them.

        Raises RequestError where sides are the same tokens.
        """
        return [row.samples for row in rows]

    async def learn(self, opened: TrainedModel, batch: Batch, request: TrainRequest) -> TrainEvent:
        folder = reference_folder(self.algorithm, self.served.checkpoints)
        reference = await opened.trainer.find_reference(folder)
        return await super().learn(opened, batch, request.model_copy(update={"reference": reference}))


@dataclass(eq=False, kw_only=True)
class DpoJob(PreferenceJob):
    """Trains on pairs, against a reference."""

    LOSS = "preference"
    SIGNS = (1, -1)

    def parts(self, rows: Sequence[RolloutRow], names: Sequence[str]) -> Sequence[Sequence[SampleRow]]:
        chosen, rejected = ([[*one.prompt_ids, *one.completion_ids] for one in row.samples] for row in rows)
        if chosen == rejected:
            raise self.refusal(
                f"{names[0]} and {names[1]} are the same tokens in the model's chat format", "conversations"
            )
        return super().parts(rows, names)


@dataclass(eq=False, kw_only=True)
class RewardModelJob(PreferenceJob):
    """Trains the answer to a question behind each conversation: -log sigmoid(score of chosen - of rejected).

    A score is log p("1") - log p("0") right behind the prompt, the difference of two logits: of the first
    tokens in which the two answers differ, whatever the chat format puts before an answer.
    """

    LOSS = "preference"
    SIGNS = (1, -1, -1, 1)

    def parts(self, rows: Sequence[RolloutRow], names: Sequence[str]) -> Sequence[Sequence[SampleRow]]:
        (good,), (bad,) = rows[0].samples, rows[1].samples
        answers = zip(good.completion_ids, bad.completion_ids, strict=False)
        place = next((at for at, (one, other) in enumerate(answers) if one != other), None)
        if place is None:
            raise self.refusal(
                f"{names[0]} and {names[1]} are the same tokens in the model's chat format", "conversations"
            )
        return [
            [replace(one, completion_ids=one.completion_ids[place : place + 1]) for one in row.samples]
            for row in rows
        ]

    async def learn(self, opened: TrainedModel, batch: Batch, request: TrainRequest) -> TrainEvent:
        event = await super().learn(opened, batch, request)
        metrics = {name: value for name, value in event.metrics.items() if name not in _SIDES}
        return event.model_copy(update={"metrics": metrics})


@dataclass(frozen=True, kw_only=True, slots=True)
class KtoBatch(Batch):
    """A batch of labelled replies, and one of its prompts with the reply before instead of their own."""

    mismatched: Batch


@dataclass(eq=False, kw_only=True)
class KtoJob(PreferenceJob):
    """Trains on labelled replies, against a reference and a reference point.

    The point is max(0, mean of d) over mismatched replies: each prompt with the first reply of the
    conversation before it in the batch. They are scored under the weights before the update, and no gradient
    flows through them.
    """

    LOSS = "kto"
    SIGNS = (1,)

    @cached_property
    def options(self) -> KtoOptions:
        """The checked options. Raises RequestError."""
        try:
            return KtoOptions.model_validate_json(json.dumps(self.request.options))
        except ValidationError as error:
            raise self.refusal(str(first_flaw(error)), "options") from error

    def check(self) -> None:
        super().check()
        count = len(self.request.conversations)
        if wrong := [index for index in self.options.desirable if not 0 <= index < count]:
            raise self.refusal(f"conversation {wrong[0]} of {count} is desirable", "options.desirable")
        for number, batch in enumerate(self.request.batches):
            if len(set(batch)) < 2:
                raise self.refusal(
                    f"batch {number} has one conversation, and mismatched replies take two", "batches"
                )

    @cached_property
    def _desirable(self) -> frozenset[int]:
        return frozenset(self.options.desirable)

    def lay_out(self, indices: Sequence[int], rows: Sequence[RolloutRow]) -> Batch:
        options, desirable = self.options, self._desirable
        weights = {
            sample.sample_id: options.desirable_weight if index in desirable else -options.undesirable_weight
            for index, row in zip(indices, rows, strict=True)
            for sample in row.samples
        }
        own = signed_batch(rows, weights, self.algorithm, self.max_length)
        swapped = mismatched_rows(rows)
        alike = {row.samples[0].sample_id: 1.0 for row in swapped}
        mismatched = signed_batch(swapped, alike, self.algorithm, self.max_length)
        parts = {name: getattr(own, name) for name in Batch.__dataclass_fields__}
        return KtoBatch(**parts, mismatched=mismatched)

    async def learn(self, opened: TrainedModel, batch: Batch, request: TrainRequest) -> TrainEvent:
        assert isinstance(batch, KtoBatch)
        point = 0.0
        if not batch.mismatched.empty:
            scored = await self._score(opened, batch.mismatched, request)
            point = max(0.0, scored.metrics["objective/log_ratio"])
        params = {**self.algorithm.loss.params, "reference_point": point}
        loss = self.algorithm.loss.model_copy(update={"params": params})
        algorithm = self.algorithm.model_copy(update={"loss": loss})
        event = await super().learn(opened, batch, request.model_copy(update={"algorithm": algorithm}))
        metrics = {**_of_each_label(event.metrics), "objective/reference_point": point}
        return event.model_copy(update={"metrics": metrics})

    async def _score(self, opened: TrainedModel, batch: Batch, request: TrainRequest) -> TrainEvent:
        """Has the trainer score a batch that moves nothing."""
        update = {"gradient": "none", "update": 0, "normalizer": batch.normalizer}
        scoring = request.model_copy(update={**update, "sampling": list(batch.sampling)})
        return await super().learn(opened, batch, scoring)


def _of_each_label(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics with means over the replies of each label, not shares of the whole batch."""
    share = metrics["objective/desirable"]
    parts = {name: share if "chosen" in name else 1 - share for name in _SIDES}
    return {name: value / parts.get(name, 1.0) for name, value in metrics.items() if parts.get(name, 1.0) > 0}


def mismatched_rows(rows: Sequence[RolloutRow]) -> list[RolloutRow]:
    """Returns the first prompt of each conversation with the first reply of the one before it; the first has
    the reply of the last.
    """
    return [_with_reply(row, rows[at - 1].samples[0]) for at, row in enumerate(rows)]


def _with_reply(row: RolloutRow, reply: SampleRow) -> RolloutRow:
    first = row.samples[0]
    sample = replace(
        first, sample_id=f"{first.sample_id}.swapped", completion_ids=reply.completion_ids, fork_reason=None
    )
    return RolloutRow(rollout=row.rollout, reward=0.0, samples=[sample])
