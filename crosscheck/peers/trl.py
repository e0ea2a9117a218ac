"""TRL's side: real `GRPOTrainer`s on a tiny model, their logprobs replaced by the fixtures'.

Everything from `_generate_and_score_completions` (advantages, corrections of the sampler) to `_compute_loss`
is TRL's own code. What is given to it: rollouts through `rollout_func`, rewards, and the numbers that
`_get_per_token_logps_and_entropies` would compute from the model. Runs in TRL's environment.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

GROUP_SIZE, VOCABULARY = 4, 16
LOW, HIGH, BOUND = 0.8, 1.25, 1.2

Tensors = dict[str, torch.Tensor]


class Given:
    """Mixed into a trainer: logprobs come from the fixtures, in the order in which they are asked for."""

    variable: torch.Tensor
    constants: list[torch.Tensor]

    def _get_per_token_logps_and_entropies(self, *_: Any, compute_entropy: bool = False, **__: Any) -> Any:
        if compute_entropy:
            return self.variable, torch.ones_like(self.variable), None
        return self.constants.pop(0), None, None


class GivenGRPO(Given, GRPOTrainer):
    pass


class GivenGMPO(Given, GMPOTrainer):
    pass


class GivenRLOO(Given, RLOOTrainer):
    lengths: list[int]

    def _generate_single_turn(self, *_: Any) -> Any:
        return [[4] * length for length in self.lengths]


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )


def model() -> torch.nn.Module:
    shape = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return AutoModelForCausalLM.from_config(Qwen3Config(vocab_size=VOCABULARY, **shape, **heads))


def trainer(x: Tensors, folder: str, **options: Any) -> Any:
    """A trainer that has the fixtures' rollouts, and is asked for old logprobs before its loss."""
    kind, configuration = GivenGRPO, GRPOConfig
    if options.get("loss_type") == "gmpo":
        kind, configuration = GivenGMPO, GMPOConfig
        del options["loss_type"]
    rows = len(x["mask_BL"])

    def rollouts(prompts: list[str], _: Any) -> dict[str, Any]:
        lengths = [int(length) for length in x["mask_BL"].sum(1)]
        return {
            "prompt_ids": [[2, 3]] * rows,
            "completion_ids": [[4] * length for length in lengths],
            "logprobs": [row[:length].tolist() for row, length in zip(x["sampler_BL"], lengths, strict=True)],
        }

    made = kind(
        model=model(),
        reward_funcs=lambda prompts, **_: x["rewards_B"].tolist(),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list([{"prompt": str(row)} for row in range(rows)]),
        rollout_func=rollouts,
        peft_config=LoraConfig(r=1, target_modules="all-linear"),
        args=configuration(
            output_dir=folder,
            per_device_train_batch_size=rows,
            num_generations=GROUP_SIZE,
            num_iterations=2,  # old logprobs are asked for only where a batch is used again
            max_completion_length=x["mask_BL"].shape[1],
            bf16=False,
            use_cpu=True,
            report_to=[],
            **options,
        ),
    )
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    return made


def run(
    x: Tensors, *, corrected: bool = False, old: str = "old_BL", **options: Any
) -> tuple[Tensors, torch.Tensor]:
    """The loss's part of the results, and the advantages as TRL computed them."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(x, folder, **options)
    # After its construction, which would ask for vLLM; nothing is to be sent there.
    made.use_vllm, made._last_loaded_step = corrected, made.state.global_step
    made.constants = [x[old], x["reference_BL"]]
    inputs = made._generate_and_score_completions([{"prompt": str(row)} for row in range(len(x["mask_BL"]))])
    advantages_B = inputs["advantages"]
    inputs["advantages"] = x["advantages_B"]
    made.variable = x["logprobs_BL"].clone().requires_grad_()
    loss = made._compute_loss(made.model, inputs)
    (gradient,) = torch.autograd.grad(loss, made.variable)
    return {"loss": loss.detach().reshape(1), "gradient": gradient}, advantages_B


def loss(x: Tensors, **options: Any) -> Tensors:
    return run(x, **{"loss_type": "dapo", "beta": 0.0, **options})[0]


def mismatch(x: Tensors, mode: str, **bounds: float) -> Tensors:
    """Clipped surrogate under a correction of the trainer against the engine."""
    named = {f"vllm_importance_sampling_clip_{name}": value for name, value in bounds.items()}
    return loss(x, corrected=True, vllm_importance_sampling_mode=mode, **named)


def advantage(x: Tensors, scale: str) -> Tensors:
    advantages_B = run(x, loss_type="dapo", beta=0.0, scale_rewards=scale)[1]
    return {"advantages": advantages_B[:, None] * x["mask_BL"]}


def kl_in_reward(x: Tensors) -> Tensors:
    """`RLOOTrainer`, which takes the KL of a sequence off its reward."""
    rows = [{"prompt": str(row)} for row in range(len(x["mask_BL"]))]
    with tempfile.TemporaryDirectory() as folder:
        made = GivenRLOO(
            model=model(),
            reward_funcs=lambda prompts, **_: x["rewards_B"].tolist(),
            processing_class=tokenizer(),
            train_dataset=Dataset.from_list(rows),
            peft_config=LoraConfig(r=1, target_modules="all-linear"),
            args=RLOOConfig(
                output_dir=folder,
                per_device_train_batch_size=len(rows),
                num_generations=GROUP_SIZE,
                max_completion_length=x["mask_BL"].shape[1],
                beta=0.1,
                bf16=False,
                use_cpu=True,
                report_to=[],
            ),
        )
    made.model.train()
    made.lengths = [int(length) for length in x["mask_BL"].sum(1)]
    made.constants = [x["old_BL"], x["reference_BL"]]
    return {"advantages": made._generate_and_score_completions(rows)["advantages"][:, None] * x["mask_BL"]}


CASES: dict[str, Callable[[Tensors], Tensors]] = {
    "ppo": lambda x: loss(x),
    "ppo, clip higher": lambda x: loss(x, epsilon_high=0.28),
    "ppo, sequence mean": lambda x: loss(x, loss_type="grpo"),
    "ppo, constant": lambda x: loss(x, loss_type="dr_grpo"),
    "two-sided clip": lambda x: loss(x, delta=2.0),
    "cispo, bounded above": lambda x: loss(x, loss_type="cispo", epsilon_high=2.0),
    "gspo": lambda x: loss(
        x, loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4
    ),
    "gmpo": lambda x: loss(x, loss_type="gmpo", epsilon=0.4, epsilon_high=0.4),
    "sapo": lambda x: loss(x, loss_type="sapo"),
    "vespo": lambda x: loss(x, loss_type="vespo"),
    "ppo + kl k3": lambda x: loss(x, beta=0.1, use_bias_correction_kl=False),
    "ppo + kl k3, importance": lambda x: loss(x, beta=0.1, use_bias_correction_kl=True),
    "mismatch token_truncate": lambda x: mismatch(x, "token_truncate", max=BOUND),
    "mismatch sequence_truncate": lambda x: mismatch(x, "sequence_truncate", max=BOUND),
    "mismatch token_mask": lambda x: mismatch(x, "token_mask", min=LOW, max=HIGH),
    "mismatch sequence_mask": lambda x: mismatch(x, "sequence_mask", min=LOW, max=HIGH),
    "mismatch negative_mask": lambda x: loss(x, old="sampler_BL", off_policy_mask_threshold=0.05),
    "advantage group": lambda x: advantage(x, "group"),
    "advantage centered": lambda x: advantage(x, "none"),
    "kl in reward, rloo": kl_in_reward,
    "advantage batch_std": lambda x: advantage(x, "batch"),
}
