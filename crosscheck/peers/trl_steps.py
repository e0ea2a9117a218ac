"""TRL's side of what goes on from step to step, and of reward models. Runs in TRL's environment."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification, Qwen3Config
from trl import RewardConfig, RewardTrainer
from trl.trainer.callbacks import SyncRefModelCallback

Tensors = dict[str, torch.Tensor]
MATRICES = {"wide": (64, 80), "narrow": (12, 8)}


class Scoring:
    """Stands in for the model of a reward trainer: its scores are those of the fixtures."""

    def __init__(self, scores_B: torch.Tensor) -> None:
        self.training, self._scores = True, scores_B

    def __call__(self, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self._scores[:, None])


def reward_model(x: Tensors, tokenizer: Any) -> Tensors:
    """Pairs of rows that follow each other; TRL's batch has all chosen ones, then all rejected ones."""
    answers_BL = x["logprobs_BL"].clone().requires_grad_()
    scores_B = answers_BL[:, 0] - answers_BL[:, 1]
    shape = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_labels": 1, "pad_token_id": 0}
    row = {"chosen": "w2 w3", "rejected": "w2 w4"}
    with tempfile.TemporaryDirectory() as folder:
        made = RewardTrainer(
            model=AutoModelForSequenceClassification.from_config(
                Qwen3Config(vocab_size=16, **shape, **heads)
            ),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([row] * 2),
            peft_config=LoraConfig(r=1, target_modules="all-linear", task_type="SEQ_CLS"),
            args=RewardConfig(
                output_dir=folder, per_device_train_batch_size=2, bf16=False, use_cpu=True, report_to=[]
            ),
        )
    made.model.train()
    inputs = {"attention_mask": torch.ones(len(scores_B), 1)}
    loss = made.compute_loss(Scoring(torch.cat([scores_B[::2], scores_B[1::2]])), inputs)
    (gradient,) = torch.autograd.grad(loss, answers_BL)
    margin = torch.tensor(made._metrics["train"]["margin"])
    return {"loss": loss.detach().reshape(1), "gradient": gradient, "margin": margin}


def reference(x: Tensors, alpha: float, every: int) -> Tensors:
    """The reference model after each step, by the callback of `sync_ref_model`."""
    Accelerator(cpu=True)  # whose state the callback asks for DeepSpeed
    first, *others = x["policies_TN"]
    policy, follows = (torch.nn.ParameterList([first.clone()]) for _ in range(2))
    callback = SyncRefModelCallback(ref_model=follows, accelerator=None)
    args = SimpleNamespace(ref_model_sync_steps=every, ref_model_mixup_alpha=alpha)
    found = []
    for step, weights_N in enumerate(others, 1):
        policy[0].data.copy_(weights_N)
        callback.on_step_end(args, SimpleNamespace(global_step=step), None, model=policy)
        found.append(follows[0].detach().clone())
    return {"references": torch.stack(found)}


def adaptive_entropy(x: Tensors, made: Any, inputs: dict[str, Any]) -> Tensors:
    """The losses of some steps of a trainer with adaptive entropy, and the coefficient after each."""
    losses, coefficients = [], []
    for factor in x["factors_T"].tolist():
        made.variable = x["logprobs_BL"].clone().requires_grad_()
        made.entropies = factor * x["entropies_BL"]
        losses.append(made._compute_loss(made.model, inputs).detach().reshape(1))
        coefficients.append(made.entropy_coef)
    return {"losses": torch.cat(losses), "coefficients": torch.tensor(coefficients, dtype=torch.float64)}


def optimized(x: Tensors, made: Any) -> Tensors:
    """How far the optimizer that a trainer makes moves two matrices."""
    layers = {name: torch.nn.Linear(columns, rows, bias=False) for name, (rows, columns) in MATRICES.items()}
    made.model = torch.nn.ModuleDict(layers)
    made.optimizer = None
    start = 0
    for name, (rows, columns) in MATRICES.items():
        size = rows * columns
        layers[name].weight.data = x["weights_N"][start : start + size].float().reshape(rows, columns)
        start += size
    before = {name: layer.weight.detach().clone() for name, layer in layers.items()}
    optimizer = made.create_optimizer()
    for gradients_N in x["gradients_TN"]:
        start = 0
        for name, (rows, columns) in MATRICES.items():
            size = rows * columns
            layers[name].weight.grad = gradients_N[start : start + size].float().reshape(rows, columns)
            start += size
        optimizer.step()
    return {name: layer.weight.detach() - before[name] for name, layer in layers.items()}
