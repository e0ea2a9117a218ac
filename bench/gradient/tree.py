"""The token tree against plain rows: tokens forwarded, time of forward and backward, on tic-tac-toe games.

16 groups of 16 games, random moves against random moves, as token ids: a shared prompt of 30 ids, then turns
of 5 sampled ids and a board of 20. Games share what their moves share. The model has the shape of
art/nano-games with random weights and a LoRA of rank 16.

Plain rows are what a good trainer without sharing does: one row per game (not per turn), sorted by length,
padded on the right, logits of the predicting tokens only. Both sides run in this process in turns, with one
thread and the same loss; the ratio is the median of the repetitions' ratios.
"""

from __future__ import annotations

import statistics
import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.training.attention.interface import NAME, register
from art.training.attention.tree_plan import plan_attention
from art.training.logprobs import target_logprobs
from art.training.lora import LoraAdapters
from art.training.losses.base import LossInputs
from art.training.losses.registry import make_loss
from art.training.minibatches import make_columns
from art.training.packing.pack import pack
from art.training.packing.runs import Packing
from art.training.policy import Policy
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec
from bench.models import NANO, qwen3
from bench.rows import Row, write_rows

GROUPS, GAMES, TURNS = 16, 16, 5
BUDGET = 8192
REPETITIONS = 7
VOCAB = 384
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@dataclass(frozen=True, kw_only=True)
class PlainRow:
    """One game: its ids, and the positions, logprobs and advantage of what was sampled in it."""

    ids: list[int]
    sampled: list[int]
    logprobs: list[float]
    advantage: float


