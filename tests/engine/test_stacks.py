"""Several adapters in one step: what each request gets, and what stays behind when an adapter goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import ask, build_adapter
from hypothesis import given, settings
from hypothesis import strategies as st
from test_core import make_core, prompt, run

from art.engine.builtin.core import EngineCore
from art.engine.builtin.grouped_lora import BASE, GroupedLora, Joint
from art.engine.builtin.peft_folder import PeftAdapter, read_adapter
from art.engine.protocol import GenerateRequest


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


@pytest.mark.slow
def test_who_shares_a_step_gets_what_it_gets_alone(base: Path, adapters: dict[str, Path]) -> None:
    together, alone = with_adapters(base, adapters), with_adapters(base, adapters)
    outs = run(together, mixed(adapters))
    assert together.steps <= 8  # all in one pass a step
    assert len({tuple(out.token_ids) for out in outs}) == len(outs)
    for request, out in zip(mixed(adapters), outs, strict=True):
        [expected] = run(alone, [request])
        assert out.token_ids == expected.token_ids
        assert out.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


@pytest.mark.slow
def test_adapters_that_are_not_merged_compute_the_same(base: Path, adapters: dict[str, Path]) -> None:
    outs = []
    for merge_mb in (0, 64):
        core = with_adapters(base, adapters, merge_mb=merge_mb)
        outs.append([run(core, [request])[0] for request in mixed(adapters)])
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


JOINTS = [
    Joint(("a.q", "a.k", "a.v"), (24, 8, 8), 16),
    Joint(("a.o",), (16,), 24),
    Joint(("m.g", "m.u"), (32, 32), 16),
]


class Skeleton(torch.nn.Module):
    """Linear layers of these names, and no output layer."""

    def __init__(self) -> None:
        super().__init__()
        for joint in JOINTS:
            for name, out in zip(joint.names, joint.outs, strict=True):
                parent, leaf = name.split(".")
                if not hasattr(self, parent):
                    self.add_module(parent, torch.nn.Module())
                self.get_submodule(parent).add_module(leaf, torch.nn.Linear(joint.size, out, bias=False))

    def get_output_embeddings(self) -> None:
        return None


def made_up(seed: int, rank: int, touched: list[str]) -> PeftAdapter:
    generator = torch.Generator().manual_seed(seed)
    layers = dict(Skeleton().named_modules())
    weights = {
        name: (
            torch.randn(rank, layers[name].in_features, generator=generator),
            torch.randn(layers[name].out_features, rank, generator=generator),
        )
        for name in touched
    }
    return PeftAdapter(
        Path("x"), alpha=2.0 * rank, rank_stabilized=False, weights=weights, rank=rank, digest=""
    )


NAMES = [name for joint in JOINTS for name in joint.names]


@pytest.mark.slow
@given(
    ranks=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    touched=st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=5, max_size=5),
    numbers=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    gone=st.integers(1, 5),
)
@settings(deadline=None, max_examples=40)
def test_grouped_adapters_are_each_tokens_own_two_products(
    ranks: list[int], touched: list[set[str]], numbers: list[int], gone: int
) -> None:
    lora = GroupedLora(Skeleton(), JOINTS, torch.float32, torch.device("cpu"))
    pairs = enumerate(zip(ranks, touched, strict=False), 1)
    adapters = {number: made_up(number, rank, sorted(names)) for number, (rank, names) in pairs}
    for number, adapter in adapters.items():
        lora.add(number, adapter)
    for _ in range(2):
        adapter_T = np.array([number if number in adapters else BASE for number in numbers])
        turns = lora.turns(adapter_T)
        assert (turns is None) == (adapter_T == BASE).all()
        for place, joint in enumerate(JOINTS):
            x = torch.randn(len(adapter_T), joint.size, generator=torch.Generator().manual_seed(place))
            y = torch.zeros(len(adapter_T), sum(joint.outs))
            if turns is not None:
                order = slice(None) if turns.order is None else turns.order
                back = slice(None) if turns.places is None else turns.places
                y = turns.add_to(y, x[order].clone(), place)[back]
            for row, number in enumerate(adapter_T.tolist()):
                parts = []
                for name, out in zip(joint.names, joint.outs, strict=True):
                    found = adapters[number].weights.get(name) if number else None
                    part = torch.zeros(out) if found is None else 2 * found[1] @ (found[0] @ x[row])
                    parts.append(part)
                assert torch.allclose(y[row], torch.cat(parts), rtol=1e-4, atol=1e-4)
        # Again without one of them: nothing of it may be left in a stack.
        adapters.pop(gone, None)
        lora.remove(gone)


def test_a_stack_is_kept_while_its_adapters_stay_and_does_not_grow_for_ever() -> None:
    lora = GroupedLora(Skeleton(), JOINTS, torch.float32, torch.device("cpu"))
    for number in range(1, 30):
        lora.add(number, made_up(number, 2, ["a.q"]))
    lora.turns(np.array([1, 2]))
    first = lora._stack
    lora.turns(np.array([2, 1, 0]))
    assert lora._stack is first and first is not None and first.numbers == (1, 2)
    lora.remove(1)
    assert lora._stack is None
    for number in range(2, 29):
        lora.turns(np.array([number, number + 1]))
        assert lora._stack is not None and len(lora._stack.numbers) <= 6
