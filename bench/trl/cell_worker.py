"""TRL's side of a cell (`bench/learning`): `GRPOTrainer` learns the world of an example for so many seconds.

    PYTHONPATH=.:src:examples/FOLDER python -P cell_worker.py JOB.json

Runs in TRL's environment; of this project it imports the world of the example and the play of
`learn_worker.py`. A line of JSON for each evaluation: `{"step", "seconds", "tokens", "scores"}`, the last one
with `"rewards"`, the mean of each step. Seconds are those since the process began, evaluations left out.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from importlib import import_module
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from bench.trl.learn_worker import BEGIN, play_all, say


class Worlds:
    """The world file of an example: its class `...World`, and how its scenarios are drawn."""

    def __init__(self, name: str) -> None:
        module = import_module(name)
        self._draw = next(value for key, value in vars(module).items() if key.startswith("draw_"))
        self._world = next(value for key, value in vars(module).items() if key.endswith("World"))

    def make(self, split: str, index: int) -> Any:
        return self._world(self._draw(split, index))


class Timed(TrainerCallback):
    """Evaluates at the job's moments and ends the run before a step that would end too late."""

    def __init__(self, job: dict[str, Any], worlds: Worlds) -> None:
        self.job, self.worlds = job, worlds
        self.due = list(job["evaluate_at"])
        self.paused = self.longest = self.began = 0.0
        self.tokens = 0
        self.rewards: list[float] = []
        self.trainer: GRPOTrainer

    @property
    def seconds(self) -> float:
        return time.perf_counter() - BEGIN - self.paused

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = self.seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.longest = max(self.longest, self.seconds - self.began)
        if self.seconds + self.longest > self.job["seconds"]:
            control.should_training_stop = True
        elif self.due and self.seconds >= self.due[0]:
            self.due = [one for one in self.due if one > self.seconds]
            self.evaluate(state.global_step, each=1)

    def evaluate(self, step: int, *, each: int, **more: Any) -> None:
        begin = time.perf_counter()
        numbers = [index for index in range(self.job["held_out"]) for _ in range(each)]
        worlds = [self.worlds.make("val", index) for index in numbers]
        for start in range(0, len(worlds), self.job["at_once"]):
            self.play(worlds[start : start + self.job["at_once"]])
        found = [world.metrics[self.job["score"]] for world in worlds]
        self.paused += time.perf_counter() - begin
        scores = [found[start : start + each] for start in range(0, len(found), each)]
        say({"step": step, "seconds": self.seconds, "tokens": self.tokens, "scores": scores, **more})

    def play(self, worlds: list[Any]) -> list[Any]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        model.eval()
        plays = play_all(model, self.trainer.processing_class, worlds, self.job["max_tokens"])
        model.train()
        return plays


def make_trainer(job: dict[str, Any], timed: Timed) -> GRPOTrainer:
    """A trainer whose prompts are the numbers of scenarios: `rollout_func` opens and plays them."""

    def roll_out(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        plays = timed.play([timed.worlds.make("train", int(prompt)) for prompt in prompts])
        rewards = [one.world.reward for one in plays]
        timed.tokens += sum(sum(one.mask) for one in plays)
        timed.rewards.append(round(sum(rewards) / len(rewards), 4))
        return {
            "prompt_ids": [one.prompt for one in plays],
            "completion_ids": [one.completion for one in plays],
            "env_mask": [one.mask for one in plays],
            "logprobs": [[0.0] * len(one.completion) for one in plays],  # read where vLLM samples
            "played": rewards,
        }

    def played_reward(played: list[float], **_: Any) -> list[float]:
        return played

    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        reward_funcs=played_reward,
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        train_dataset=Dataset.from_list([{"prompt": str(number)} for number in range(2000)]),
        rollout_func=roll_out,
        peft_config=LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", **job["lora"]),
        callbacks=[timed],
        args=GRPOConfig(
            output_dir=job["folder"],
            seed=job["seed"],
            max_completion_length=256,  # of a whole game; each reply has its own limit
            max_steps=100_000,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            logging_steps=1_000_000,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            **job["settings"],
        ),
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    with open(sys.argv[1]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    timed = Timed(job, Worlds(job["world"]))
    timed.trainer = make_trainer(job, timed)
    timed.trainer.train()
    timed.evaluate(timed.trainer.state.global_step, each=2, rewards=timed.rewards)


if __name__ == "__main__":
    main()
