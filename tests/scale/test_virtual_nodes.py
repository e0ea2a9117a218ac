"""100 nodes and 5,000 rollouts in virtual time: nodes die, a rack is lost, some fall silent, loads hang, and
steps are promoted meanwhile.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench.nodes.scale import faults, hardships
from bench.nodes.virtual_clock import run_virtually
from bench.nodes.virtual_nodes import Hardships
from bench.nodes.virtual_run import Outcome, Plan, simulate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    hard = hardships(100)["lives of 100 h"]
    plan = Plan(nodes=100, rollouts=5000, at_once=1600, hardships=hard)
    return simulate(plan, tmp_path_factory.mktemp("virtual"))


def test_no_request_is_lost_and_none_is_answered_twice(outcome: Outcome) -> None:
    assert outcome.requests > 15_000
    assert not outcome.failed and not outcome.doubled
    assert sum(outcome.steps.values()) == outcome.requests


def test_each_completion_was_drawn_by_the_step_that_it_is_recorded_with(outcome: Outcome) -> None:
    assert not outcome.wrong
    assert len(outcome.steps) > 10, "many steps were served in turn"


def test_an_adapter_is_on_all_serving_replicas_before_its_name_moves(outcome: Outcome) -> None:
    assert outcome.promotions > 10 and not outcome.promotion_failures and not outcome.uneven


def test_what_fails_is_restarted_once_and_nothing_is_given_up(outcome: Outcome) -> None:
    assert outcome.happened["deaths of the rack"] == 10 and outcome.happened["cuts"] == 10
    assert 10 <= outcome.restarts <= faults(outcome) and not outcome.given_up


def test_loads_are_even_and_most_rollouts_stay(outcome: Outcome) -> None:
    looks = sorted(outcome.balance)
    assert looks and looks[len(looks) // 2] <= 1.5
    assert outcome.moved / outcome.turns_after_another < 0.15


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_one_course(seed: int, tmp_path: Path) -> None:
    hard = Hardships(mean_life=5 * 3600.0, lost_rack=2, cuts=3, slow_loads=0.01)
    plan = Plan(nodes=12, rollouts=100, at_once=48, hardships=hard, seed=seed)
    one, other = simulate(plan, tmp_path / "one"), simulate(plan, tmp_path / "other")
    one.cpu = other.cpu = 0.0
    assert one == other


def test_a_wrong_adapter_and_a_lost_request_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks can fail: engines that load other weights than those named, a pool that gives up at once."""
    from bench.nodes import virtual_nodes

    from art.engine.replicas import pool
    from art.server.checkpoints import canary

    plan = Plan(nodes=8, rollouts=60, at_once=32, hardships=Hardships(lost_rack=3, rack_at=300.0))
    monkeypatch.setattr(pool, "DEATHS", 1)
    assert simulate(plan, tmp_path / "lost").failed
    monkeypatch.undo()
    load = virtual_nodes.VirtualEngine.load_adapter

    async def load_other(self: virtual_nodes.VirtualEngine, name: str, path: Path) -> None:
        await load(self, name, path)
        self.adapters[name] += self.node.number == 3

    monkeypatch.setattr(virtual_nodes.VirtualEngine, "load_adapter", load_other)
    monkeypatch.setattr(canary.Canary, "check", lambda *args: None)
    found = simulate(plan, tmp_path / "wrong")
    assert found.wrong and found.uneven


def test_hours_pass_at_once_and_in_order() -> None:
    async def wait() -> list[float]:
        loop, ends = asyncio.get_running_loop(), list[float]()

        async def end_after(seconds: float) -> None:
            await asyncio.sleep(seconds)
            ends.append(loop.time())

        await asyncio.gather(end_after(7200.0), end_after(1.0), asyncio.to_thread(lambda: None))
        return ends

    assert run_virtually(wait()) == pytest.approx([1.0, 7200.0])


def test_a_wait_that_nothing_can_end_is_an_error() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nothing can happen any more"):
        run_virtually(wait())
