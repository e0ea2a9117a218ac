"""What the record of a step costs: CPU of a training step with it and without it, in one process.

A step is everything from the loss entries to the moved weights, by the trainer itself. With the record it
also holds what the server does: write the line of each rollout, encode the columns of tokens, join them
with samples and rollouts, write the file and delete an old one. The two take turns in an order drawn by
lot; CPU is that of the process, so that other work on the machine says little. The figure is the median
over pairs, with the bootstrap interval of that median. It is smaller than its noise, so the record's own
parts are timed alone, too.

The nano model is the hardest case: its steps are the cheapest of all for each token.

Entropies are part of every step, since `loss/entropy` needs them: they are measured against `logsumexp` and
a softmax of its own, as a plain implementation has them.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.numpy import save as save_arrays
from transformers.utils import logging as transformers_logging

from art.batch.batch_types import GroupRow
from art.batch.build import build_batch
from art.process.resources import keep_freed_memory
from art.server.jobs.step_files import (
    delete_old_tokens,
    rollout_records,
    write_rollouts,
    write_tokens,
)
from art.tracking.step_record import read_tokens
from art.training.logprobs import row_figures
from art.training.policy import load_policy
from art.training.tally import TokenRecord
from art.training.trainer import Trainer
from art.wire.jobs import TrainGroup, TrainJobRequest, TrainTrajectory
from art.wire.rollout_record import JudgeNote, RolloutNotes
from art.wire.training import ComputeSpec, LoraSpec, OptimizerSpec, RecordTokens, TrainRequest
from bench.corpora import VOCABULARY, single_turn, tool_use
from bench.models import NANO, SMALL, Shape, qwen3, save_model
from bench.rows import Row, write_rows
from bench.serving.overhead import interval

MODEL = "bench/tokens"
MOST = 2.0
"""Per cent of a step."""
KEPT_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and a batch."""

    name: str
    shape: Shape
    corpus: Callable[[], list[GroupRow]]
    pairs: int


CASES = (
    Case(name="nano model, single turn", shape=NANO, corpus=lambda: single_turn(groups=32), pairs=30),
    Case(name="3 M model, 6-turn tool use", shape=SMALL, corpus=lambda: tool_use(groups=4), pairs=6),
)


class RecordedSteps:
    """A trainer that makes one step after the other from one batch."""

    def __init__(self, model: Path, rows: Sequence[GroupRow], folder: Path) -> None:
        self._trainer = Trainer(load_policy(str(model), name="bench"))
        self._trainer.open(MODEL, LoraSpec(), seed=0)
        self._rows, self._batch, self.folder = rows, build_batch(rows), folder
        self._job = job_of(rows)
        self.step, self.recording, self.lines = 0, 0.0, 0.0

    @property
    def entries(self) -> int:
        """Loss entries of a step."""
        return len(self._batch.entries)

    def make(self, record: RecordTokens) -> float:
        """CPU seconds of a step."""
        begin = time.process_time()
        batch = self._batch
        request = TrainRequest(
            model=MODEL,
            step=self.step,
            optimizer=OptimizerSpec(learning_rate=1e-5),
            normalizer=batch.normalizer,
            compute=ComputeSpec(record_tokens=record),
        )
        self._trainer.train(batch.tree, batch.entries, request)
        self.step += 1
        if record != "none":
            trained = time.process_time()
            self._keep()
            self.recording = time.process_time() - trained
        return time.process_time() - begin

    def _keep(self) -> None:
        begin = time.process_time()
        records = rollout_records(self._job, self._rows, self._batch)
        write_rollouts(self.folder, self.step, records)
        self.lines = time.process_time() - begin
        body = save_arrays(dict(self._trainer.token_columns(MODEL, self.step - 1)))
        write_tokens(self.folder, body, self._batch.samples, self._job, self.step)
        delete_old_tokens(self.folder, self.step - KEPT_STEPS)

    def fill_seconds(self, micro_batches: int) -> float:
        """CPU of writing all columns once, in so many parts."""
        entries = self._batch.entries
        like_E = torch.as_tensor(entries.logprob_E)
        rows_E = torch.arange(len(entries)).numpy()
        begin = time.process_time()
        record = TokenRecord(entries.logprob_E, like_E, [rows_E], all_columns=True)
        flags_E = like_E < -1
        for part_E in torch.arange(len(entries)).tensor_split(micro_batches):
            value_E, flag_E = like_E[part_E], flags_E[part_E]
            record.fill(0, part_E.numpy(), logprob=value_E, ratio=value_E, clipped=flag_E, masked=flag_E)
            record.fill(0, part_E.numpy(), entropy=value_E)
        record.arrays(torch.as_tensor(entries.advantage_E))
        return time.process_time() - begin


