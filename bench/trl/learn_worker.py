"""TRL's side of `bench.learning.end_to_end`: `GRPOTrainer` learns a task until an evaluation is good enough.

    PYTHONPATH=src python -P learn_worker.py JOB.json

Runs in TRL's environment; of this project it imports `art.environments.tasks` alone (the worlds and their
rewards). A line of JSON for each evaluation: `{"step", "seconds", "startup", "reward", "score"}`; `seconds`
are those of training, evaluations left out, `startup` those from the start of the process to the first step.

Single-turn tasks go through TRL's own generation and a reward function. For a task of several turns TRL has
`rollout_func`: `play` is what a user writes there, one batched `generate` a turn for all unfinished games,
prompts extended by ids so that what is trained is what was sampled, and a mask over the world's turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

BEGIN = time.perf_counter()


def take_stdout() -> Any:
    """Keep standard output for the protocol; what libraries print goes to standard error."""
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return protocol


PROTOCOL = take_stdout()

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from art.environments import tasks  # noqa: E402

EVALUATION_SEED = 1_000_003


@dataclass
class Play:
    """One attempt: its world, and its ids as they grow."""

    world: Any
    prompt: list[int]
    completion: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)


def finish(play: Play, tokenizer: Any, sampled: list[int]) -> None:
    """Give the world a reply; extend the ids by the reply and by the world's answer."""
    play.completion += sampled
    play.mask += [1] * len(sampled)
    text = tokenizer.decode(sampled, skip_special_tokens=True)
    answer = play.world.reply({"role": "assistant", "content": text})
    if not play.world.done:
        ended = "" if sampled[-1] == tokenizer.eos_token_id else tokenizer.eos_token
        ids = tokenizer(f"{ended}\n{turn_text(tokenizer, answer)}", add_special_tokens=False)["input_ids"]
        play.completion += ids
        play.mask += [0] * len(ids)


def turn_text(tokenizer: Any, answer: list[dict[str, Any]]) -> str:
    """The text of a later turn, with the start of the reply: some templates add a system message to a first
    one.
    """
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    begun = tokenizer.apply_chat_template(before, tokenize=False)
    whole = tokenizer.apply_chat_template([*before, *answer], add_generation_prompt=True, tokenize=False)
    return whole[len(begun) :]


@torch.no_grad()
def play_all(model: Any, tokenizer: Any, worlds: list[Any], max_tokens: int) -> list[Play]:
    """All attempts at once, one batched `generate` a turn."""
    plays = [
        Play(
            world=world,
            prompt=tokenizer.apply_chat_template(world.opening, add_generation_prompt=True, return_dict=True)[
                "input_ids"
            ],
        )
        for world in worlds
    ]
    while going := [play for play in plays if not play.world.done]:
        rows = [{"input_ids": play.prompt + play.completion} for play in going]
        batch = tokenizer.pad(rows, padding_side="left", return_tensors="pt")
        output = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=max_tokens)
        for play, row in zip(going, output[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
            length = next(
                (at + 1 for at, token in enumerate(row) if token == tokenizer.eos_token_id), len(row)
            )
            finish(play, tokenizer, row[:length])
    return plays


class Evaluate(TrainerCallback):
    """Sets each step's learning rate, evaluates after every so many steps, and stops the clock meanwhile."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.task = job, tasks.find(job["task"])
        self.seconds = self.began = self.startup = 0.0
        self.trainer: GRPOTrainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.startup = time.perf_counter() - BEGIN
        self.began = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.job["rates"][state.global_step]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds += time.perf_counter() - self.began
        if state.global_step % self.job["every"] == 0:
            reward = self.evaluate()
            say(
                {
                    "step": state.global_step,
                    "seconds": self.seconds,
                    "startup": self.startup,
                    "reward": reward,
                }
            )
            control.should_training_stop = reward >= self.job["threshold"]
        self.began = time.perf_counter()

    def evaluate(self) -> float:
        worlds = [
            self.task.environment(self.task.scenario(EVALUATION_SEED, index))
            for index in range(self.job["evaluations"])
        ]
        model = self.trainer.model
        model.eval()
        plays = play_all(model, self.trainer.processing_class, worlds, self.job["max_tokens"])
        model.train()
        return sum(play.world.reward for play in plays) / len(plays)


def say(message: dict[str, Any]) -> None:
    PROTOCOL.write(json.dumps(message) + "\n")
    PROTOCOL.flush()


def dataset(job: dict[str, Any]) -> Dataset:
    """The prompts of all steps in the order of our own run."""
    task = tasks.find(job["task"])
    numbers = range(len(job["rates"]) * job["groups"])
    worlds = [task.environment(task.scenario(job["seed"], number)) for number in numbers]
    return Dataset.from_list([{"prompt": world.opening, "number": i} for i, world in enumerate(worlds)])


def make_trainer(job: dict[str, Any], callback: Evaluate) -> GRPOTrainer:
    task = tasks.find(job["task"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])

    def judge(completions: list[Any], number: list[int], **_: Any) -> list[float]:
        rewards = []
        for completion, at in zip(completions, number, strict=True):
            world = task.environment(task.scenario(job["seed"], at))
            world.reply({"role": "assistant", "content": completion[0]["content"]})
            rewards.append(world.reward)
        return rewards

    def play(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        # All scenarios of these tasks open alike: which of them an attempt is does not matter.
        worlds = [task.environment(task.scenario(job["seed"], at)) for at in range(len(prompts))]
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.eval()
        plays = play_all(model, tokenizer, worlds, job["max_tokens"])
        model.train()
        return {
            "prompt_ids": [one.prompt for one in plays],
            "completion_ids": [one.completion for one in plays],
            "env_mask": [one.mask for one in plays],
            "logprobs": [[0.0] * len(one.completion) for one in plays],  # read where vLLM samples
            "played": [one.world.reward for one in plays],
        }

    def played_reward(played: list[float], **_: Any) -> list[float]:
        return played

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        reward_funcs=played_reward if job["turns"] > 1 else judge,
        processing_class=tokenizer,
        train_dataset=dataset(job),
        rollout_func=play if job["turns"] > 1 else None,
        peft_config=LoraConfig(
            r=job["rank"], lora_alpha=job["alpha"], target_modules="all-linear", task_type="CAUSAL_LM"
        ),
        callbacks=[callback],
        args=configuration(job),
    )
    callback.trainer = trainer
    return trainer


def configuration(job: dict[str, Any]) -> GRPOConfig:
    """What both sides share, and what a user who wants speed on a CPU sets."""
    return GRPOConfig(
        output_dir=job["folder"],
        seed=job["seed"],
        shuffle_dataset=False,
        per_device_train_batch_size=job["groups"] * job["group_size"] // job["accumulate"],
        gradient_accumulation_steps=job["accumulate"],
        num_generations=job["group_size"],
        max_completion_length=job["max_tokens"],
        max_steps=len(job["rates"]),
        learning_rate=job["rates"][0],
        lr_scheduler_type="constant",
        adam_beta1=job["betas"][0],
        adam_beta2=job["betas"][1],
        max_grad_norm=1.0,
        loss_type="dapo",
        beta=0.0,
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1_000_000,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    with open(sys.argv[1]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    make_trainer(job, Evaluate(job)).train()


if __name__ == "__main__":
    main()
