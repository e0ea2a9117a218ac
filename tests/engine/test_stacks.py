"""Several adapters in one step: what each request gets, and what stays behind when an adapter goes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_models import ask, build_adapter
from test_core import make_core, prompt, run

from art.engine.builtin.core import EngineCore
from art.engine.builtin.lora import Stacks
from art.engine.builtin.peft_folder import read_adapter
from art.engine.protocol import Delta, GenerateRequest


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: build_adapter(folder / name, base, seed=number) for number, name in enumerate("abcd", 1)}


def with_adapters(base: Path, adapters: dict[str, Path], **options: int) -> EngineCore:
    core = make_core(base, **options)
    for name, path in adapters.items():
        core.adapters.add(name, read_adapter(path))
    return core


def mixed(adapters: dict[str, Path]) -> list[GenerateRequest]:
    """Requests of every adapter and of the base, in no order, of several lengths."""
    owners = [*adapters, None, *reversed(adapters), None, *adapters]
    return [
        ask(prompt(seed, 9 + 7 * (seed % 4)), name, max_tokens=6, seed=seed)
        for seed, name in enumerate(owners)
    ]


def passes_through_modules(core: EngineCore) -> list[int]:
    calls: list[int] = []
    core.model.module.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.slow
def test_who_shares_a_step_gets_what_it_gets_alone(base: Path, adapters: dict[str, Path]) -> None:
    together, alone = with_adapters(base, adapters), with_adapters(base, adapters)
    calls = passes_through_modules(together)
    outs = run(together, mixed(adapters))
    assert together.steps <= 8 and not calls  # all in one recorded pass a step
    assert len({tuple(out.token_ids) for out in outs}) == len(outs)
    for request, out in zip(mixed(adapters), outs, strict=True):
        [expected] = run(alone, [request])
        assert out.token_ids == expected.token_ids
        assert out.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.slow
def test_adapters_that_are_not_merged_share_a_step_through_the_modules(
    base: Path, adapters: dict[str, Path]
) -> None:
    outs: list[list[Delta]] = []
    for merge_mb in (0, 64):
        core = with_adapters(base, adapters, merge_mb=merge_mb)
        calls = passes_through_modules(core)
        outs.append(run(core, mixed(adapters)))
        assert bool(calls) == (merge_mb == 0)
    for apart, merged in zip(*outs, strict=True):
        assert apart.token_ids == merged.token_ids
        assert apart.logprobs == pytest.approx(merged.logprobs, abs=1e-4)


@pytest.mark.slow
def test_new_adapters_take_the_place_of_those_that_went(base: Path, adapters: dict[str, Path]) -> None:
    """As each step of training does: the newest policy is what is sampled, whoever shares its batch."""
    core = with_adapters(base, adapters)
    run(core, mixed(adapters))
    core.drop_adapter("b")
    core.adapters.add("e", read_adapter(adapters["b"]))
    requests = [ask(prompt(1, 12), name, max_tokens=6, seed=5) for name in ("a", "e", "c")]
    outs = run(core, requests)
    fresh = with_adapters(base, adapters)
    expected = run(fresh, [ask(prompt(1, 12), name, max_tokens=6, seed=5) for name in ("a", "b", "c")])
    assert [out.token_ids for out in outs] == [out.token_ids for out in expected]


@pytest.mark.slow
def test_no_stack_copies_a_large_model_for_adapters_of_a_few_layers(base: Path, tmp_path: Path) -> None:
    paths = {
        name: build_adapter(tmp_path / name, base, seed=7, target_modules=[target])
        for name, target in (("q", "q_proj"), ("v", "v_proj"))
    }
    core = with_adapters(base, paths)
    core.model.adapters.merge_bytes = 2 * 64 * 128 * 4  # what the queries of both layers weigh
    assert core.model.adapters.flat_weights(1) is not None
    outs = run(core, mixed(paths))
    assert core.model.adapters._stacks._stack is None
    core.model.adapters.merge_bytes = 64 << 20
    for request, out in zip(mixed(paths), outs, strict=True):
        [expected] = run(core, [request])
        assert out.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def weights(number: int) -> list[torch.Tensor] | None:
    return None if number < 0 else [torch.full((2, 3), float(number))]


def test_a_stack_is_kept_while_its_adapters_stay() -> None:
    stacks = Stacks(weights)
    first = stacks.stack_of([1, 2])
    assert first is not None and first.weights[0].shape == (2, 2, 3)
    assert stacks.stack_of([2]) is first
    more = stacks.stack_of([2, 5])
    assert more is not None and more.numbers == (1, 2, 5)
    assert more.weights[0][:, 0, 0].tolist() == [1.0, 2.0, 5.0]
    stacks.remove(1)
    again = stacks.stack_of([2, 5])
    assert again is not None and again.numbers == (2, 5)


def test_a_stack_does_not_grow_with_those_that_no_longer_run() -> None:
    stacks = Stacks(weights)
    sizes = [len(stack.numbers) for number in range(20) if (stack := stacks.stack_of([number, number + 1]))]
    assert len(sizes) == 20 and max(sizes) <= 6


def test_there_is_no_stack_with_an_adapter_that_is_not_merged() -> None:
    stacks = Stacks(weights)
    assert stacks.stack_of([1, -1]) is None
    kept = stacks.stack_of([1, 2])
    assert kept is not None and kept.numbers == (1, 2)
