"""mini-swe-agent, the package, trains `art/smollm2` on Harbor's task folders: the reward before and after.

    python -m bench.learning.coding_agent --agent-python agents/bin/python --folder /tmp/coding-agent

Each task asks for a word in a file of that name, in the process jail. The prompt is short, and the replies
have the form of a command: the model learns which command it is. Prints a line a step, and at last JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import art

WORDS = (
    "apple bread chair dance eagle flame grape horse igloo juice knife lemon mouse night ocean paper "
    "queen river sugar table uncle voice water yacht zebra amber beach cloud dream earth field glass"
)
TEST = """#!/bin/bash
reward=0
if cat /app/*.txt 2>/dev/null | grep -q {word}; then reward=0.25; fi
if [ -f /app/{word}.txt ]; then reward=0.5; fi
if [ "$(cat /app/{word}.txt 2>/dev/null)" = {word} ]; then reward=1; fi
echo $reward > /logs/verifier/reward.txt
"""
CONFIG = """\
agent:
  system_template: |
    You solve a task with one bash command in each reply, in a block:
    ```mswea_bash_command
    echo hello > greeting.txt
    ```
  instance_template: "{{task}}"
model:
  model_class: litellm_textbased
  format_error_template: Write one command in a ```mswea_bash_command block.
"""
COMMAND = r"```mswea_bash_command\n[^`\n]{1,40}\n```"
HELD_OUT = 8


def write_tasks(folder: Path) -> Path:
    """Writes a task folder for each word. Returns the folder of all of them."""
    for word in WORDS.split():
        files = {
            "task.toml": "[agent]\ntimeout_sec = 600\n[verifier]\ntimeout_sec = 60\n",
            "instruction.md": f"Write the word {word} to the file {word}.txt.",
            "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
            "tests/test.sh": TEST.format(word=word),
            "solution/solve.sh": f"#!/bin/bash\necho {word} > {word}.txt\n",
        }
        for name, text in files.items():
            path = folder / word / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


async def learn(asked: argparse.Namespace) -> dict[str, object]:
    """Trains, and returns the evaluations before and after and the reward of each step."""
    folder: Path = asked.folder
    tasks, config = write_tasks(folder / "tasks"), folder / "short.yaml"
    config.write_text(CONFIG)
    report = await art.train_environment(
        f"harbor:{tasks}",
        asked.base_model,
        name=f"coder-{asked.seed}",
        path=folder / "art",
        environment_options={
            "agent": "mini-swe-agent",
            "agent_python": asked.agent_python,
            "agent_config": str(config),
            "max_turns": 1,
            "val": HELD_OUT,
            "request": {"extra_body": {"guided_regex": COMMAND}},
        },
        tell=lambda line: print(line, file=sys.stderr, flush=True),
        steps=asked.steps,
        groups_per_step=asked.groups,
        group_size=8,
        learning_rate=asked.learning_rate,
        max_tokens=48,
        eval_scenarios=HELD_OUT,
        seed=asked.seed,
    )
    compared = report.comparison
    return {
        "steps": [{"step": row.step, "reward": row.reward} for row in report.steps],
        "before": compared.before.judged,
        "after": compared.after.judged,
        "gain": compared.judged and vars(compared.judged),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agent-python", required=True, help="the interpreter that has mini-swe-agent")
    parser.add_argument("--folder", type=Path, required=True, help="of tasks, runs and models")
    parser.add_argument("--base-model", default="art/smollm2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--groups", type=int, default=4, help="task folders a step")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    print(json.dumps(asyncio.run(learn(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
