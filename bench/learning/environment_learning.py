"""The learner of `bench.learning.environments`: a program as a user writes it, for a server at an address.

    .venv-environments/bin/python bench/learning/environment_learning.py JOB.json

Prints a line for each step, and at last a line of JSON: the evaluations before and after, and the reward and
the score of each step.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import art
from art.runs.folder import JudgedRunFolder


def say(line: str) -> None:
    """Prints progress beside the result."""
    print(line, file=sys.stderr)


def count_errors(folder: Path, step: int) -> dict[str, int]:
    """Returns how many rollouts of an evaluation were wrong, by the environment's name of the error."""
    found = (one.metadata.get("error_type") for one in chain(*JudgedRunFolder(folder).evaluation(step) or []))
    return dict(Counter(str(one) for one in found if one).most_common())


async def learn(job: dict[str, Any]) -> dict[str, Any]:
    """Trains on the job's environment; returns what is measured."""
    backend = art.RemoteBackend(job["base_url"], job["key"])
    internal = {"init_args": {"full_finetuning": True}} if job["full_finetuning"] else None
    model = art.TrainableModel(
        name="learner", project="bench", base_model=job["base_model"], base_path=job["folder"],
        _internal_config=internal,
    )  # fmt: skip
    report = await art.train_environment(
        job["environment"],
        model,
        environment_options={"seed": job["seed"], "val": job["evaluations"], **job["options"]},
        backend=backend,
        tell=say,
        eval_scenarios=job["evaluations"],
        eval_group_size=job["evaluation_rollouts"],
        warmup_steps=2,
        final_share=0.1,
        **{
            name: job[name]
            for name in ("steps", "groups_per_step", "group_size", "learning_rate", "max_tokens", "seed")
        },
    )
    await backend.close()
    compared, score = report.comparison, job["score"]
    by_reward = score == "reward"
    sides = {"before": compared.before, "after": compared.after}
    wrong = {"before": count_errors(report.folder, 0), "after": count_errors(report.folder, report.step)}
    return {
        "steps": [
            {
                "step": row.step,
                "reward": row.reward,
                "score": row.reward if by_reward else row.figures[score],
            }
            for row in report.steps
        ],
        **{
            name: {
                "reward": side.judged,
                "interval": side.estimate and [side.estimate.low, side.estimate.high],
                "score": side.judged if by_reward else side.figures[score],
                "rollouts": side.attempts,
                **({"errors": wrong[name]} if any(wrong.values()) else {}),
            }
            for name, side in sides.items()
        },
        "gain": compared.judged and vars(compared.judged),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(learn(json.loads(Path(sys.argv[1]).read_text())))))