def case_rows(case: Case, folder: Path) -> list[Row]:
    model = save_model(qwen3(case.shape, vocabulary=VOCABULARY, positions=8192), folder / "model")
    steps = RecordedSteps(model, case.corpus(), folder / "steps")
    draw, pairs, recording, lines = random.Random(0), [], [], []
    for kind in ("none", "all"):
        steps.make(kind)  # type: ignore[arg-type]  # warms up
    for _ in range(case.pairs):
        order: list[RecordTokens] = ["none", "all"]
        draw.shuffle(order)
        seconds = {kind: steps.make(kind) for kind in order}
        pairs.append((seconds["all"], seconds["none"]))
        recording.append(steps.recording)
        lines.append(steps.lines)
    share = 100 * statistics.median(lines) / statistics.median(without for _, without in pairs)
    rollouts = Row(name=f"{case.name}: of these, the lines of the rollouts", ours=share, unit="% of a step")
    return [*cost_rows(case, pairs, recording, steps), rollouts, *size_rows(case, steps, steps.entries)]


def job_of(rows: Sequence[GroupRow]) -> TrainJobRequest:
    """The job that a program would send for these groups, with what it notes of each rollout."""
    notes = RolloutNotes(
        scenario="scenario 17",
        reward_parts={"turns": 6.0, "right": 1.0, "duration": 4.2},
        judge=JudgeNote(name="judge", words="It found the document and named it. " * 8, order=3, score=0.75),
        started_at=1e9,
        seconds=4.2,
    )
    groups = [
        TrainGroup(
            trajectories=[
                TrainTrajectory(
                    rollout=one.rollout,
                    reward=one.reward,
                    samples=[sample.sample_id for sample in one.samples],
                    notes=notes,
                )
                for one in group.rollouts
            ]
        )
        for group in rows
    ]
    return TrainJobRequest(job_id="bench", groups=groups, optimizer=OptimizerSpec(learning_rate=1e-5))


def cost_rows(
    case: Case, pairs: Sequence[tuple[float, float]], recording: Sequence[float], steps: RecordedSteps
) -> list[Row]:
    plain = statistics.median(without for _, without in pairs)
    added = [100 * (recorded - without) / without for recorded, without in pairs]
    low, high = interval(added)
    filled = statistics.median(steps.fill_seconds(8) for _ in range(9))
    parts = 100 * (statistics.median(recording) + filled) / plain
    return [
        Row(name=f"{case.name}: CPU of a step without the record", ours=1000 * plain, unit="ms"),
        Row(name=f"{case.name}: the record's parts, timed alone", ours=parts, unit="% of a step", goal=MOST,
            at_most=True),
        Row(name=f"{case.name}: with against without, median of pairs ({low:.1f} to {high:.1f})",
            ours=statistics.median(added), unit="% of a step", goal=MOST, at_most=True),
    ]  # fmt: skip


def size_rows(case: Case, steps: RecordedSteps, entries: int) -> list[Row]:
    files = sorted(steps.folder.glob("*/tokens.safetensors"))
    if len(files) > KEPT_STEPS:
        raise SystemExit(f"{len(files)} files are left of {KEPT_STEPS} that are to be kept")
    begin = time.process_time()
    table = read_tokens(files[-1])
    read = time.process_time() - begin
    if table is None or len(table) != entries:
        raise SystemExit(f"{files[-1]} does not hold the {entries} entries of the step")
    size = files[-1].stat().st_size / entries
    return [
        Row(name=f"{case.name}: bytes of the file for a token ({entries} tokens)", ours=size, unit="B"),
        Row(name=f"{case.name}: CPU of reading the file", ours=1000 * read, unit="ms"),
    ]


def entropy_rows() -> list[Row]:
    """Norms and entropies of 8,192 rows of a nano vocabulary, and of a chunk of a large one."""
    rows = []
    for count, vocabulary in ((8192, VOCABULARY), (110, 151_936)):
        logits = torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(0))
        pairs = [(_cpu(row_figures, logits), _cpu(_with_two_exp, logits)) for _ in range(15)]
        ours, peer = (statistics.median(side) for side in zip(*pairs, strict=True))
        name = f"norms and entropies of {count:,} rows of {vocabulary:,} logits, against two exp"
        rows.append(Row(name=name, ours=1000 * ours, peer=1000 * peer, unit="ms", ratio=peer / ours))
    return rows


def _with_two_exp(logits_CV: torch.Tensor) -> torch.Tensor:
    norm_C = logits_CV.logsumexp(-1)
    return norm_C - (logits_CV - norm_C[:, None]).exp_().mul_(logits_CV).sum(-1)


def _cpu(compute: Callable[[torch.Tensor], object], logits: torch.Tensor) -> float:
    begin = time.process_time()
    compute(logits)
    return time.process_time() - begin


def main() -> None:
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    keep_freed_memory()  # as the trainer's process does
    torch.set_num_threads(1)
    rows = entropy_rows()
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
            rows += case_rows(case, Path(name))
    write_rows("tokens", rows)


if __name__ == "__main__":
    main()
