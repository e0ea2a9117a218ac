"""One gradient on the real model in this process: the tree against plain rows, in CPU seconds."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from art.batch.batch_types import GroupRow, RolloutRow, SampleRow
from art.training.lora import LoraAdapters
from art.training.policy import load_policy
from art.wire.training import LoraSpec
from bench.gradient.our_steps import OurSteps
from bench.real.records import Measured


def gradient_cpu(model: Path, *, groups: int, size: int, prompt: int, answer: int = 32) -> Measured:
    """CPU seconds of the gradient of some groups, as one tree and with nothing shared."""
    with tempfile.TemporaryDirectory(prefix="art-real-") as name:
        adapter = Path(name)
        adapters = LoraAdapters(load_policy(str(model), name="bench"))
        adapters.attach("a1", LoraSpec(), seed=0)
        adapters.save("a1", adapter)
        ours = OurSteps(model, adapter)
        tree = make_groups(groups, size, prompt, answer, shared=True)
        rows = make_groups(groups, size, prompt, answer, shared=False)
        ours.step(tree)  # the first of a process is slower
        found: Measured = {}
        for kind, batch in (("tree", tree), ("rows", rows)):
            begin = time.process_time()
            step = ours.step(batch)
            found |= {kind: time.process_time() - begin, f"{kind}_tokens": step.tokens}
        return found


def make_groups(groups: int, size: int, prompt: int, answer: int, *, shared: bool) -> list[GroupRow]:
    """Groups of random ids. Not shared: each rollout has a prompt of its own."""
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(1000, 40_000) for _ in range(count)]

    made = []
    for group in range(groups):
        common, rollouts = ids(prompt), []
        for place in range(size):
            sample = SampleRow(
                sample_id=f"{group}-{place}",
                prompt_ids=common if shared else ids(prompt),
                completion_ids=ids(answer),
                completion_logprobs=[-2.0] * answer,
                step=0,
            )
            rollouts.append(RolloutRow(rollout=sample.sample_id, reward=float(place % 2), samples=[sample]))
        made.append(GroupRow(rollouts=rollouts))
    return made
