from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policies import policy

from art.engine.builtin.free_memory import cgroup_left, free_memory
from art.training.device_memory import MemoryPeak, used_memory
from art.training.lora import LoraAdapters
from art.training.memory_plan import (
    HOARDING,
    KEEP,
    TWICE,
    Footprint,
    MemoryPlanner,
    measure_footprint,
    plan_memory,
)
from art.wire.training import LoraSpec

GIGABYTE = 2**30
COST = Footprint(layers=10, token=1e5, layer_input=1e3, logit=1e6, chunk=1e8, state=1e7)
CALIBRATION = """
import sys, warnings
warnings.filterwarnings("ignore")
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from test_memory_plan import measure_peak
print(*measure_peak(sys.argv[2] == "twice"))
"""


def plan(**changed: object) -> object:
    asked = dict(
        token_budget=None, cpu=True, checkpointing="auto", longest=500, free=64 * GIGABYTE, used=GIGABYTE
    )
    return plan_memory(COST, **{**asked, **changed})  # type: ignore[arg-type]


def test_with_room_the_budget_is_the_largest_and_nothing_is_computed_twice() -> None:
    made = plan()
    assert (made.token_budget, made.way, made.fits) == (8192, HOARDING, True)
    made = plan(cpu=False)
    assert (made.token_budget, made.way) == (32768, KEEP)
    assert made.metrics["memory/planned_mb"] == pytest.approx((GIGABYTE + made.needed) / 2**20)


def test_less_memory_shrinks_the_budget_then_keeps_nothing_that_is_free_then_computes_twice() -> None:
    ways = []
    for free in (4.0, 1.5, 0.6, 0.3, 0.2):
        made = plan(free=int(free * GIGABYTE))
        assert made.fits
        ways.append((made.token_budget, made.way))
    assert ways == [(8192, HOARDING), (4096, HOARDING), (1024, HOARDING), (1024, KEEP), (4096, TWICE)]


def test_a_given_budget_stays_and_a_long_path_counts() -> None:
    assert plan(token_budget=3000).token_budget == 3000
    made = plan(token_budget=3000, free=10**8)
    assert (made.token_budget, made.way, made.fits) == (3000, TWICE, False)
    assert plan(token_budget=100, longest=5000).needed == plan(token_budget=5000, longest=5000).needed
    assert "not" not in str(made) and "micro-batches of 3,000 tokens" in str(made)


def test_checkpointing_can_be_forced_and_forbidden() -> None:
    assert plan(checkpointing="on").way == TWICE
    made = plan(checkpointing="off", free=10**7)
    assert (made.token_budget, made.way, made.fits) == (1024, KEEP, False)


@pytest.mark.slow
def test_weighing_changes_nothing_and_counts_every_layer() -> None:
    tiny = policy()
    LoraAdapters(tiny).attach("a1", LoraSpec(r=3, alpha=6, dropout=0.5), seed=0)
    before = torch.get_rng_state()
    cost = measure_footprint(tiny, [torch.nn.Parameter(torch.zeros(100))])
    assert torch.equal(before, torch.get_rng_state())
    # Of each layer at least: its input, its normed input, both again at the MLP, and four of its width.
    assert cost.layers == 2 and cost.token >= 2 * 4 * (4 * 16 + 4 * 24)
    assert cost.layer_input == 4 * 16 and cost.logit == 3 * 4 * 23


def test_the_planner_sets_the_policy() -> None:
    tiny = policy()
    adapters = LoraAdapters(tiny)
    adapters.attach("a1", LoraSpec(r=3, alpha=6), seed=0)
    parameters = list(adapters.parameters("a1").values())
    made = MemoryPlanner(tiny, token_budget=64, checkpointing="on").plan(parameters, longest=10)
    assert tiny.checkpoint_activations and made.token_budget == 64 and made.fits
    MemoryPlanner(tiny, token_budget=None).plan(parameters, longest=10)
    assert not tiny.checkpoint_activations


def measure_peak(twice: bool) -> tuple[int, int]:
    """Planned and measured bytes of one pass over 2048 tokens of a small model. Runs in a fresh process."""
    from transformers import Qwen3Config

    from art.process.resources import give_back_freed_memory
    from art.training.packing.runs import MicroBatch

    config = Qwen3Config(
        vocab_size=4000,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = policy(config, block=128, long=64)
    adapters = LoraAdapters(model)
    adapters.attach("a1", LoraSpec(), seed=0)
    cost = measure_footprint(model, list(adapters.parameters("a1").values()))
    model.checkpoint_activations = twice

    def one_pass(tokens: int) -> None:
        row = np.arange(tokens)
        micro = MicroBatch(
            tokens_T=row,
            depth_T=row,
            end_T=np.full(tokens, tokens),
            repeated=0,
            predictor_P=row[:-1],
            target_predictor_N=row[:-1],
            target_id_N=row[1:],
            entry_E=row[:-1],
            entry_target_E=row[:-1],
        )
        model.entry_scores(micro)[0].logprobs_E.sum().backward()

    one_pass(64)
    give_back_freed_memory()
    before, peak = used_memory(model.device), MemoryPeak(model.device)
    one_pass(2048)
    return cost.bytes(2048, TWICE if twice else KEEP), peak.bytes() - before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("way", ["once", "twice"])
def test_what_is_planned_is_what_is_used(way: str) -> None:
    command = [sys.executable, "-c", CALIBRATION, str(Path(__file__).parent), way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=environment)
    planned, measured = (int(number) for number in done.stdout.split())
    assert 0.7 < planned / measured < 1.5


def test_free_memory_is_no_more_than_the_machine_has() -> None:
    assert 0 < free_memory(torch.device("cpu")) < 2**50
    used, peak = used_memory(torch.device("cpu")), MemoryPeak(torch.device("cpu"))
    block = bytearray(b"x") * (64 * 2**20)
    assert peak.bytes() >= used + len(block) // 2


def test_limits_of_containers(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    assert cgroup_left(membership, tmp_path) is None
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (tmp_path / "a", "1000")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("700\n")
        (folder / "memory.stat").write_text("anon 500\ninactive_file 100\n")
    membership.write_text("0::/a/b\n")
    assert cgroup_left(membership, tmp_path) == 400, "the limit above counts; cache is given back"
    old = tmp_path / "memory" / "c"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("900\n")
    (old / "memory.usage_in_bytes").write_text("800\n")
    (old / "memory.stat").write_text("total_inactive_file 50\n")
    membership.write_text("4:cpu,memory:/c\n0::/\n")
    assert cgroup_left(membership, tmp_path) == 150
