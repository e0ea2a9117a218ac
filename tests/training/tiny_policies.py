"""Tiny random models and batches for the trainer's tests."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from art.batch.algorithms import resolve
from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow, TokenTree, Untrainable
from art.batch.build import build_batch
from art.training.attention.interface import NAME, register
from art.training.first_pass import References
from art.training.losses.registry import make_loss
from art.training.minibatches import minibatches
from art.training.policy import Policy
from art.training.step import BatchStep, Learner
from art.training.tally import Tally, TokenRecord
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm, LossSpec
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

VOCABULARY = 23
MODEL = "project/model"
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=24,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


def qwen3() -> PreTrainedConfig:
    return Qwen3Config(**SHAPE)


def llama() -> PreTrainedConfig:
    return LlamaConfig(**SHAPE)


def causal_lm(
    config: PreTrainedConfig, attention: str, dtype: torch.dtype, seed: int = 0, *, own_norm: bool = False
) -> Any:
    """Random weights, large enough that every layer matters; normalisation kept in the model's own dtype,
    unless it is to be the model's `own_norm`.
    """
    register()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    for module in model.modules():
        if not own_norm and type(module).__name__ in ("Qwen3RMSNorm", "LlamaRMSNorm"):
            module.forward = types.MethodType(exact_norm, module)
    return model


def exact_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The models' own normalisation computes in float32 whatever the dtype."""
    variance = hidden.pow(2).mean(-1, keepdim=True)
    return module.weight * (hidden * torch.rsqrt(variance + module.variance_epsilon))


def policy(
    config: PreTrainedConfig | None = None,
    *,
    attention: str = "auto",
    dtype: torch.dtype = torch.float32,
    block: int = 8,
    long: int = 6,
    seed: int = 0,
) -> Policy:
    model = causal_lm(config or qwen3(), NAME, dtype, seed)
    return Policy(model, name="tiny", attention=attention, block=block, long=long)


def trainer(token_budget: int = 64, lora: LoraSpec | None = None, seed: int = 0, **options: Any) -> Trainer:
    made = Trainer(policy(**options), token_budget=token_budget)
    made.open(MODEL, lora or LoraSpec(r=4, alpha=8), seed=seed)
    return made


def randomize(parameters: dict[str, torch.nn.Parameter], seed: int = 0) -> None:
    """Give an adapter weights that are all non-zero, as after some training."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name in sorted(parameters):
            noise = torch.randn(parameters[name].shape, generator=generator)
            parameters[name].copy_(noise.to(parameters[name].dtype) * 0.3)


def accumulate_gradient(made: Trainer, rows: list[GroupRow], algorithm: Algorithm) -> None:
    """The gradient of a step of the model `MODEL`, as the trainer accumulates it before its optimizer."""
    batch = build_batch(rows, algorithm=algorithm)
    asked = TrainRequest(
        model=MODEL,
        step=0,
        algorithm=algorithm,
        optimizer=OptimizerSpec(learning_rate=1e-3),
        normalizer=batch.normalizer,
        sampling=list(batch.sampling),
    )
    model = made._open[MODEL]
    learner = Learner(
        policy=made.policy,
        optimizer=model.optimizer,
        loss=make_loss(algorithm),
        references=References(made.policy, made._weights, model.adapter),
    )
    step = BatchStep(learner, batch.tree, batch.entries, asked, 64)
    step.prepare()
    (rows_E,) = minibatches(batch.entries, algorithm.updates)
    record = TokenRecord(batch.entries.logprob_E, step.columns.sampled_E, [rows_E], all_columns=False)
    tally = Tally(1, lambda *_: None, record)
    for _, micro in step.begin_update(rows_E, tally, 64).micro_batches:
        step.loss(micro, tally).backward()


BY_TOKEN = resolve("cispo")
"""Every token weighs 1."""
GREEDY = Untrainable(reason="greedy", drawn="temperature = 0.0")


def games(
    seed: int = 0,
    groups: int = 3,
    size: int = 4,
    turns: int = 3,
    vocabulary: int = VOCABULARY,
    *,
    untrained: float = 0.0,
    stale: int | None = None,
    unscored: int | None = None,
    add: int | None = None,
    at_least: float | None = None,
    algorithm: Algorithm = BY_TOKEN,
) -> Batch:
    """Groups of ragged rollouts of several turns behind a shared prompt, as agents make them.

    untrained: the share of turns that are not trained. Of each group, stale: the rollout whose reward only
    counts; unscored: the one without a reward; add: the one with 1 more. at_least: the smallest reward.
    algorithm: its weights of tokens; 1 unless given.
    """
    rng, chance = np.random.default_rng(seed), np.random.default_rng(seed + 1)

    def ids(count: int) -> list[int]:
        return [int(value) for value in rng.integers(0, vocabulary, count)]

    rows = []
    for group in range(groups):
        prompt = ids(7)
        rollouts = []
        for number in range(size):
            samples, context = [], list(prompt)
            for turn in range(int(rng.integers(1, turns + 1))):
                completion = ids(int(rng.integers(1, 5)))
                samples.append(
                    SampleRow(
                        sample_id=f"{group}.{number}.{turn}",
                        prompt_ids=list(context),
                        completion_ids=completion,
                        completion_logprobs=(-3 * rng.random(len(completion))).tolist(),
                        untrainable=GREEDY if chance.random() < untrained else None,
                    )
                )
                context += completion + ids(3)
            reward = max(float(rng.normal()), -np.inf if at_least is None else at_least) + (number == add)
            rollouts.append(
                RolloutRow(
                    rollout=f"{group}.{number}",
                    reward=None if number == unscored else reward,
                    samples=samples,
                    stale=number == stale,
                    parts={name: reward ** (k + 1) for k, name in enumerate(algorithm.reward_parts)},
                )
            )
        rows.append(GroupRow(rollouts=rollouts))
    return build_batch(rows, algorithm=algorithm)


def nodes_to(tree: TokenTree, node: int) -> list[int]:
    """The nodes from the root to this one, both included; none for -1."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = int(tree.parent_T[node])
    return nodes[::-1]


def ids_to(tree: TokenTree, node: int) -> list[int]:
    """The ids of `nodes_to`."""
    return [int(tree.tokens_T[at]) for at in nodes_to(tree, node)]


def request(batch: Batch, step: int = 0, learning_rate: float = 1e-2, **loss: Any) -> TrainRequest:
    return TrainRequest(
        model=MODEL,
        step=step,
        algorithm=Algorithm(loss=LossSpec(**loss)) if loss else Algorithm(),
        optimizer=OptimizerSpec(learning_rate=learning_rate),
        normalizer=batch.normalizer,
    )
