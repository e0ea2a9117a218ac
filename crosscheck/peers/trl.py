"""TRL's side: real `GRPOTrainer`s on a tiny model, their logprobs replaced by the fixtures'.

Everything from `_generate_and_score_completions` (advantages, corrections of the sampler) to `_compute_loss`
is TRL's own code. What is given to it: rollouts through `rollout_func`, rewards, and the numbers that
`_get_per_token_logps_and_entropies` would compute from the model. `DPOTrainer` and `KTOTrainer` are given a
model that answers with the fixtures' logprobs; their losses are TRL's own. Runs in TRL's environment.
"""

from __future__ import annotations

import os
import runpy
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RLOOConfig,
    RLOOTrainer,
)
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

STEPS = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("trl_steps.py"))))

GROUP_SIZE, VOCABULARY = 4, 16
LOW, HIGH, BOUND = 0.8, 1.25, 1.2

Tensors = dict[str, torch.Tensor]


class Given:
    """Mixed into a trainer: logprobs come from the fixtures, in the order in which they are asked for."""

    variable: torch.Tensor
    entropies: torch.Tensor
    constants: list[torch.Tensor]

    def _get_per_token_logps_and_entropies(self, *_: Any, compute_entropy: bool = False, **__: Any) -> Any:
        if compute_entropy:
            return self.variable, self.entropies, None
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
    rewards = options.pop("rewards", [x["rewards_B"]])
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
        reward_funcs=[lambda prompts, one=one, **_: one.tolist() for one in rewards],
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


def asked(
    x: Tensors, *, corrected: bool = False, old: str = "old_BL", **options: Any
) -> tuple[Any, dict[str, Any]]:
    """A trainer and the inputs of its loss, with the advantages as TRL computed them."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(x, folder, **options)
    # After its construction, which would ask for vLLM; nothing is to be sent there.
    made.use_vllm, made._last_loaded_step = corrected, made.state.global_step
    made.constants = [x[old], x["reference_BL"]]
    rows = [{"prompt": str(row)} for row in range(len(x["mask_BL"]))]
    return made, made._generate_and_score_completions(rows)


def run(x: Tensors, **options: Any) -> tuple[Tensors, torch.Tensor]:
    """The loss's part of the results, and the advantages as TRL computed them."""
    made, inputs = asked(x, **options)
    advantages_B = inputs["advantages"]
    inputs["advantages"] = x["advantages_B"]
    made.variable, made.entropies = x["logprobs_BL"].clone().requires_grad_(), x["entropies_BL"]
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


def advantage_of_parts(x: Tensors) -> Tensors:
    """Two reward functions: the large numbers leave nothing of what is added to a part's deviation."""
    options = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [2.0, -0.5]}
    rewards = [1e5 * x["rewards_B"], 1e5 * x["advantages_B"]]
    advantages_B = run(x, loss_type="dapo", beta=0.0, rewards=rewards, **options)[1]
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


def preference_trainer(
    kind: Any, configuration: Any, row: dict[str, Any], folder: str, **options: Any
) -> Any:
    made = kind(
        model=model(),
        processing_class=tokenizer(),
        train_dataset=Dataset.from_list([row] * 2),
        peft_config=LoraConfig(r=1, target_modules="all-linear"),
        args=configuration(
            output_dir=folder,
            per_device_train_batch_size=2,
            bf16=False,
            use_cpu=True,
            report_to=[],
            **options,
        ),
    )
    made.precompute_ref_logps = True  # the batch says what the reference thinks
    return made


class Answering:
    """Stands in for the model: each call is answered with the next logprobs, 0 outside of the replies."""

    def __init__(self, made: Any, *answers_BL: torch.Tensor) -> None:
        self.training, self._answers = True, list(answers_BL)
        made.model.train()

    def __call__(self, **_: Any) -> SimpleNamespace:
        logprobs_BL = self._answers.pop(0)
        nothing_BL = torch.zeros_like(logprobs_BL)
        return SimpleNamespace(
            log_probs=logprobs_BL, entropy=nothing_BL, mean_logits=nothing_BL, is_top1=nothing_BL.bool()
        )


def rows_of(mask_BL: torch.Tensor) -> Tensors:
    """Ids that nobody reads, behind a prompt of one token."""
    prompt_B1 = torch.zeros(len(mask_BL), 1)
    completion_mask = torch.cat([prompt_B1, mask_BL], 1).long()
    ids = torch.ones_like(completion_mask)
    return {"input_ids": ids, "attention_mask": ids, "completion_mask": completion_mask}


