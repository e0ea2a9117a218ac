"""Decoding steps by graphs give what the steps give. On a CPU a recorder stands in that computes again on a
graph's own inputs; the graphs themselves need a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "contracts"))

from engine_models import ask, build_adapter, build_qwen3, run, save_model
from transformers import Qwen3Config

from art.engine.builtin import model as model_module
from art.engine.builtin.cache import RowCache
from art.engine.builtin.core import EngineCore
from art.engine.builtin.model import load_model
from art.engine.builtin.peft_folder import read_adapter
from art.engine.protocol import GenerateRequest
from art.wire.engine import BuiltinOptions
from art_extensions.cuda_graphs.graphed_decoder import GraphedDecoder, Replay, filled_up

pytestmark = [pytest.mark.slow, pytest.mark.extension]
CLOSE = 2e-5
GPU = torch.cuda.is_available()


class Again:
    """A recorder that computes again. `wrong` is added to what it gives."""

    def __init__(self, wrong: float = 0.0, error: str = "") -> None:
        self.recorded = self.replayed = 0
        self.wrong, self.error = wrong, error

    def record(self, compute: Callable[[], Tensor]) -> Replay:
        if self.error:
            raise RuntimeError(self.error)
        self.recorded += 1
        result = compute() + self.wrong

        def replay() -> None:
            self.replayed += 1
            result.copy_(compute())

        return Replay(replay, result)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_qwen3(tmp_path_factory.mktemp("base"))


def make_core(base: Path, **options: Any) -> EngineCore:
    # Adapters that are merged have products of their own; here they meet the tokens.
    chosen = BuiltinOptions(**{"device": "cpu", "threads": 1, "merge_mb": 0, **options})
    return EngineCore(load_model(str(base), chosen), chosen)


def graphed_core(base: Path, recorder: Again, monkeypatch: pytest.MonkeyPatch, **options: Any) -> EngineCore:
    def make(*given: Any) -> GraphedDecoder:
        return GraphedDecoder(*given, recorder=recorder)

    with monkeypatch.context() as patch:
        patch.setattr(model_module, "_decoder_kind", lambda device: make)
        return make_core(base, **options)


def requests(adapters: list[str | None], lengths: tuple[int, int] = (5, 40)) -> list[GenerateRequest]:
    draw = np.random.default_rng(len(adapters))
    return [
        replace(
            ask(
                draw.integers(0, 60, 4 + 3 * n).tolist(),
                name,
                max_tokens=int(draw.integers(*lengths)),
                seed=n,
            ),
            request_id=str(n),
        )
        for n, name in enumerate(adapters)
    ]


MIXES: list[list[str | None]] = [
    [None],
    ["one"] * 7,
    [None] * 11,
    ["one", "two", "one"],
    ["one", None, None, None],
    ["two"] * 18,
]


def test_steps_by_graphs_are_those_without(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Again()
    cores = [make_core(base), graphed_core(base, recorder, monkeypatch)]
    for core in cores:
        for seed, name in enumerate(("one", "two")):
            path = build_adapter(tmp_path / name, base, seed=seed, r=4)
            core.adapters.add(name, read_adapter(path))
    for mix in MIXES:
        plain, graphed = (run(core, requests(mix)) for core in cores)
        for one, other in zip(plain, graphed, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
    assert 5 < recorder.recorded < recorder.replayed


def test_graphs_go_with_an_adapter_and_with_the_cache(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = graphed_core(base, Again(), monkeypatch)
    passes = core.model.passes
    assert isinstance(passes, GraphedDecoder)
    core.adapters.add("one", read_adapter(build_adapter(tmp_path / "one", base, seed=1, r=4)))
    run(core, requests(["one"] * 3))
    assert passes._graphs
    core.drop_adapter("one")
    assert not passes._graphs
    run(core, requests([None] * 3))
    assert passes._graphs
    core.sleep()
    assert not passes._graphs, "they would read memory that others have now"
    core.wake()
    assert len(run(core, requests([None] * 2))) == 2
    cache = core.scheduler.cache
    assert isinstance(cache, RowCache) and passes._graphs
    cache.resize(list(range(cache.rows)), cache.rows + 1, cache.capacity)
    assert not passes._graphs


@pytest.mark.parametrize("broken", [{"wrong": 1.0}, {"error": "CUDA error: operation not permitted"}])
def test_where_graphs_fail_decoding_goes_on_without(
    base: Path, broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Again(**broken)
    core = graphed_core(base, recorder, monkeypatch)
    asked = requests([None] * 4)
    expected = run(make_core(base), asked)
    got = run(core, asked)
    assert [one.token_ids for one in got] == [one.token_ids for one in expected]
    (warned,) = [one.getMessage() for one in caplog.records if "without CUDA graphs" in one.getMessage()]
    assert broken.get("error", "differs from its step") in warned
    assert recorder.recorded <= 1 and not recorder.replayed


def test_numbers_of_requests_are_filled_up_by_a_quarter_at_most() -> None:
    for tokens in range(1, 2000):
        assert tokens <= filled_up(tokens) <= 1.25 * tokens
    assert len({filled_up(tokens) for tokens in range(1, 257)}) < 32


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_gpu_sampled_logprobs_are_those_of_scoring(
    tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"vocab_size": 64, "num_hidden_layers": 3, "head_dim": 64, "max_position_embeddings": 1024}
    folder = save_model(tmp_path / "base", Qwen3Config(**shape, **sizes))
    core = make_core(folder, device="cuda", dtype=dtype)
    passes = core.model.passes
    assert isinstance(passes, GraphedDecoder)
    core.adapters.add("one", read_adapter(build_adapter(tmp_path / "one", folder, seed=1, r=8)))
    close = 1e-3 if dtype == "float32" else 0.05
    for mix in (["one"] * 21, [None] * 5, ["one", None, "one"], ["one"]):
        asked = requests(mix, (20, 330))
        for request, out in zip(asked, run(core, asked), strict=True):
            row = [*request.prompt_ids, *out.token_ids]
            scored = core.score(request.adapter, [row])[0][len(request.prompt_ids) - 1 :]
            assert out.logprobs == pytest.approx(scored, abs=close)
    assert passes._records and passes._graphs and not caplog.records, caplog.text
    core.sleep()
    assert not passes._graphs
