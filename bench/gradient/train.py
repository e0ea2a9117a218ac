"""Loss and backward of one batch against TRL's `GRPOTrainer`: the same model, adapter, rollouts and loss.

A random Qwen3 of 3.2 million parameters with a LoRA of rank 16 on all linear layers, float32, one thread a
side. TRL runs in its own environment and process (`bench/trl/step_worker.py`), we in this one; the two take
turns, never at the same time, and the ratio is the median of the turns' ratios.

What each side's clock holds. TRL: `compute_loss` and `accelerator.backward` over its micro-batches;
generating, scoring, padding and shuffling the rollouts are left out. Ours: everything from the ledger's rows
to the gradient: checks, advantages, tree, plan, forward, loss, backward.

What makes it fair. The loss is the clipped surrogate, averaged over all tokens (TRL's default, "dapo"), with
advantages `reward - mean` on both sides and logprobs recorded with the very same weights. Rewards are such
that every rollout has an advantage: we leave out those that have none, TRL forwards and counts them. TRL's
activation checkpointing (its default) is off: it would cost a forward pass that we do not make. TRL keeps
its own padding: all rows of a batch are as long as its longest prompt and its longest completion. Before any
clock starts, the gradients of both sides are compared: cosine over all LoRA parameters, and length.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from crosscheck import environment
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

from art.batch.batch_types import GroupRow
from art.engine.nano_models import resolve
from art.process.resources import keep_freed_memory
from bench.corpora import VOCABULARY, Writer, single_turn
from bench.gradient.our_steps import OurSteps
from bench.models import SMALL, qwen3, save_adapter, save_model
from bench.rows import Row, write_rows
from bench.trl.steps import TrlSteps, rollout_rows, trl_steps, turn_rows

REPETITIONS = 3
ROWS_AT_ONCE = 4
"""TRL's `per_device_train_batch_size`: the fastest of 1, 2, 4, 8 and 16 (2 to 8 are alike)."""
COSINE, LENGTH = 0.9999, 0.005


def tool_use(seed: int = 0, *, groups: int = 2, size: int = 8, turns: int = 6) -> list[GroupRow]:
    """Groups of 8 rollouts of 6 turns: about 40 sampled ids and a tool's 60, behind a prompt of 200."""
    writer = Writer(seed)
    prompts = [writer.ids(writer.about(200, 0.4)) for _ in range(groups)]
    return [
        GroupRow(rollouts=[writer.turns(prompt, turns, 40, 60) for _ in range(size)]) for prompt in prompts
    ]


def one_long_prompt(seed: int = 0) -> list[GroupRow]:
    """One group of 16 answers of about 64 ids to a prompt of 4,096."""
    writer = Writer(seed)
    prompt = writer.ids(4096)
    answers = [writer.ids(writer.about(64)) for _ in range(16)]
    return [GroupRow(rollouts=[writer.rollout([writer.sample(prompt, answer)]) for answer in answers])]


