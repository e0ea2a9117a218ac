"""AutoRL from one sentence, offline: `python -m bench.learning.autorl [--seeds 0]`.

`art/nano-games` is to "answer with one of the words"; the judge, asked over real HTTP, holds "maybe" for the
best of them. Twelve inputs are held out; the figures are the true quality of four answers to each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import art
from art.environments.tasks import yes_no_maybe as task
from art_extensions.scenarios import autorl
from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either
from bench.rows import Row, write_rows

SEEDS = (0, 1, 2)


def quality(messages: Sequence[Mapping[str, Any]]) -> float:
    return task.worth(str(messages[-1].get("content") or ""))


async def learn(seed: int, folder: str) -> autorl.AutoRLReport:
    """The whole run, with a server of its own."""
    generator = ScriptedGenerator(
        inputs=[text for text in task.phrasings() if "'" not in text], rubric="- maybe is the best word"
    )
    async with (
        LlmServer(either(judge=TruthfulJudge(quality), generator=generator)) as server,
        art.LocalBackend(path=f"{folder}/art") as backend,
    ):
        params = {"api_base": server.base_url, "api_key": server.key}
        return await autorl.train(
            "Answer with one of the words.",
            base_model="art/nano-games",
            backend=backend,
            path=folder,
            name=f"words-{seed}",
            system_prompt="",
            generator="writer",
            generator_params=params,
            judge="truth",
            judge_params=params,
            cache=None,
            num_train=24,
            num_test=12,
            similarity=1.0,
            groups_per_step=8,
            group_size=8,
            epochs=2,
            learning_rate=1.5e-3,
            warmup_steps=1,
            final_share=0.2,
            max_tokens=4,
            seed=seed,
            measure=lambda one: quality(one.messages()),
        )


def rows_of(seed: int, report: autorl.AutoRLReport, seconds: float) -> list[Row]:
    compared = report.comparison
    before, after = compared.before.figures["measure"], compared.after.figures["measure"]
    low = compared.measured.low if compared.measured is not None else None
    name = f"autorl-{seed}"
    return [
        Row(
            name=f"{name}: true quality", ours=after, peer=before, unit="mean", ratio=after / before, goal=1.0
        ),
        Row(name=f"{name}: least gain (95 %)", ours=low or 0.0, unit="mean", goal=0.0),
        Row(name=f"{name}: wall time", ours=seconds, unit="s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.autorl", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    rows: list[Row] = []
    for seed in parser.parse_args().seeds:
        with tempfile.TemporaryDirectory(prefix="art-bench-") as folder:
            begin = time.perf_counter()
            report = asyncio.run(learn(seed, folder))
            rows += rows_of(seed, report, time.perf_counter() - begin)
    write_rows("autorl", rows)


if __name__ == "__main__":
    main()
