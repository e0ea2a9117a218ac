"""Our side of what goes on from step to step: refilled groups, coefficients, references, optimizers.

T: steps. G: groups. N: the numbers of all weights, one behind the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from art.batch.algorithms import resolve
from art.gather import gather_trajectory_groups
from art.server.checkpoints.checkpoints import Checkpoints
from art.server.checkpoints.reference_adapter import reference_folder
from art.tracking.rollout_figures import has_signal
from art.training.losses.registry import make_loss
from art.training.open_model import OpenModel
from art.training.optimizer import Moments, seeded_rng, step_optimizer
from art.trajectories import Trajectory, TrajectoryGroup
from art.wire.algorithm import AggregationSpec
from art.wire.training import LoraSpec, OptimizerName, OptimizerSpec
from crosscheck.fixtures import MATRICES, SIZE
from crosscheck.inputs import Parts, Tensors, scored

WANTED = 4
"""Groups that a step asks for; the other fixtures are what it may be refilled with."""
TARGET, RISE = 1.0, 0.05
MIXUP, EVERY = 0.6, 2
OPTIMIZER: Mapping[str, Any] = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1, "momentum": 0.9}
RATE = 0.01


def refill(x: Tensors) -> Parts:
    """The groups with a signal, and those that a step of four is left with, each 1."""
    groups = [
        TrajectoryGroup(
            [Trajectory(messages_and_choices=[], reward=one) for one in rewards], metadata={"number": number}
        )
        for number, rewards in enumerate(x["outcomes_B"].reshape(-1, SIZE).tolist())
    ]

    async def played(group: TrajectoryGroup) -> TrajectoryGroup:
        return group

    async def gathered() -> list[TrajectoryGroup]:
        return await gather_trajectory_groups(
            [played(one) for one in groups[:WANTED]],
            refill=[played(one) for one in groups[WANTED:]],
            pbar_desc=None,
        )

    left = {group.metadata["number"] for group in asyncio.run(gathered())}
    return {
        "signal": torch.tensor([float(has_signal(one)) for one in groups], dtype=torch.float64),
        "groups": torch.tensor([float(number in left) for number in range(len(groups))], dtype=torch.float64),
    }


def open_model(weights: Mapping[str, torch.Tensor]) -> OpenModel:
    """A model with these weights, as the trainer holds it."""
    parameters = {name: torch.nn.Parameter(one.clone()) for name, one in weights.items()}

    def moments(name: OptimizerName) -> Moments:
        return Moments(name, parameters, set())

    return OpenModel(
        adapter="policy",
        lora=LoraSpec(r=1, alpha=1),
        parameters=parameters,
        make_moments=moments,
        moments=moments("adamw"),
        rng=seeded_rng(0),
    )


def adaptive_entropy(x: Tensors) -> Parts:
    """The losses of some steps with a bonus for the entropy, and the coefficient after each."""
    algorithm = resolve(
        "grpo",
        aggregation="token_mean",
        entropy={"target": TARGET, "step": RISE},
        ratio_to="trainer",
        updates={"epochs": 2},
    )
    model, loss, mask_BL = open_model({"weight": x["weights_N"]}), make_loss(algorithm), x["mask_BL"].bool()
    losses, coefficients = [], []
    for factor in x["factors_T"].tolist():
        entropies_E = factor * x["entropies_BL"][mask_BL]
        coefficient = model.coefficient_of(algorithm.entropy)
        made = scored(
            x,
            "logprobs_BL",
            AggregationSpec(kind="token_mean"),
            "old_BL",
            lambda y, bonus=coefficient, entropies_E=entropies_E: loss(y).loss - bonus * y.mean(entropies_E),
        )
        losses.append(made["loss"])
        model.follow(algorithm, float(entropies_E.mean()))
        assert model.entropy is not None
        coefficients.append(model.entropy.coefficient)
    return {"losses": torch.cat(losses), "coefficients": torch.tensor(coefficients, dtype=torch.float64)}


def average(x: Tensors, every: int | None) -> Parts:
    """The reference after each step of a policy that moves through the fixtures."""
    kl = {"coefficient": 0.1, "reference": "average", "mixup": MIXUP, "every": every}
    algorithm = resolve("grpo", kl=kl)
    first, *others = x["policies_TN"]
    model, found = open_model({"weight": first}), []
    model.averaged()
    for weights_N in others:
        model.parameters["weight"].data.copy_(weights_N)
        model.step += 1
        model.follow(algorithm, 0.0)
        found.append(model.averaged().weights["weight"].clone())
    return {"references": torch.stack(found)}


def every_step(x: Tensors) -> Parts:
    """The policy of the checkpoint that the step after each one is compared with."""
    algorithm = resolve("grpo", kl={"coefficient": 0.1, "reference": "step", "every": EVERY})
    found = []
    for step in range(1, len(x["policies_TN"])):
        checkpoints = SimpleNamespace(
            steps=lambda last=step: list(range(last + 1)), path=lambda one: Path(str(one))
        )
        folder = reference_folder(algorithm, cast(Checkpoints, checkpoints))
        found.append(x["policies_TN"][int(str(folder))])
    return {"references": torch.stack(found)}


def optimized(x: Tensors, name: OptimizerName, **numbers: Any) -> Parts:
    """How far some updates have moved two matrices."""
    spec = OptimizerSpec(name=name, learning_rate=RATE, max_grad_norm=1e9, **{**OPTIMIZER, **numbers})
    weights = dict(matrices(x["weights_N"]))
    parameters = {key: torch.nn.Parameter(one.clone()) for key, one in weights.items()}
    moments = Moments(name, parameters, set(parameters))
    for gradients_N in x["gradients_TN"]:
        for key, gradient in matrices(gradients_N):
            parameters[key].grad = gradient.clone()
        step_optimizer(moments.optimizer, spec, learning_rate=RATE, loss=0.0)
    return {key: (parameters[key].detach() - weights[key]).double() for key in parameters}


def matrices(numbers_N: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The matrices that a row of numbers is, in float32."""
    start = 0
    for name, (rows, columns) in MATRICES.items():
        end = start + rows * columns
        yield name, numbers_N[start:end].float().reshape(rows, columns)
        start = end