def play(rng: np.random.Generator, name: str) -> RolloutRow:
    """One game: the agent's moves are sampled ids, the opponent's come with the next board."""
    board = [0] * 9
    ids = [300 + at for at in range(30)]
    samples: list[SampleRow] = []
    reward = 0.5
    for turn in range(TURNS):
        move = int(rng.choice([cell for cell in range(9) if board[cell] == 0]))
        completion = [10, 11 + move // 3, 20 + move % 3, 14, 15]
        logprobs = (-rng.random(5)).tolist()
        samples.append(
            SampleRow(
                sample_id=f"{name}.{turn}",
                prompt_ids=list(ids),
                completion_ids=completion,
                completion_logprobs=logprobs,
            )
        )
        board[move] = 1
        if won(board, 1):
            reward = 1.0
            break
        free = [cell for cell in range(9) if board[cell] == 0]
        if not free:
            break
        board[int(rng.choice(free))] = 2
        if won(board, 2):
            reward = 0.0
            break
        cells = [50 + 3 * cell + mark for cell, mark in enumerate(board)]
        ids += [*completion, 40, 41, *cells, *range(90, 99)]
    return RolloutRow(rollout=name, reward=reward, samples=samples)


def won(board: list[int], player: int) -> bool:
    return any(all(board[cell] == player for cell in line) for line in LINES)


def games(seed: int = 0) -> list[GroupRow]:
    rng = np.random.default_rng(seed)
    return [
        GroupRow(rollouts=[play(rng, f"{group}.{game}") for game in range(GAMES)]) for group in range(GROUPS)
    ]


def plain_rows(groups: list[GroupRow]) -> list[PlainRow]:
    """One row per trained game, shortest first; the same games that the tree holds."""
    rows = []
    for group in groups:
        rewards = np.array([rollout.reward for rollout in group.rollouts], float)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for rollout, advantage in zip(group.rollouts, advantages, strict=True):
            if abs(advantage) < 1e-9:
                continue
            last = rollout.samples[-1]
            sampled = [
                len(row.prompt_ids) + at for row in rollout.samples for at in range(len(row.completion_ids))
            ]
            rows.append(
                PlainRow(
                    ids=[*last.prompt_ids, *last.completion_ids],
                    sampled=sampled,
                    logprobs=[value for row in rollout.samples for value in row.completion_logprobs],
                    advantage=float(advantage),
                )
            )
    return sorted(rows, key=lambda row: len(row.ids))


def padded(rows: list[PlainRow]) -> list[list[PlainRow]]:
    """Rows of similar length, at most BUDGET tokens with padding."""
    batches: list[list[PlainRow]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * (len(row.ids) - 1) <= BUDGET:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def plain_pass(policy: Policy, batches: list[list[PlainRow]], normalizer: float) -> float:
    """Loss and gradient by plain rows; returns the loss."""
    loss, total = make_loss(Algorithm()), 0.0
    for batch in batches:
        width = len(batch[-1].ids) - 1
        ids_BL = torch.zeros(len(batch), width, dtype=torch.long)
        for at, row in enumerate(batch):
            ids_BL[at, : len(row.ids) - 1] = torch.tensor(row.ids[:-1])
        decoder = policy.causal_lm.model
        positions = torch.arange(width).expand(len(batch), width)
        hidden = decoder(input_ids=ids_BL, position_ids=positions, use_cache=False).last_hidden_state
        where = torch.tensor([at * width + p - 1 for at, row in enumerate(batch) for p in row.sampled])
        targets = torch.tensor([row.ids[p] for row in batch for p in row.sampled])
        logprobs_E, _ = target_logprobs(
            policy.head, hidden.flatten(0, 1)[where], torch.arange(len(where)), targets
        )
        sampled_E = torch.tensor([value for row in batch for value in row.logprobs])
        output = loss(
            LossInputs(
                logprobs_E=logprobs_E,
                sampled_logprobs_E=sampled_E,
                proximal_logprobs_E=sampled_E,
                advantages_E=torch.tensor([row.advantage for row in batch for _ in row.sampled]),
                weights_E=torch.ones(len(where)),
                sequence_E=torch.zeros(len(where), dtype=torch.long),
                normalizer=normalizer,
            )
        )
        output.loss.backward()
        total += output.loss.item()
    return total


def tree_pass(policy: Policy, batch: Batch) -> float:
    """Loss and gradient by the tree, planning included; returns the loss."""
    loss, total = make_loss(Algorithm()), 0.0
    entries = batch.entries
    columns = make_columns(entries, dtype=policy.dtype, device=policy.device)
    for micro in pack(batch.tree, entries, BUDGET).micro_batches:
        scores, _ = policy.entry_scores(micro)
        output = loss(columns.inputs(scores.logprobs_E, micro.entry_E, normalizer=batch.normalizer))
        output.loss.backward()
        total += output.loss.item()
    return total


def model() -> Policy:
    register()
    torch.manual_seed(0)
    config = qwen3(NANO, vocabulary=VOCAB, positions=1024)
    policy = Policy(AutoModelForCausalLM.from_config(config, attn_implementation=NAME), name="bench")
    LoraAdapters(policy).attach("a1", LoraSpec(), seed=0)
    return policy


def timed_rows(batch: Batch, batches: list[list[PlainRow]]) -> list[Row]:
    policy = model()
    ours, peer = [], []
    for _ in range(REPETITIONS + 1):
        begin = time.perf_counter()
        tree_loss = tree_pass(policy, batch)
        middle = time.perf_counter()
        plain_loss = plain_pass(policy, batches, batch.normalizer)
        ours.append(middle - begin)
        peer.append(time.perf_counter() - middle)
        if abs(tree_loss - plain_loss) > 1e-4 * abs(plain_loss) + 1e-6:
            raise SystemExit(f"the tree's loss is {tree_loss}, that of plain rows {plain_loss}")
    ratio = statistics.median(b / a for a, b in zip(ours[1:], peer[1:], strict=True))
    seconds = statistics.median(ours[1:]), statistics.median(peer[1:])
    return [
        Row(
            name="forward and backward of 256 games, against plain sorted rows",
            ours=seconds[0],
            peer=seconds[1],
            unit="s",
            ratio=ratio,
            goal=1.0,
        )
    ]


def count_rows(
    groups: list[GroupRow], batch: Batch, batches: list[list[PlainRow]], packing: Packing
) -> list[Row]:
    forwarded = packing.forwarded
    per_game = sum((len(rows[-1].ids) - 1) * len(rows) for rows in batches)
    per_turn = int(batch.metrics["data/raw_tokens"])
    pairs = sum(plan_attention(m.end_T, m.depth_T, "rectangles").pairs for m in packing.micro_batches)
    begin = time.perf_counter()
    build_batch(groups)
    build_seconds = time.perf_counter() - begin

    def tokens(name: str, peer: int, goal: float | None) -> Row:
        return Row(name=name, ours=forwarded, peer=peer, unit="tokens", ratio=peer / forwarded, goal=goal)

    return [
        tokens("forwarded tokens, against the tree's lower bound", packing.lower_bound, 1 / 1.02),
        tokens("forwarded tokens, against one padded row per game", per_game, 1.0),
        tokens("forwarded tokens, against one row per turn", per_turn, None),
        Row(
            name="attention pairs computed, against pairs needed",
            ours=pairs,
            peer=packing.pairs_needed,
            unit="pairs",
            ratio=packing.pairs_needed / pairs,
        ),
        Row(
            name="building the batch from ledger rows",
            ours=build_seconds,
            unit="s",
            goal=0.15,
            at_most=True,
        ),
    ]


def main() -> None:
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")  # PEFT's call, not ours
    torch.set_num_threads(1)
    groups = games()
    batch = build_batch(groups)
    batches = padded(plain_rows(groups))
    packing = pack(batch.tree, batch.entries, BUDGET)
    write_rows("tree", [*count_rows(groups, batch, batches, packing), *timed_rows(batch, batches)])


if __name__ == "__main__":
    main()
