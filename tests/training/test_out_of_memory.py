from __future__ import annotations

import subprocess
import sys

import pytest

from art.errors import TrainingError
from art.training.device_memory import with_half_budget_retry

pytestmark = pytest.mark.slow

CHILD = """
import resource, sys
import torch
from art.errors import TrainingError
from art.training.device_memory import with_half_budget_retry

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
    print("result", with_half_budget_retry(run, int(sys.argv[1]), longest=10))
except TrainingError as error:
    print("error", error)
print("asked", asked)
"""


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
        with_half_budget_retry(run, 800, longest=900)
    assert asked == [800]


def test_other_errors_pass() -> None:
    def run(budget: int) -> int:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        with_half_budget_retry(run, 800, longest=1)
