"""Whole models beside the base: each computes what transformers computes of its folder, whoever runs too."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from engine_models import VOCAB, ask, build_adapter, build_qwen3, reference_logprobs, whole
from peft import PeftModel
from test_core import make_core, run
from transformers import AutoModelForCausalLM

from art.engine.builtin.core import read_folder
from art.engine.builtin.decoder import Decoder
from art.engine.builtin.engine import BuiltinEngine
from art.errors import CheckpointError, ConfigurationError, NotFoundError
from art.wire.engine import BuiltinOptions
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

OPTIONS = BuiltinOptions(dtype="float32", device="cpu", threads=1, max_running=16, max_waiting=64)
CLOSE = 1e-4


def prompt(seed: int, length: int = 12) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


def trained(folder: Path, base: Path, seed: int) -> Path:
    """A model as full fine-tuning leaves it: every weight moved, and the trainer's own files beside."""
    model = AutoModelForCausalLM.from_pretrained(base)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    model.save_pretrained(folder)
    (folder / "optimizer.safetensors").write_bytes(b"read by nobody here")
    return folder


@pytest.fixture(scope="session")
def folders(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("whole")
    return {
        "one@1": trained(folder / "one", base, 1),
        "two@1": trained(folder / "two", base, 2),
        "lora@1": build_adapter(folder / "lora", base, seed=3),
    }


@pytest.fixture
async def engine(base: Path) -> AsyncIterator[BuiltinEngine]:
    made = await BuiltinEngine.start(str(base), OPTIONS)
    yield made
    await made.close()


def reference(base: Path, folders: dict[str, Path], name: str | None, row: list[int]) -> list[float]:
    if name == "lora@1":
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folders[name])
    else:
        model = AutoModelForCausalLM.from_pretrained(base if name is None else folders[name])
    return reference_logprobs(model, row)


async def test_each_computes_its_own_weights_in_one_crowd(
    engine: BuiltinEngine, base: Path, folders: dict[str, Path]
) -> None:
    given = prompt(9, 40)  # the same for all: no cached prefix may be shared
    for name, path in folders.items():
        await engine.load_adapter(name, path)
    requests = [ask(given, name, max_tokens=10, seed=4) for name in (None, *folders) for _ in range(2)]
    outs = await asyncio.gather(*(whole(engine.generate(request)) for request in requests))
    assert len({tuple(out.token_ids) for out in outs}) == 1 + len(folders)
    for request, out in zip(requests, outs, strict=True):
        row = [*given, *out.token_ids]
        expected = reference(base, folders, request.adapter, row)
        assert out.logprobs == pytest.approx(expected[len(given) - 1 :], abs=CLOSE)
        assert (await engine.score(request.adapter, [row]))[0] == pytest.approx(expected, abs=CLOSE)
        again = await whole(engine.generate(request))
        assert again.token_ids == out.token_ids


async def test_an_unloaded_model_is_gone_and_the_others_go_on(
    engine: BuiltinEngine, folders: dict[str, Path]
) -> None:
    before = await engine.score(None, [prompt(1)])
    await engine.load_adapter("one@1", folders["one@1"])
    stream = engine.generate(ask(prompt(2), "one@1", max_tokens=60, seed=1, stream=True))
    first = await anext(stream)  # of one token or, on a busy machine, of several
    unloading = asyncio.create_task(engine.unload_adapter("one@1"))
    rest = await whole(stream)
    assert len(first.token_ids) + len(rest.token_ids) == 60
    await asyncio.wait_for(unloading, DEADLINE_S)
    with pytest.raises(NotFoundError):
        await engine.score("one@1", [prompt(1)])
    assert not engine._core.model.whole_models
    assert await engine.score(None, [prompt(1)]) == before


async def test_a_name_stands_for_the_same_weights_for_ever(
    engine: BuiltinEngine, folders: dict[str, Path]
) -> None:
    for _ in range(2):
        await engine.load_adapter("one@1", folders["one@1"])
    with pytest.raises(ConfigurationError, match="take a new name"):
        await engine.load_adapter("one@1", folders["two@1"])


async def test_what_does_not_fit_is_refused_and_the_engine_goes_on(
    engine: BuiltinEngine, base: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    other = build_qwen3(tmp_path / "other", num_hidden_layers=3)
    with pytest.raises(CheckpointError, match="trained on another model"):
        await engine.load_adapter("other@1", other)
    broken = trained(tmp_path / "broken", base, 5)
    content = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="cannot be served"):
        await engine.load_adapter("broken@1", broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        await engine.load_adapter("broken@1", broken)
    assert (await engine.info()).adapters == ()
    assert len((await whole(engine.generate(ask(prompt(1), max_tokens=3)))).token_ids) == 3


def test_nothing_of_a_model_is_left_when_it_goes(base: Path, folders: dict[str, Path]) -> None:
    """Full fine-tuning brings one each step: what stays of one stays of hundreds."""
    core = make_core(base)
    core.adapters.add("one@1", read_folder(folders["one@1"]))
    [model] = core.model.whole_models.values()
    assert isinstance(model.passes, Decoder)
    weights = [product._weight for product in model.passes._products]
    left = [weakref.ref(one) for one in (model.passes, *weights)]
    del weights
    run(core, [ask(prompt(1), "one@1", max_tokens=3)])
    del model
    core.drop_adapter("one@1")
    gc.collect()
    assert [one() for one in left] == [None] * len(left)
