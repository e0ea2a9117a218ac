"""Trainer throughput: LoRA of rank 16, bfloat16, one row of 16,384 tokens, all but the first trained.

Forward, backward and optimizer step through the trainer's own `train_step`, against plain transformers with
PEFT in the same process (SDPA, gradient checkpointing, AdamW), against the best open trainer's published
figure, and against the limit. Layers are computed twice on all sides, as in the published figures; with
`--once` also once, which takes the memory of all layers' activations.

    python -m bench.gpu.trainer --shape qwen3-4b
    python -m bench.gpu.trainer --shape qwen3-4b --dry --device cpu    the same on a tiny shape
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time

import numpy as np
import torch
from peft import LoraConfig, get_peft_model

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.errors import TrainingError
from art.training.first_pass import References
from art.training.losses.registry import make_loss
from art.training.optimizer import make_optimizer
from art.training.policy import Policy
from art.training.step import Learner, train_step
from art.training.weights import Weights
from art.wire.algorithm import AdvantageSpec, Algorithm
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest
from bench.gpu.results import Session
from bench.gpu.shapes import (
    PUBLISHED_BY,
    Shape,
    find_shape,
    make_causal_lm,
    make_policy,
    peak_gib,
    start_peak,
    wait_for,
)

REPETITIONS = 3
ALGORITHM = Algorithm(advantage=AdvantageSpec(kind="reward"))
PEER = "transformers + PEFT"
SPEC = OptimizerSpec(learning_rate=1e-4)


def make_learner(policy: Policy) -> Learner:
    """A fresh LoRA on the policy, and all that a step needs."""
    weights = Weights(policy)
    weights.attach("a1", LoraSpec(), seed=0)
    return Learner(
        policy=policy,
        optimizer=make_optimizer(list(weights.parameters("a1").values()), SPEC),
        loss=make_loss(ALGORITHM),
        references=References(policy, weights, "a1"),
    )


def make_rollout(name: str, prompt: list[int], answer: list[int], reward: float) -> RolloutRow:
    sample = SampleRow(
        sample_id=name, prompt_ids=prompt, completion_ids=answer, completion_logprobs=[-1.0] * len(answer)
    )
    return RolloutRow(rollout=name, reward=reward, samples=[sample])


def draw_ids(shape: Shape, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, shape.architecture.vocab_size, count).tolist()


def dense_row(shape: Shape, length: int) -> Batch:
    """One row whose every token but the first is trained."""
    ids = draw_ids(shape, length)
    rollout = make_rollout("row", ids[:1], ids[1:], 1.0)
    return build_batch([GroupRow(rollouts=[rollout])], algorithm=ALGORITHM)


def step_request(batch: Batch) -> TrainRequest:
    return TrainRequest(
        model="bench", step=0, algorithm=ALGORITHM, optimizer=SPEC, normalizer=batch.normalizer
    )


def measure_steps(
    learner: Learner, batches: list[Batch], budget: int, repetitions: int = REPETITIONS
) -> float:
    """Median seconds of training on all of them; the first batch is trained once before, to warm up."""

    def train(batch: Batch) -> None:
        train_step(
            learner, batch.tree, batch.entries, step_request(batch), learning_rate=1e-4, token_budget=budget
        )

    device = learner.policy.device.type
    train(batches[0])
    times = []
    for _ in range(repetitions):
        wait_for(device)
        begin = time.perf_counter()
        for batch in batches:
            train(batch)
        wait_for(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure_peer(shape: Shape, device: str) -> tuple[float | None, float | None, str]:
    """Tokens a second and GiB of plain transformers with PEFT; None and why, where memory ends."""
    start_peak(device)
    try:
        speed = _peer_speed(shape, device)
    except torch.OutOfMemoryError as error:
        return None, None, f"{PEER} ran out of memory: {str(error).partition('. ')[0]}"
    return speed, peak_gib(device), ""


def _peer_speed(shape: Shape, device: str) -> float:
    spec = LoraSpec()
    base = make_causal_lm(shape, device, attn_implementation="sdpa")
    lora = LoraConfig(r=spec.r, lora_alpha=spec.alpha, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora).train()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    ids = torch.tensor([draw_ids(shape, shape.row)], device=device)
    times = []
    for _ in range(REPETITIONS + 1):
        wait_for(device)
        begin = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        wait_for(device)
        times.append(time.perf_counter() - begin)
    return shape.row / statistics.median(times[1:])


def profile_step(learner: Learner, batch: Batch, budget: int, title: str, session: Session) -> None:
    """Adds the dearest operations of one step to `profile.txt` beside the results."""
    from torch.profiler import ProfilerActivity, profile

    activity, order = ProfilerActivity.CPU, "self_cpu_time_total"
    if session.device.startswith("cuda"):  # its kernels alone: with the CPU's events it takes half a minute
        activity, order = ProfilerActivity.CUDA, "self_device_time_total"
    with profile(activities=[activity]) as seen:
        train_step(
            learner, batch.tree, batch.entries, step_request(batch), learning_rate=1e-4, token_budget=budget
        )
        wait_for(session.device)
    table = seen.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=80)
    with session.path.with_name("profile.txt").open("a", encoding="utf-8") as stream:
        stream.write(f"{title}\n{table}\n\n")


def measure_ours(session: Session, shape: Shape, *, once: bool) -> None:
    """Our trainer's tokens a second, and the peer's beside them."""
    peer, peer_gib, why = measure_peer(shape, session.device)
    gc.collect()
    batch, pairs = dense_row(shape, shape.row), shape.row / 2
    start_peak(session.device)
    policy = make_policy(shape, session.device, twice=True)
    learner = make_learner(policy)
    speed = shape.row / measure_steps(learner, [batch], shape.row)
    gib = peak_gib(session.device)
    flops = shape.flops_per_token(pairs, twice=True)
    session.record(
        f"{shape.name}: one row of {shape.row:,}, layers computed twice",
        speed,
        "tokens/s",
        peer=peer,
        peer_name=PEER,
        published=shape.published,
        published_by=PUBLISHED_BY,
        limit=session.tokens_limit(flops),
        limit_how=f"(6 N + attention) = {flops / 1e9:.2f} GFLOP a token at the measured matrix rate",
        note="; ".join(filter(None, [f"kernel {policy.kernel}", why])),
    )
    session.record(
        f"{shape.name}: peak memory of that",
        gib,
        "GiB",
        peer=peer_gib,
        peer_name=PEER,
        published=shape.published_gib,
        published_by=PUBLISHED_BY,
    )
    profile_step(learner, batch, shape.row, f"{shape.name}, layers computed twice", session)
    if once:
        measure_once(session, shape, learner, batch)


def measure_once(session: Session, shape: Shape, learner: Learner, batch: Batch) -> None:
    """The same without the second computation of the layers."""
    policy, pairs = learner.policy, shape.row / 2
    policy.checkpoint_activations = False
    start_peak(session.device)
    flops = shape.flops_per_token(pairs, twice=False)
    fields = {
        "limit": session.tokens_limit(flops),
        "limit_how": f"(4 N + attention) = {flops / 1e9:.2f} GFLOP a token",
    }
    name = f"{shape.name}: one row of {shape.row:,}, layers computed once"
    try:
        speed = shape.row / measure_steps(learner, [batch], shape.row)
    except (torch.OutOfMemoryError, TrainingError) as error:
        session.record(name, None, "tokens/s", note=str(error).partition("; ")[0], **fields)
        return
    gib = peak_gib(session.device)
    note = "" if gib is None else f"peak {gib:.1f} GiB"
    session.record(name, speed, "tokens/s", note=note, **fields)


def main(arguments: list[str]) -> None:
    session, others = Session.open("trainer", arguments)
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--once", action="store_true", help="then also with the layers computed once")
    asked = parser.parse_args(others)
    measure_ours(session, find_shape(asked.shape, dry=session.dry), once=asked.once)


if __name__ == "__main__":
    main(sys.argv[1:])
