"""TRL's side of a GRPO step: `GRPOTrainer` as its documentation has it, which samples and trains by itself.

Runs in TRL's own environment and imports nothing of this project: `python -P trl_worker.py JOB.json`. It says
one line of JSON for each step: `{"seconds", "sampling"}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from typing import Any

PROTOCOL = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


class Clocked(GRPOTrainer):
    """`GRPOTrainer` with a clock around its sampling."""

    sampling = 0.0

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        begin = time.perf_counter()
        inputs = super()._prepare_inputs(generation_batch)
        self.sampling += time.perf_counter() - begin
        return inputs


class Clock(TrainerCallback):
    """Tells of each step."""

    def __init__(self) -> None:
        self.trainer: Clocked
        self.begin = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begin, self.trainer.sampling = time.perf_counter(), 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        told = {"seconds": time.perf_counter() - self.begin, "sampling": self.trainer.sampling}
        PROTOCOL.write(json.dumps(told) + "\n")
        PROTOCOL.flush()


def reward(completions: list[Any], **_: Any) -> list[float]:
    texts = [one[0]["content"] for one in completions]
    return [float(text.count("e") + len(text) % 7) for text in texts]


def main() -> None:
    warnings.filterwarnings("ignore")
    with open(sys.argv[1]) as file:
        job = json.load(file)
    clock = Clock()
    rows = len(job["prompts"]) * job["size"]
    trainer = Clocked(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        reward_funcs=reward,
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in job["prompts"]]
        ),
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=job["folder"],
            per_device_train_batch_size=job["rows_at_once"],
            gradient_accumulation_steps=rows // job["rows_at_once"],
            num_generations=job["size"],
            max_completion_length=job["tokens"],
            max_steps=job["steps"],
            beta=0.0,
            learning_rate=1e-4,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
    )
    clock.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main()
