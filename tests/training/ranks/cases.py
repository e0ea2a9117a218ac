"""One case of training, made from words alone, so that every rank and a single process make the same one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from families import FAMILIES, build
from tiny_policies import MODEL, causal_lm, games, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.batch.algorithms.facts import needs_sequences
from art.batch.batch_types import Batch
from art.training.attention.interface import NAME, register
from art.training.policy import Policy, fingerprint
from art.training.ranks.deal import Dealer
from art.training.ranks.group import RankGroup
from art.training.ranks.sharded import own_part, shard_base
from art.training.trainer import Trainer
from art.wire.algorithm import Algorithm
from art.wire.training import LoraSpec, OptimizerSpec, StepRequest, TrainRequest


def make_policy(sharing: RankGroup | None = None, *, experts: bool = False) -> Policy:
    if sharing is None and not experts:
        return policy(dtype=torch.float64)
    if experts:
        register()
        model = build(FAMILIES["qwen3-moe"](), NAME, torch.float64)
    else:
        model = causal_lm(qwen3(), NAME, torch.float64)
    known_as = fingerprint(model)
    if sharing is not None:
        shard_base(model, sharing, "cpu")
    return Policy(model, name="tiny", block=8, long=6, known_as=known_as)


def algorithm_of(case: dict[str, Any]) -> Algorithm:
    parts = dict(case.get("parts", {}))
    if case["algorithm"] == "distillation":
        parts.setdefault("teacher", {"kind": "base"})
    if case["algorithm"] == "gdpo":
        parts.setdefault("reward_parts", {"first": 1.0, "second": 0.5})
    return resolve(case["algorithm"], **parts)


def batch_of(case: dict[str, Any], algorithm: Algorithm, step: int) -> Batch:
    shape = case.get("games", {})
    return games(
        case.get("seed", 0) + step,
        **{"groups": 4, "untrained": 0.3, **shape},
        algorithm=algorithm,
    )


def request_of(batch: Batch, algorithm: Algorithm, step: int, case: dict[str, Any]) -> TrainRequest:
    return TrainRequest(
        model=MODEL,
        step=step,
        algorithm=algorithm,
        optimizer=OptimizerSpec(name=case.get("optimizer", "adamw"), learning_rate=1e-2),
        normalizer=batch.normalizer,
        rewards=batch.rewards,
        reference=case.get("reference"),
        kind="sft" if case["algorithm"] == "sft" else "rl",
    )


def paddings_of(case: dict[str, Any], world: int) -> list[list[int]]:
    """For each step, how often each rank would forward the whole batch's plan for nothing, with a base in
    shards and dropout.
    """
    algorithm, base = algorithm_of(case), make_policy()
    found = []
    for step in range(case.get("steps", 2)):
        batch = batch_of(case, algorithm, step)
        packing = base.pack(
            batch.tree,
            batch.entries,
            case.get("budget", 28),
            whole_sequences=needs_sequences(algorithm),
        )
        found.append([Dealer(rank, world, equal=True).deal(packing).padding for rank in range(world)])
    return found


class Learned:
    """A trainer that goes through a case."""

    def __init__(self, case: dict[str, Any], ranks: RankGroup | None = None, base: Policy | None = None):
        experts = {"targets": ["all-linear", "experts"]} if case.get("experts") else {}
        shape = LoraSpec(r=4, alpha=8, dropout=case.get("dropout", 0.0), **experts)
        lora = None if case.get("full") else shape
        self.case = case
        self.trainer = Trainer(
            base or make_policy(experts=bool(experts)),
            token_budget=case.get("budget", 28),
            ranks=ranks or RankGroup(),
        )
        folder = case.get("checkpoint")
        self.trainer.open(MODEL, lora, seed=3, checkpoint=None if folder is None else Path(folder))
        if folder is None and lora is not None:
            randomize(dict(self.trainer.parameters(MODEL)))

    def step(self) -> dict[str, float]:
        at = self.trainer.steps[MODEL]
        algorithm = algorithm_of(self.case)
        if "added" in self.case:
            return self.step_of_added(at, algorithm)
        batch = batch_of(self.case, algorithm, at)
        return self.trainer.train(batch.tree, batch.entries, request_of(batch, algorithm, at, self.case))

    def step_of_added(self, at: int, algorithm: Algorithm) -> dict[str, float]:
        """A step by the gradients of several batches, one of which is also scored."""
        optimizer = OptimizerSpec(name=self.case.get("optimizer", "adamw"), learning_rate=None)
        for number in range(self.case["added"]):
            batch = batch_of(self.case, algorithm, 10 * at + number)
            asked = request_of(batch, algorithm, at, self.case).model_copy(update={"update": number})
            for use in ("none", "add"):
                request = asked.model_copy(update={"gradient": use})
                metrics = self.trainer.train(batch.tree, batch.entries, request)
        last = StepRequest(model=MODEL, step=at, batches=self.case["added"], optimizer=optimizer, rate=1e-2)
        return {**metrics, "loss/grad_norm": self.trainer.step(last).grad_norm}

    def weights(self) -> torch.Tensor:
        critic = self.trainer._open[MODEL].critic
        every = [*self.trainer.parameters(MODEL).values(), *([] if critic is None else critic.parameters())]
        return torch.cat([one.detach().flatten() for one in every])

    def outcome(self) -> dict[str, Any]:
        """All steps of the case."""
        metrics = [self.step() for _ in range(self.case.get("steps", 2))]
        columns = {}
        recorded = self.trainer._open[MODEL].recorded
        if recorded is not None:
            columns = {name: value.astype("float64").tolist() for name, value in recorded[1].items()}
        folder = self.case.get("save")
        if folder is not None and self.trainer.ranks.is_leader:
            self.trainer.save(MODEL, Path(folder))
        bits = hashlib.sha256(self.weights().numpy().tobytes())
        for _, moment in sorted(self.trainer._open[MODEL].moments.tensors().items()):
            bits.update(moment.numpy().tobytes())
        return {
            "weights": self.weights().tolist(),
            "digest": self.trainer.digest(MODEL),
            "bits": bits.hexdigest(),
            "metrics": metrics,
            "kept": sum(own_part(one).numel() for one in self.trainer.policy.causal_lm.parameters()),
            "columns": columns,
        }