def nothing_shared(seed: int = 0, *, groups: int = 3) -> list[GroupRow]:
    """Every row has a prompt of its own of about 256 ids, and an answer of about 64."""
    writer = Writer(seed)
    rows = []
    for _ in range(groups):
        pairs = [(writer.ids(writer.about(256, 0.4)), writer.ids(writer.about(64))) for _ in range(8)]
        rows.append(GroupRow(rollouts=[writer.rollout([writer.sample(*pair)]) for pair in pairs]))
    return rows


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One row of the table."""

    name: str
    corpus: Callable[[], list[GroupRow]]
    goal: float
    one_row_per_turn: bool = False
    repetitions: int = REPETITIONS


COMPARISONS = (
    Comparison(name="6-turn tool use, one row per rollout", corpus=tool_use, goal=2.2),
    Comparison(
        name="single turn, groups of 8, prompt 4x the answer",
        corpus=lambda: single_turn(groups=4),
        goal=3.5,
    ),
    Comparison(
        name="6-turn tool use, one row per turn",
        corpus=lambda: tool_use(groups=1),
        goal=6.0,
        one_row_per_turn=True,
        repetitions=1,
    ),
    Comparison(
        name="one group of 16, prompt of 4k",
        corpus=one_long_prompt,
        goal=20.0,
        repetitions=1,
    ),
    Comparison(name="nothing shared", corpus=nothing_shared, goal=1.3),
)


def compare(comparison: Comparison, ours: OurSteps, model: Path, adapter: Path, folder: Path) -> list[Row]:
    groups = ours.recorded(comparison.corpus())
    as_rows = turn_rows if comparison.one_row_per_turn else rollout_rows
    job = {
        "model": str(model),
        "adapter": str(adapter),
        "tokenizer": str(resolve("art/nano-games")),
        "rows_at_once": ROWS_AT_ONCE,
        "groups": as_rows(groups),
    }
    unpadded = sum(
        len(row["prompt_ids"]) + len(row["completion_ids"]) for rows in job["groups"] for row in rows
    )
    folder.mkdir()
    with trl_steps(job, folder) as theirs:
        cosine = same_gradient(comparison.name, ours, theirs, groups, folder / "gradients.safetensors")
        return [*timed(comparison, ours, theirs, groups, unpadded), cosine]


def same_gradient(name: str, ours: OurSteps, theirs: TrlSteps, groups: list[GroupRow], path: Path) -> Row:
    """Compare one gradient of each side, which also warms both up. Ends the benchmark when they differ."""
    theirs.step(gradients=path)
    ours.step(groups)
    cosine, length = directions(ours.gradient, load_file(str(path)))
    if cosine < COSINE or abs(length - 1) > LENGTH:
        raise SystemExit(f"{name}: the gradients differ: cosine {cosine:.7f}, lengths as {length:.5f} to 1")
    return Row(name=f"{name}: cosine of the gradients", ours=cosine, unit="", goal=COSINE)


def directions(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> tuple[float, float]:
    """Cosine over all parameters, and our length divided by theirs."""
    if set(ours) != set(theirs):
        raise SystemExit(f"the sides have other parameters: {sorted(set(ours) ^ set(theirs))[:4]}")
    names = sorted(ours)
    a = torch.cat([ours[name].double().flatten() for name in names])
    b = torch.cat([theirs[name].double().flatten() for name in names])
    return float(a @ b / (a.norm() * b.norm())), float(a.norm() / b.norm())


def timed(
    comparison: Comparison, ours: OurSteps, theirs: TrlSteps, groups: list[GroupRow], unpadded: int
) -> list[Row]:
    """unpadded: tokens of the peer's rows. Its tokens / ours = what padding adds x what is shared."""
    pairs = [(ours.step(groups), theirs.step()) for _ in range(comparison.repetitions)]
    rollouts = sum(len(group.rollouts) for group in groups)
    tree, padded = pairs[0][0].tokens, pairs[0][1].tokens

    def tokens(what: str, less: int, more: int) -> Row:
        name = f"{comparison.name}: tokens, {what}"
        return Row(name=name, ours=less, peer=more, unit="tokens", ratio=more / less)

    return [
        Row(
            name=comparison.name,
            ours=statistics.median(rollouts / mine.seconds for mine, _ in pairs),
            peer=statistics.median(rollouts / other.seconds for _, other in pairs),
            unit="rollouts/s",
            ratio=statistics.median(other.seconds / mine.seconds for mine, other in pairs),
            goal=comparison.goal,
        ),
        tokens("forwarded, tree against padded rows", tree, padded),
        tokens("of which padding: rows against padded rows", unpadded, padded),
        tokens("of which sharing: tree against rows", tree, unpadded),
    ]


def main() -> None:
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")  # PEFT's call, not ours
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    environment.python("trl")  # made before anything is timed
    keep_freed_memory()  # as the trainer's process does
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        folder = Path(name)
        model = save_model(qwen3(SMALL, vocabulary=VOCABULARY, positions=8192), folder / "model")
        adapter = save_adapter(model, folder / "adapter")
        ours = OurSteps(model, adapter)
        rows = []
        for number, comparison in enumerate(COMPARISONS):
            rows += compare(comparison, ours, model, adapter, folder / str(number))
    write_rows("train", rows)


if __name__ == "__main__":
    main()