def dpo(x: Tensors, loss_type: str) -> Tensors:
    """Pairs of rows that follow each other; TRL's batch has all chosen ones, then all rejected ones."""
    order = torch.cat([torch.arange(0, len(x["mask_BL"]), 2), torch.arange(1, len(x["mask_BL"]), 2)])
    mask_BL = x["mask_BL"][order]
    reference_B = (x["reference_BL"][order] * mask_BL).sum(1)
    variable_BL = x["logprobs_BL"].clone().requires_grad_()
    row = {"prompt": "w2", "chosen": "w3", "rejected": "w4"}
    with tempfile.TemporaryDirectory() as folder:
        made = preference_trainer(DPOTrainer, DPOConfig, row, folder, beta=0.1, loss_type=[loss_type])
    chosen_B, rejected_B = reference_B.chunk(2)
    inputs = {**rows_of(mask_BL), "ref_chosen_logps": chosen_B, "ref_rejected_logps": rejected_B}
    loss = made._compute_loss(Answering(made, variable_BL[order] * mask_BL), inputs, False)
    (gradient,) = torch.autograd.grad(loss, variable_BL)
    return {"loss": loss.detach().reshape(1), "gradient": gradient}


def kto(x: Tensors) -> Tensors:
    """Even rows are desirable. The mismatched replies have the logprobs of other fixtures."""
    mask_BL, variable_BL = x["mask_BL"], x["logprobs_BL"].clone().requires_grad_()
    rows = rows_of(mask_BL)
    row = {"prompt": "w2", "completion": "w3", "label": True}
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.5}
    with tempfile.TemporaryDirectory() as folder:
        made = preference_trainer(KTOTrainer, KTOConfig, row, folder, beta=0.1, **weights)
    inputs = {
        **rows,
        **{f"KL_{name}": value for name, value in rows.items()},
        "label": torch.arange(len(mask_BL)) % 2 == 0,
        "ref_logps": (x["reference_BL"] * mask_BL).sum(1),
        "ref_KL_logps": (x["mismatched_reference_BL"] * mask_BL).sum(1),
    }
    model = Answering(made, x["mismatched_BL"] * mask_BL, variable_BL * mask_BL)
    loss = made._compute_loss(model, inputs, False)
    (gradient,) = torch.autograd.grad(loss, variable_BL)
    point = torch.tensor(made._metrics["train"]["kl"])
    return {"loss": loss.detach().reshape(1), "gradient": gradient, "reference point": point}


def adaptive_entropy(x: Tensors) -> Tensors:
    """The target and the rise are those of our case."""
    options = {"use_adaptive_entropy": True, "entropy_target": 1.0, "entropy_coef_delta": 0.05}
    made, inputs = asked(x, loss_type="dapo", beta=0.0, **options)
    inputs["advantages"] = x["advantages_B"]
    return STEPS.adaptive_entropy(x, made, inputs)


def optimized(x: Tensors, name: str) -> Tensors:
    numbers = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.1}
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(x, folder, optim=name, learning_rate=0.01, **numbers)
    return STEPS.optimized(x, made)


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
    "top entropy": lambda x: loss(x, top_entropy_quantile=0.2),
    "entropy bonus": lambda x: loss(x, entropy_coef=0.1),
    "mismatch token_truncate": lambda x: mismatch(x, "token_truncate", max=BOUND),
    "mismatch sequence_truncate": lambda x: mismatch(x, "sequence_truncate", max=BOUND),
    "mismatch token_mask": lambda x: mismatch(x, "token_mask", min=LOW, max=HIGH),
    "mismatch sequence_mask": lambda x: mismatch(x, "sequence_mask", min=LOW, max=HIGH),
    "mismatch negative_mask": lambda x: loss(x, old="sampler_BL", off_policy_mask_threshold=0.05),
    "advantage group": lambda x: advantage(x, "group"),
    "advantage centered": lambda x: advantage(x, "none"),
    "kl in reward, rloo": kl_in_reward,
    "advantage batch_std": lambda x: advantage(x, "batch"),
    "advantage gdpo": advantage_of_parts,
    "dpo": lambda x: dpo(x, "sigmoid"),
    "dpo, length normalised": lambda x: dpo(x, "sigmoid_norm"),
    "ipo, length normalised": lambda x: dpo(x, "ipo"),
    "kto": kto,
    "reward model": lambda x: STEPS.reward_model(x, tokenizer()),
    "entropy, adaptive": adaptive_entropy,
    "reference, average": lambda x: STEPS.reference(x, 0.6, 1),
    "reference, average, every": lambda x: STEPS.reference(x, 0.6, 2),
    "reference, every": lambda x: STEPS.reference(x, 1.0, 2),
    "optimizer adamw_8bit": lambda x: optimized(x, "adamw_8bit"),
}
