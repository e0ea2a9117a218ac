"""The engine without threads: what is reused, how it behaves when the cache is small, what is freed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_models import VOCAB, ask, build_adapter, run
from hypothesis import given
from hypothesis import strategies as st

from art.engine.builtin import core as core_module
from art.engine.builtin.core import EngineCore
from art.engine.builtin.model import load_model
from art.engine.builtin.peft_folder import read_adapter
from art.engine.builtin.step_batch import shares
from art.engine.protocol import Delta, GenerateRequest
from art.errors import ConfigurationError
from art.wire.engine import BuiltinOptions
from kinds import count_kinds, growing_kinds


def make_core(base: Path, **options: int) -> EngineCore:
    chosen = BuiltinOptions(threads=1, **options)
    return EngineCore(load_model(str(base), chosen), chosen)


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


@pytest.mark.slow
def test_the_next_turn_forwards_only_what_is_new(base: Path) -> None:
    core = make_core(base)
    first = prompt(1, 60)
    [out] = run(core, [ask(first, max_tokens=5)])
    assert core.health().reused_tokens == 0
    run(core, [ask([*first, *out.token_ids, *prompt(2, 10)], max_tokens=5)])
    # The prompt and all sampled ids but the last, which was never forwarded.
    assert core.health().reused_tokens == 60 + 4
    assert core.scheduler.cache.rows and (core.scheduler.table.adapter >= 0).sum() == 1


@pytest.mark.slow
def test_siblings_prompt_is_read_once(base: Path) -> None:
    core = make_core(base)
    run(core, [ask(prompt(1, 60), max_tokens=3) for _ in range(16)])
    assert core.health().reused_tokens == 15 * 59
    # One step for the first, three for it and the fifteen others.
    assert core.steps == 4


@pytest.mark.slow
def test_a_shared_system_prompt_is_read_once(base: Path) -> None:
    core = make_core(base)
    system = prompt(1, 60)
    run(core, [ask([*system, *prompt(seed, 12)], max_tokens=3) for seed in range(8)])
    assert core.health().reused_tokens == 7 * 60


@pytest.mark.slow
def test_without_reuse_a_lone_request_has_the_same_bits_whatever_came_before(base: Path) -> None:
    core = make_core(base, reuse_prefixes=False)
    turns = [prompt(1, 60), [*prompt(1, 60), *prompt(2, 30)], prompt(3, 200)]

    def bits(core: EngineCore) -> list[tuple[list[int], list[float]]]:
        outs = [run(core, [ask(turn, max_tokens=12, seed=5)])[0] for turn in turns]
        return [(out.token_ids, out.logprobs) for out in outs]

    first = bits(core)
    run(core, [ask(prompt(seed, 20 + 9 * seed), max_tokens=20, seed=seed) for seed in range(14)])
    assert bits(core) == first == bits(make_core(base, reuse_prefixes=False))
    assert core.health().reused_tokens == 0
    warm = make_core(base)
    assert bits(warm) != bits(warm), "what is reused is rounded in another order: the option has a cause"


@pytest.mark.slow
def test_a_small_cache_changes_the_order_but_not_the_results(base: Path) -> None:
    requests = [ask(prompt(seed, 20 + 9 * seed), max_tokens=40 + 7 * seed, seed=seed) for seed in range(14)]
    roomy = make_core(base)
    expected = run(roomy, requests)
    assert roomy.health().preempted == 0
    tight = make_core(base, cache_mb=1)
    tight.scheduler.cache.budget = 1024
    outs = run(tight, requests)
    assert tight.health().preempted > 0
    assert tight.scheduler.cache.rows * tight.scheduler.cache.capacity <= 1024
    for out, fresh in zip(outs, expected, strict=True):
        assert out.token_ids == fresh.token_ids
        assert out.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


@pytest.mark.slow
def test_few_rows_serve_many_conversations(base: Path) -> None:
    requests = [ask(prompt(seed % 5, 30), max_tokens=6, seed=seed) for seed in range(40)]
    few, many = make_core(base, cache_rows=3), make_core(base)
    assert [out.token_ids for out in run(few, requests)] == [out.token_ids for out in run(many, requests)]
    assert few.scheduler.cache.rows == 3


@pytest.mark.slow
def test_a_long_prompt_does_not_hold_up_those_that_decode(base: Path) -> None:
    core = make_core(base, max_step_tokens=16)
    core.submit(core.make_sequence(ask(prompt(1, 8), max_tokens=30, stream=True)))
    core.step()
    core.submit(core.make_sequence(ask(prompt(2, 200), max_tokens=2)))
    assert all(len(core.step()) == 1 for _ in range(10))
    while core.has_work:
        core.step()


@pytest.mark.slow
def test_sleep_gives_the_memory_back(base: Path) -> None:
    core = make_core(base)
    run(core, [ask(prompt(1, 100), max_tokens=5)])
    assert core.scheduler.cache.keys[0].numel() > 0
    assert core.sleep().done()
    assert core.scheduler.cache.keys[0].numel() == 0
    core.wake()
    run(core, [ask(prompt(1, 100), max_tokens=5)])


@pytest.mark.slow
def test_cancelling_frees_the_row(base: Path) -> None:
    core = make_core(base)
    sequence = core.make_sequence(ask(prompt(1, 30), max_tokens=100))
    core.submit(sequence)
    core.step()
    core.cancel(sequence)
    core.cancel(sequence)
    assert not core.has_work and core.health().running == 0


def owned(owner: str, ids: list[int], **sampling: float) -> GenerateRequest:
    return replace(ask(ids, **sampling), owner=owner)


def order_of_ends(core: EngineCore, requests: list[GenerateRequest]) -> list[str]:
    """Owners, as their requests end."""
    for request in requests:
        core.submit(core.make_sequence(request))
    ended = []
    while core.has_work:
        ended += [sequence.owner for sequence, _ in core.step()]
    return ended


@pytest.mark.slow
def test_a_flood_of_one_owner_keeps_another_waiting_for_no_more_than_its_turn(base: Path) -> None:
    core = make_core(base, max_running=4)
    flood = [owned("a", prompt(seed, 30), max_tokens=3) for seed in range(40)]
    few = [owned("b", prompt(100 + seed, 30), max_tokens=3) for seed in range(4)]
    ended = order_of_ends(core, [*flood, *few])
    assert len(ended) == 44 and ended[20:].count("b") == 0, "b's four are among the first twenty"


@pytest.mark.slow
def test_who_has_less_than_its_share_is_given_a_running_place(base: Path) -> None:
    core = make_core(base, max_running=4)
    long = [owned("a", prompt(seed, 30), max_tokens=200, seed=seed) for seed in range(4)]
    expected = [out.token_ids for out in run(make_core(base), long)]
    for request in long:
        core.submit(core.make_sequence(request))
    for _ in range(20):
        core.step()
    [short] = run_while(core, [owned("b", prompt(9, 30), max_tokens=3)])
    assert core.health().preempted == 1 and short.finish_reason == "length"
    rest: dict[str, Delta] = {}
    while core.has_work:
        rest |= {sequence.request.request_id: delta for sequence, delta in core.step()}
    assert [rest[request.request_id].token_ids for request in long] == expected, "who gave way lost nothing"


def run_while(core: EngineCore, requests: list[GenerateRequest]) -> list[Delta]:
    """Step until these have ended, whatever else runs."""
    done: dict[str, Delta] = {}
    wanted = {request.request_id for request in requests}
    for request in requests:
        core.submit(core.make_sequence(request))
    while wanted - set(done):
        done |= {sequence.request.request_id: delta for sequence, delta in core.step()}
    return [done[request.request_id] for request in requests]


@pytest.mark.slow
def test_a_long_prompt_shares_each_step_with_the_prompts_of_other_owners(base: Path) -> None:
    core = make_core(base, max_step_tokens=32)
    core.submit(core.make_sequence(owned("a", prompt(1, 200), max_tokens=2)))
    core.step()
    before = core.steps
    run_while(core, [owned("b", prompt(2, 40), max_tokens=1)])
    # 16 of each step's 32 tokens are b's: three steps, while a's prompt needs seven.
    assert core.steps - before == 3
    while core.has_work:
        core.step()


@pytest.mark.slow
@given(
    counts=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    owners=st.lists(st.integers(0, 3), min_size=12, max_size=12),
    room=st.integers(1, 400),
)
def test_shares_use_the_room_and_favour_nobody(counts: list[int], owners: list[int], room: int) -> None:
    wanted, owner = np.array(counts), np.array(owners[: len(counts)])
    taken = shares(wanted, owner, room)
    assert (taken >= 0).all() and (taken <= wanted).all()
    assert taken.sum() == min(room, wanted.sum())
    got = {one: int(taken[owner == one].sum()) for one in owners[: len(counts)]}
    for one, tokens in got.items():
        # Whoever has less than another, give or take a token, has all that it wants.
        if any(tokens + 1 < other for other in got.values()):
            assert tokens == wanted[owner == one].sum()


@pytest.mark.slow
def test_the_cache_is_full_of_one_owners_ids_and_another_still_runs(base: Path) -> None:
    core = make_core(base, cache_mb=1)
    core.scheduler.cache.budget = 1024
    requests = [owned("a", prompt(seed, 60), max_tokens=100, seed=seed) for seed in range(12)]
    mine = [owned("b", prompt(50 + seed, 20), max_tokens=5, seed=seed) for seed in range(3)]
    alone = run(make_core(base), mine)
    for request in requests:
        core.submit(core.make_sequence(request))
    for _ in range(30):
        core.step()
    together = run_while(core, mine)
    assert core.health().waiting > 0, "a's flood is not over"
    assert [out.token_ids for out in together] == [out.token_ids for out in alone]


@pytest.mark.slow
def test_adapters_that_went_leave_nothing_but_a_bounded_number_of_names(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a long run loads one, samples from it, and unloads the one before. No kind of object has one
    more after each step.
    """
    monkeypatch.setattr(core_module, "MOST_NAMES", 8)
    core, path = make_core(base), build_adapter(tmp_path, base, seed=1)
    other = replace(read_adapter(path), digest="of other weights")
    core.adapters.add("pinned", read_adapter(path))
    kinds = []
    for step in range(90):
        core.adapters.add(f"m@{step}", read_adapter(path))
        run(core, [ask(prompt(step * 9 + k, 20), max_tokens=2, adapter=f"m@{step}") for k in range(2)])
        if step:
            core.drop_adapter(f"m@{step - 1}")
            run(core, [ask(prompt(0, 5), max_tokens=1)])
        if step % 30 == 29:
            kinds.append(count_kinds())
    assert core.adapters.names() == ("m@89", "pinned")
    assert growing_kinds(kinds, steps=30) == {}
    assert len(core.adapters.history) == 8
    for known in ("pinned", "m@85", "m@89"):
        with pytest.raises(ConfigurationError, match="take a new name"):
            core.adapters.add(known, other)
