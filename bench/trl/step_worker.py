"""TRL's side of `bench/gradient`: a real `GRPOTrainer` in its `train()` loop, fed with recorded rollouts.

Runs in TRL's own environment and imports nothing of this project:

    python -P step_worker.py JOB.json

It says one line of JSON when it is ready; then, for each line that it reads, it runs one optimizer step and
answers `{"seconds", "loss", "tokens"}`: the time of `compute_loss` and `accelerator.backward` over all
micro-batches of the recorded batch. Generating, scoring, padding, shuffling and the optimizer are not timed.
A line `{"gradients": PATH}` also writes the gradient of every LoRA parameter. The learning rate is 0 and
nothing is clipped, so each step computes the same thing.

What it injects: `rollout_func`, TRL's own hook for rollouts made elsewhere, and the recorded rewards.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any


def take_stdout() -> Any:
    """Keep standard output for the protocol; what libraries print goes to standard error."""
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return protocol


PROTOCOL = take_stdout()

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import PeftModel  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class Clocked(GRPOTrainer):
    """`GRPOTrainer` with a clock around what is compared; it computes nothing else."""

    seconds = 0.0
    losses: list[float]
    forwarded = 0

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        begin = time.perf_counter()
        inputs = super()._prepare_inputs(generation_batch)
        self.seconds -= time.perf_counter() - begin
        return inputs

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **keywords: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **keywords)
        self.losses.append(float(loss.detach()))
        self.forwarded += inputs["prompt_ids"].numel() + inputs["completion_ids"].numel()
        return loss

    def training_step(self, *args: Any, **keywords: Any) -> Any:
        begin = time.perf_counter()
        result = super().training_step(*args, **keywords)
        self.seconds += time.perf_counter() - begin
        return result


class OnDemand(TrainerCallback):
    """One optimizer step for each line that is read."""

    def __init__(self) -> None:
        self.trainer: Clocked
        self.order: dict[str, Any] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        line = sys.stdin.readline()
        if not line:
            os._exit(0)
        self.order = json.loads(line)
        self.trainer.seconds, self.trainer.losses, self.trainer.forwarded = 0.0, [], 0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        path = self.order.get("gradients")
        if path:
            gradients = {
                name.replace(".default.", "."): parameter.grad.detach().clone()
                for name, parameter in model.named_parameters()
                if parameter.grad is not None
            }
            save_file(gradients, path)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        say(
            {
                "seconds": self.trainer.seconds,
                "loss": sum(self.trainer.losses),
                "tokens": self.trainer.forwarded,
            }
        )


def say(message: dict[str, Any]) -> None:
    PROTOCOL.write(json.dumps(message) + "\n")
    PROTOCOL.flush()


def make_trainer(job: dict[str, Any], on_demand: OnDemand) -> Clocked:
    """`job["groups"]`: for each group its rows of ids, mask of sampled ids, logprobs and reward."""
    groups = job["groups"]
    per_group, rows = len(groups[0]), sum(len(group) for group in groups)
    at_once = job["rows_at_once"]

    def recorded(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        seen: dict[str, int] = {}
        chosen = []
        for prompt in prompts:
            chosen.append(groups[int(prompt)][seen.setdefault(prompt, 0)])
            seen[prompt] += 1
        keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "recorded_reward")
        return {key: [row[key] for row in chosen] for key in keys}

    def reward(recorded_reward: list[float], **_: Any) -> list[float]:
        return recorded_reward

    base = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    trainer = Clocked(
        model=PeftModel.from_pretrained(base, job["adapter"], is_trainable=True),
        reward_funcs=reward,
        processing_class=AutoTokenizer.from_pretrained(job["tokenizer"]),
        train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(len(groups))]),
        rollout_func=recorded,
        callbacks=[on_demand],
        args=GRPOConfig(
            output_dir=job["folder"],
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=rows // at_once,
            num_generations=per_group,
            max_completion_length=max(len(row["completion_ids"]) for group in groups for row in group),
            max_steps=1_000_000,
            loss_type="dapo",
            scale_rewards="none",
            beta=0.0,
            learning_rate=0.0,
            weight_decay=0.0,
            max_grad_norm=0.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1_000_000,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    on_demand.trainer = trainer
    trainer.losses = []
    return trainer


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with open(sys.argv[1]) as file:
        job = json.load(file)
    trainer = make_trainer(job, OnDemand())
    say({"ready": True})
    trainer.train()


if __name__ == "__main__":
    main()
