from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_policies import MODEL, games, policy, qwen3, randomize

from art.batch.algorithms import resolve
from art.errors import TrainingError
from art.training.device_memory import HalfBudgetRetry
from art.training.packing.runs import MicroBatch
from art.training.ranks.deal import Share
from art.training.step import BatchStep
from art.training.tally import Tally
from art.training.trainer import Trainer
from art.wire.training import LoraSpec, OptimizerSpec, TrainRequest

pytestmark = pytest.mark.slow

CHILD = """
import resource, sys
import torch
from art.errors import TrainingError
from art.training.device_memory import HalfBudgetRetry

torch.set_num_threads(1)
torch.ones(8, 8) @ torch.ones(8, 8)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 300 * 2**20,) * 2)
asked = []

def run(budget):
    asked.append(budget)
    pieces = [torch.ones(budget, 2**18) for _ in range(2)]  # 2 MiB a token, kept while the error is raised
    return len(pieces)

try:
    for attempt in HalfBudgetRetry(int(sys.argv[1]), longest=10).attempts():
        with attempt as budget:
            result = run(budget)
    print("result", result)
except TrainingError as error:
    print("error", error)
print("asked", asked)
"""


COUNTED = ("data/step_trainer_tokens", "data/micro_batches", "data/forwarded_tokens", "loss/train")


def tried(run: Callable[[int], int], budget: int, *, longest: int) -> None:
    for attempt in HalfBudgetRetry(budget, longest=longest).attempts():
        with attempt as given:
            run(given)


def child(budget: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(budget)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are enforced by Linux")
def test_a_process_that_runs_out_of_memory_trains_with_half_the_budget() -> None:
    """200 tokens need 400 MiB of 300; 100 need 200, which are there only if the failed pass was let go."""
    assert child(100) == "result 2\nasked [100]\n"
    assert child(200) == "result 2\nasked [200, 100]\n"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are enforced by Linux")
def test_it_gives_up_after_one_retry_and_says_what_to_do() -> None:
    said = child(4000)
    assert said.endswith("asked [4000, 2000]\n")
    for part in ("token budget of 2000", "longest path has 10 tokens", "checkpoint_activations"):
        assert part in said


def test_a_path_longer_than_half_the_budget_is_not_tried_again_in_vain() -> None:
    asked = []

    def run(budget: int) -> int:
        asked.append(budget)
        raise MemoryError

    with pytest.raises(TrainingError, match="longest path has 900 tokens"):
        tried(run, 800, longest=900)
    assert asked == [800]


def test_other_errors_pass() -> None:
    def run(budget: int) -> int:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        tried(run, 800, longest=1)


def test_a_backward_pass_without_memory_holds_nothing_while_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step is that of half the budget from the start, and the graph of the failed pass is gone before."""
    batch = games(4)
    longest = int(batch.tree.depth_T.max()) + 1
    made, plain = trainer(8 * longest), trainer(4 * longest)
    request = TrainRequest(
        model=MODEL,
        step=0,
        algorithm=resolve("sft"),
        optimizer=OptimizerSpec(learning_rate=1e-2),
        normalizer=batch.normalizer,
    )
    losses: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []
    begin, loss = BatchStep.begin_update, BatchStep.loss

    def begun(step: BatchStep, rows_E: np.ndarray, tally: Tally, budget: int) -> Share:
        alive.extend(one() is not None for one in losses)
        return begin(step, rows_E, tally, budget)

    def lossy(step: BatchStep, micro: MicroBatch, tally: Tally) -> torch.Tensor:
        computed = loss(step, micro, tally)
        if not losses:
            losses.append(weakref.ref(computed))
            computed.register_hook(_out_of_memory)
        return computed

    monkeypatch.setattr(BatchStep, "begin_update", begun)
    monkeypatch.setattr(BatchStep, "loss", lossy)
    metrics = made.train(batch.tree, batch.entries, request)
    assert alive == [False]
    monkeypatch.undo()
    expected = plain.train(batch.tree, batch.entries, request)
    for name, one in made.parameters(MODEL).items():
        assert torch.equal(one, plain.parameters(MODEL)[name])
    assert {name: metrics[name] for name in COUNTED} == {name: expected[name] for name in COUNTED}


def trainer(token_budget: int) -> Trainer:
    made = Trainer(policy(qwen3(), dtype=torch.float64), token_budget=token_budget)
    made.open(MODEL, LoraSpec(r=3, alpha=6, dropout=0.1), seed=1)
    randomize(made.parameters(MODEL))
    return made


def _out_of_memory(_: torch.Tensor) -> None:
    raise MemoryError
