"""One supervised job, from messages to the served step: an update for each batch, one step in all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from art.algorithms import resolve
from art.errors import TrainingError
from art.rendering.chat import ChatRenderer
from art.samples.batch import build_batch
from art.samples.encode import encode_batch
from art.samples.sheet import add_sheets
from art.samples.types import Batch, GroupRow, RolloutRow
from art.server.checkpoints.canary import canary_rows
from art.server.checkpoints.promote import Progress, Stage
from art.server.jobs.sft_rows import conversation_row, cut_turns, exact_rows
from art.server.jobs.step import StepJob
from art.server.jobs.store import Job
from art.server.ledger.ledger import Ledger
from art.server.ledger.schema import SampleRecord
from art.server.ledger.stitching import speaker_of
from art.server.tenants.tenancy import tenant_of
from art.server.workers.trainer_client import OpenModel
from art.wire.jobs import BalanceSheet, SheetRow, TrainResultInfo
from art.wire.sft import SftJobRequest
from art.wire.training import TrainRequest

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


class SftJob(StepJob):
    """Trains one step on what the assistant says in conversations."""

    def __init__(
        self,
        job: Job,
        request: SftJobRequest,
        *,
        stage: Stage,
        progress: Progress,
        ledger: Ledger,
        renderer: ChatRenderer,
        max_length: int,
    ) -> None:
        """`max_length`: tokens of the longest conversation that the model can see."""
        super().__init__(job, stage=stage, progress=progress)
        self.request = request
        self.ledger = ledger
        self.renderer = renderer
        self.max_length = max_length
        self._sheet = BalanceSheet()
        self._speaker = speaker_of(stage.model.base_model, tenant_of(job.project), renderer)
        self._seen: set[int] = set()
        self._cut = 0
        self._told: list[dict[str, float]] = []

    async def make_step(self) -> TrainResultInfo:
        opened = await self.open()
        canary = await self.canary(opened, canary_rows(await self.some_ids()))
        waiting: _Update | None = None  # until it is known whether it is the last one
        async for update in self._updates():
            if waiting is not None:
                await self._train(opened, waiting, last=False)
            waiting = update
        if waiting is None:
            return await self.carry_forward(opened.step, canary, self._metrics(), self._sheet)
        await self._train(opened, waiting, last=True)
        return await self.finish(opened, canary, self._metrics(), self._sheet)

    async def some_ids(self) -> Sequence[Sequence[int]]:
        first = self.request.batches[0][:_CANARIES]
        rows = await asyncio.to_thread(self._rows, first, await self._records(first))
        fitting = ([*one.prompt_ids, *one.completion_ids] for row in rows for one in row.samples)
        return [ids for ids in fitting if len(ids) <= self.max_length]

    async def tell(self, done: int, total: int) -> None:
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
        """What the ledger knows of the samples that a batch's messages say they are."""
        conversations = [self.request.conversations[index] for index in indices]
        ids = dict.fromkeys(one for each in conversations for one in each.samples.values())
        return await self.ledger.known(list(ids), tenant=tenant_of(self.job.project)) if ids else {}

    def _build(self, indices: Sequence[int], records: Mapping[str, SampleRecord]) -> Batch:
        rows = self._rows(indices, records)
        return build_batch(
            [GroupRow(rollouts=[row]) for row in rows], algorithm=SFT, max_length=self.max_length
        )

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

    async def _train(self, opened: OpenModel, update: _Update, *, last: bool) -> None:
        step, batch = opened.step, update.batch
        request = TrainRequest(
            model=self.stage.model.key,
            step=step,
            update=update.number,
            advance=last,
            kind="sft",
            algorithm=SFT,
            optimizer=self.request.optimizer,
            rate=update.rate,
            normalizer=batch.normalizer,
            sampling=list(batch.sampling),
        )
        await self.progress("training", done=update.number, total=len(self.request.batches))
        result = await self.follow(opened, encode_batch(batch, request))
        expected = step + 1 if last else step
        if result.step != expected:
            raise TrainingError(
                f"the trainer is at step {result.step} after update {update.number} of step {step + 1}; it "
                f"should be at {expected}"
            )
        self._told.append({**batch.metrics, **result.metrics})

    def _metrics(self) -> dict[str, float]:
        """Of all updates: losses and rates in the mean, what is counted in sum, memory at its peak."""
        dropped = self._sheet.fates.get("overlong", SheetRow()).rollouts
        names = dict.fromkeys(chain.from_iterable(self._told))
        metrics = {name: _together(name, [one[name] for one in self._told if name in one]) for name in names}
        if self._cut:
            _log.warning(
                "job %s: %d turns lost a part that the chat format cannot say", self.job.job_id, self._cut
            )
        return {
            **metrics,
            "data/step_num_dropped_trajectories": float(dropped),
            "data/step_num_cut_turns": float(self._cut),
        }


def _together(name: str, values: Sequence[float]) -> float:
    if name.startswith("memory/"):
        return max(values)
    summed = name.startswith(("data/", "time/")) and name not in _SHARES
    return sum(values) if summed else sum(values) / len(values)
