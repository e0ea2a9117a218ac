"""What every engine must do. A new engine joins with one more `engine` parameter."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
from engine_models import (
    CONTEXT,
    END,
    VLLM_ENVIRONMENT,
    VOCAB,
    ask,
    build_adapter,
    build_qwen3,
    reference_logprobs,
    running_vllm,
    running_worker,
    whole,
)
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from art.engine.builtin.engine import BuiltinEngine
from art.engine.protocol import Constraint, Engine, EngineInfo, ServerOrder
from art.engine.remote import RemoteEngine
from art.engine.replicas.pool import EnginePool
from art.errors import (
    CheckpointError,
    ConfigurationError,
    NotFoundError,
    OverloadedError,
    RequestError,
    WorkerError,
)
from art.wire.engine import MOST_ALTERNATIVES, Alternatives, BuiltinOptions
from art.wire.samples import MAX_CANDIDATES, split_candidates
from waiting import DEADLINE_S, until

if TYPE_CHECKING:
    from art_extensions.vllm.engine import VllmEngine

OPTIONS = BuiltinOptions(dtype="float32", device="cpu", threads=1, max_running=16, max_waiting=64)
CLOSE = 1e-4
DRAWS = 200


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_qwen3(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "plain": build_adapter(folder / "plain", base, seed=1),
        "stabilised": build_adapter(folder / "stabilised", base, seed=2, use_rslora=True, r=9),
        "partial": build_adapter(folder / "partial", base, seed=3, target_modules=["q_proj", "down_proj"]),
    }


@pytest.fixture(scope="module")
def worker(base: Path) -> Iterator[tuple[str, str]]:
    with running_worker(base, OPTIONS) as (_, url, key):
        yield url, key


@pytest.fixture(scope="module")
def vllm(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], VllmEngine]]:
    """One server for all of the module: it takes half a minute to start."""
    from art_extensions.vllm.options import VllmOptions

    options = VllmOptions(
        environment=VLLM_ENVIRONMENT, dtype="float32", threads=1, max_running=16, max_waiting=64
    )
    with running_vllm(base, options, tmp_path_factory.mktemp("vllm")) as engine_over_it:
        yield engine_over_it


REAL_VLLM = pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)])
REMOTE = pytest.param("remote", marks=pytest.mark.slow)
POOL = pytest.param("pool", marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def builtin(base: Path) -> Iterator[BuiltinEngine]:
    made = asyncio.run(BuiltinEngine.start(str(base), OPTIONS))
    yield made
    asyncio.run(made.close())


HALF = OPTIONS.model_copy(update={"max_running": 8, "max_waiting": 32})


@pytest.fixture(scope="module")
def halves(base: Path) -> Iterator[list[BuiltinEngine]]:
    """The engines of all pools but the one that a test closes."""
    made = [asyncio.run(BuiltinEngine.start(str(base), HALF)) for _ in range(2)]
    yield made
    for one in made:
        asyncio.run(one.close())


@pytest.fixture(params=["builtin", REMOTE, POOL, REAL_VLLM])
async def engine(
    request: pytest.FixtureRequest, base: Path, builtin: BuiltinEngine, halves: list[BuiltinEngine]
) -> AsyncIterator[Engine]:
    made: Engine
    is_closed_by_its_test = "closing_twice" in request.node.name
    if request.param == "builtin":
        if not is_closed_by_its_test:
            yield builtin
            return
        made = await BuiltinEngine.start(str(base), OPTIONS)
    elif request.param == "pool":
        if not is_closed_by_its_test:
            yield await EnginePool.from_engines(*halves)
            return
        made = await EnginePool.from_engines(*[await BuiltinEngine.start(str(base), HALF) for _ in range(2)])
    elif request.param == "vllm":
        made = request.getfixturevalue("vllm")()
    else:
        made = RemoteEngine(*request.getfixturevalue("worker"))
    yield made
    await made.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses: engines outlive tests, names are for ever."""
    return request.node.name


def prompt(seed: int, length: int = 12) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=length)


async def until_info(engine: Engine, condition: Callable[[EngineInfo], bool]) -> None:
    """Ask the engine how it is until the condition holds."""

    async def holds() -> bool:
        return condition(await engine.info())

    await until(holds)


async def settled(engine: Engine) -> None:
    await until_info(engine, lambda info: not info.running and not info.waiting)


@pytest.mark.slow
async def test_info_describes_the_model(engine: Engine, base: Path) -> None:
    info = await engine.info()
    assert (info.base_model, info.max_context, info.vocab_size) == (str(base), CONTEXT, VOCAB)
    assert (info.device, info.dtype, info.max_waiting) == ("cpu", "float32", 64)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.0])
async def test_logprobs_are_the_models(engine: Engine, temperature: float) -> None:
    given = prompt(1)
    out = await whole(engine.generate(ask(given, max_tokens=20, temperature=temperature, seed=3)))
    assert len(out.token_ids) == len(out.logprobs) == 20
    [scores] = await engine.score(None, [[*given, *out.token_ids]])
    assert out.logprobs == pytest.approx(scores[len(given) - 1 :], abs=CLOSE)


async def test_score_is_what_transformers_computes(engine: Engine, base: Path) -> None:
    rows = [prompt(seed, length) for seed, length in enumerate([2, 40, 7, 40, CONTEXT])]
    model = AutoModelForCausalLM.from_pretrained(base)
    for row, scores in zip(rows, await engine.score(None, rows), strict=True):
        assert scores == pytest.approx(reference_logprobs(model, row), abs=CLOSE)


async def test_rank_tells_the_most_probable_ids_of_each_place(engine: Engine, base: Path) -> None:
    rows = [prompt(seed, length) for seed, length in enumerate([2, 40, 7, CONTEXT - 1])]
    model = AutoModelForCausalLM.from_pretrained(base)
    for row, ranked in zip(rows, await engine.rank(None, rows, 3), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([row])).logits[0, :-1].float().log_softmax(-1)
        best = expected.topk(3)
        assert ranked.logprobs == pytest.approx(reference_logprobs(model, row), abs=CLOSE)
        assert [[token for token, _ in top] for top in ranked.tops] == best.indices.tolist()
        for token, own, top, values in zip(
            row[1:], ranked.logprobs, ranked.tops, best.values.tolist(), strict=True
        ):
            assert [value for _, value in top] == pytest.approx(values, abs=CLOSE)
            # lm-eval compares them with `==`: whether the most probable id is the row's own.
            assert dict(top).get(token, own) == own
    (alone,) = await engine.rank(None, rows[:1], 0)
    assert len(alone.logprobs) == 1 and not alone.tops


async def test_other_ids_of_each_place_are_told_and_drawn(
    engine: Engine, base: Path, request: pytest.FixtureRequest
) -> None:
    row = prompt(4, CONTEXT - 1)
    ids = [(CONTEXT - 2, 5), (1, 0), (1, VOCAB - 1), (7, 3), (7, 3)]
    if request.node.callspec.params["engine"] == "vllm":
        with pytest.raises(RequestError, match="use the engine 'builtin'"):
            await engine.rank(None, [row], 0, Alternatives(ids=ids))
        return
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        expected_PV = model(torch.tensor([row])).logits[0, :-1].float().log_softmax(-1)
    asked = Alternatives(ids=ids, draws=DRAWS, temperature=0.5, seed=3)
    (told,) = await engine.rank(None, [row], 2, asked)
    assert told.logprobs == pytest.approx(reference_logprobs(model, row), abs=CLOSE)
    assert told.named == pytest.approx([float(expected_PV[at - 1, token]) for at, token in ids], abs=CLOSE)
    assert [len(drawn) for drawn in told.drawn] == [DRAWS] * (len(row) - 1)
    for drawn, logprobs_V in zip(told.drawn, expected_PV, strict=True):
        tokens = torch.tensor([token for token, _ in drawn])
        assert [value for _, value in drawn] == pytest.approx(logprobs_V[tokens].tolist(), abs=CLOSE)
    found_PK = torch.tensor([[value for _, value in drawn] for drawn in told.drawn])
    wanted_PV = (expected_PV / 0.5).softmax(-1)
    mean_P = (wanted_PV * expected_PV).sum(-1)
    variance_P = (wanted_PV * expected_PV**2).sum(-1) - mean_P**2
    deviation = float((variance_P.sum() * DRAWS).sqrt())  # of the sum of all draws' logprobs
    assert abs(float((found_PK - mean_P[:, None]).sum())) < 5 * deviation
    warmer = (expected_PV.softmax(-1) * expected_PV).sum(-1)
    assert abs(float((found_PK - warmer[:, None]).sum())) > 20 * deviation  # another temperature's
    (again,) = await engine.rank(None, [row], 0, asked)
    (other,) = await engine.rank(None, [row], 0, asked.model_copy(update={"seed": None}))
    assert again.drawn == told.drawn != other.drawn
    (coldest,) = await engine.rank(None, [row], 0, Alternatives(draws=2, temperature=0))
    assert [[token for token, _ in drawn] for drawn in coldest.drawn] == [
        [int(best)] * 2 for best in expected_PV.argmax(-1)
    ]


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        (Alternatives(ids=[(0, 1)]), 1),
        (Alternatives(ids=[(12, 1)]), 1),
        (Alternatives(ids=[(1, VOCAB)]), 1),
        (Alternatives(ids=[(1, -1)]), 1),
        (Alternatives(ids=[(1, 1)]), 2),
        (Alternatives(draws=MOST_ALTERNATIVES), 1),
    ],
    ids=["the first place", "behind the last", "no such id", "below 0", "two rows", "too many draws"],
)
async def test_alternatives_that_are_none_are_refused(engine: Engine, asked: Alternatives, rows: int) -> None:
    with pytest.raises(RequestError):
        await engine.rank(None, [prompt(1)] * rows, 0, asked)


async def test_rank_refuses_what_it_cannot_tell(engine: Engine) -> None:
    for rows, most in (([prompt(1)], 21), ([prompt(1, CONTEXT)], 1), ([[1]], 1), ([[1, VOCAB]], 1)):
        with pytest.raises(RequestError):
            await engine.rank(None, rows, most)
    with pytest.raises(NotFoundError, match="nobody@1"):
        await engine.rank("nobody@1", [prompt(1)], 1)


async def test_without_stop_ids_the_end_of_text_is_an_id_like_any_other(engine: Engine) -> None:
    """`ignore_eos`: it is drawn with its own probability, and the completion goes on behind it."""
    given = prompt(3)
    likely = ((END, 6.0),)
    out = await whole(engine.generate(ask(given, max_tokens=30, seed=5, logit_bias=likely)))
    assert len(out.token_ids) == 30 and out.finish_reason == "length"
    assert END in out.token_ids[:-1], "drawn, and gone on from"
    (free,) = await engine.rank(None, [[*given, *out.token_ids]], 0)
    biased = [
        (token, drawn, plain)
        for token, drawn, plain in zip(
            out.token_ids, out.logprobs, free.logprobs[len(given) - 1 :], strict=True
        )
    ]
    assert all(drawn > plain for token, drawn, plain in biased if token == END)
    assert all(drawn < plain for token, drawn, plain in biased if token != END)


NUCLEUS = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
LIKELY = {"temperature": 0.7, "top_k": 20, "min_p": 0.02}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [NUCLEUS, LIKELY, {**NUCLEUS, **LIKELY}], ids=["top_p", "min_p", "both"])
async def test_logprobs_are_those_of_the_truncated_distribution(
    engine: Engine, base: Path, sampling: dict[str, float], request: pytest.FixtureRequest
) -> None:
    asked = engine.generate(ask(prompt(2), max_tokens=12, seed=5, **sampling))
    if sampling.keys() >= {"top_p", "min_p"} and "vllm" in request.node.callspec.id:
        with pytest.raises(RequestError, match="min_p"):  # it truncates in another order than we do
            await whole(asked)
        return
    out = await whole(asked)
    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt(2) + list(out.token_ids)])).logits[0, 11:-1]
    for row, token, logprob in zip(logits, out.token_ids, out.logprobs, strict=True):
        kept = _truncated(row / 0.7, 20, sampling.get("top_p", 1.0), sampling.get("min_p", 0.0))
        assert logprob == pytest.approx(kept[token], abs=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampling", [NUCLEUS, LIKELY], ids=["top_p", "min_p"])
async def test_the_ids_that_a_token_was_drawn_from_are_told_or_nothing_is(
    engine: Engine, base: Path, sampling: dict[str, float], stream: bool, request: pytest.FixtureRequest
) -> None:
    asked = [ask(prompt(n), stream=stream, max_tokens=12, seed=n, **sampling) for n in range(3)]
    outs = await asyncio.gather(*(whole(engine.generate(one)) for one in asked))
    if "vllm" in request.node.callspec.id:
        assert [out.candidates for out in outs] == [b""] * 3  # the trainer computes them anew
        return
    model = AutoModelForCausalLM.from_pretrained(base)
    for number, out in enumerate(outs):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt(number) + list(out.token_ids)])).logits[0, 11:-1]
        told = split_candidates(out.candidates)
        assert len(told) == len(out.token_ids) == 12
        for row, ids in zip(logits, told, strict=True):
            kept = _truncated(row / 0.7, 20, sampling.get("top_p", 1.0), sampling.get("min_p", 0.0))
            assert ids.tolist() == sorted(kept)
    assert len({len(ids) for out in outs for ids in split_candidates(out.candidates)}) > 1


async def test_nothing_is_told_where_nothing_truncates_and_no_set_that_is_too_large(engine: Engine) -> None:
    plain = await whole(engine.generate(ask(prompt(1), max_tokens=4, seed=1, temperature=0.7)))
    greedy = await whole(engine.generate(ask(prompt(1), max_tokens=4, temperature=0.0, top_k=5)))
    assert plain.candidates == greedy.candidates == b""
    wide = await whole(engine.generate(ask(prompt(1), max_tokens=4, seed=1, top_k=MAX_CANDIDATES + 1)))
    assert not any(map(len, split_candidates(wide.candidates)))


def _truncated(scores: torch.Tensor, top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """The distribution written plainly: the kept tokens and their renormalised logprobs."""
    order = scores.argsort(descending=True).tolist()[:top_k]
    probabilities = scores[order].softmax(0).tolist()
    kept, total = [], 0.0
    for token, probability in zip(order, probabilities, strict=True):
        if total < top_p:
            kept.append(token)
        total += probability
    best = max(scores[kept].softmax(0).tolist())
    kept = [t for t, p in zip(kept, scores[kept].softmax(0).tolist(), strict=True) if p >= min_p * best]
    return dict(zip(kept, scores[kept].log_softmax(0).tolist(), strict=True))


@pytest.mark.slow
async def test_samples_follow_the_distribution(engine: Engine, base: Path) -> None:
    given = prompt(3)
    asked = [engine.generate(ask(given, max_tokens=1, top_k=4, seed=seed)) for seed in range(400)]
    drawn: list[int] = []
    for first in range(0, 400, 50):
        outs = await asyncio.gather(*map(whole, asked[first : first + 50]))
        drawn += [out.token_ids[0] for out in outs]
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(base)(torch.tensor([given])).logits[0, -1]
    best = logits.topk(4)
    for token, share in zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True):
        # Four standard errors of a share among 400; the seeds are fixed, so this is not a coin toss.
        assert drawn.count(token) / 400 == pytest.approx(share, abs=4 * (share * (1 - share) / 400) ** 0.5)


async def test_a_seed_gives_the_same_ids_whatever_runs_beside_it(engine: Engine) -> None:
    given = prompt(4)
    alone = await whole(engine.generate(ask(given, max_tokens=25, seed=11)))
    others = [engine.generate(ask(prompt(50 + i, 3 * i + 1), max_tokens=9)) for i in range(12)]
    crowd = await asyncio.gather(
        whole(engine.generate(ask(given, max_tokens=25, seed=11))), *map(whole, others)
    )
    assert crowd[0].token_ids == alone.token_ids
    assert crowd[0].logprobs == pytest.approx(alone.logprobs, abs=CLOSE)
    another = await whole(engine.generate(ask(given, max_tokens=25, seed=12)))
    assert another.token_ids != alone.token_ids


async def test_without_a_seed_samples_differ(engine: Engine) -> None:
    outs = await asyncio.gather(*(whole(engine.generate(ask(prompt(4), max_tokens=12))) for _ in range(4)))
    assert len({tuple(out.token_ids) for out in outs}) == 4


async def test_a_stop_id_ends_the_completion_and_stays_in_it(engine: Engine) -> None:
    request = {"max_tokens": 20, "seed": 1}
    free = await whole(engine.generate(ask(prompt(5), **request)))
    assert free.finish_reason == "length"
    stop = free.token_ids[6]
    out = await whole(engine.generate(ask(prompt(5), stop_token_ids=(stop,), **request)))
    assert out.finish_reason == "stop" and out.stop_string is None
    assert out.token_ids == free.token_ids[: list(free.token_ids).index(stop) + 1]


async def test_a_stop_string_ends_the_completion_and_its_ids_stay(engine: Engine, base: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    request = {"max_tokens": 24, "seed": 3}
    free = await whole(engine.generate(ask(prompt(15), **request)))
    stop = tokenizer.decode(free.token_ids)[6:9]
    out = await whole(engine.generate(ask(prompt(15), stop=("never said", stop), **request)))
    assert (out.finish_reason, out.stop_string) == ("stop", stop)
    assert stop in tokenizer.decode(out.token_ids)
    assert stop not in tokenizer.decode(out.token_ids[:-1])
    assert out.token_ids == free.token_ids[: len(out.token_ids)]


async def test_streamed_deltas_are_the_whole(engine: Engine) -> None:
    plain = await whole(engine.generate(ask(prompt(6), max_tokens=15, seed=2)))
    deltas = [delta async for delta in engine.generate(ask(prompt(6), max_tokens=15, seed=2, stream=True))]
    assert len(deltas) > 1  # an engine whose reader is slow may tell several ids at once
    assert [token for delta in deltas for token in delta.token_ids] == plain.token_ids
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


async def test_the_context_is_respected(engine: Engine) -> None:
    out = await whole(engine.generate(ask(prompt(7, CONTEXT - 3), max_tokens=50)))
    assert (len(out.token_ids), out.finish_reason) == (3, "length")
    with pytest.raises(RequestError, match="context") as caught:
        await whole(engine.generate(ask(prompt(7, CONTEXT))))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


@pytest.mark.slow
@pytest.mark.parametrize("given", [[], [VOCAB], [-1]])
async def test_unfit_prompts_are_refused(engine: Engine, given: list[int]) -> None:
    with pytest.raises(RequestError) as caught:
        await whole(engine.generate(ask(given)))
    assert caught.value.status == 400


async def test_closing_the_iterator_frees_the_place(engine: Engine) -> None:
    for _ in range(20):  # on a machine that stalls the reply may be whole before anybody looks
        stream = engine.generate(ask(prompt(8), max_tokens=200, stream=True))
        await anext(stream)
        running = (await engine.info()).running
        await stream.aclose()
        await settled(engine)
        if running == 1:
            return
    raise AssertionError("no reply was still under way when its iterator was closed")


async def test_a_cancelled_task_frees_its_place_in_the_queue(engine: Engine) -> None:
    tasks = [asyncio.create_task(whole(engine.generate(ask(prompt(i), max_tokens=240)))) for i in range(40)]
    # On a machine that stalls they may all be answered before anybody looks.
    await until_info(engine, lambda info: info.waiting > 0 or all(task.done() for task in tasks))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settled(engine)


@pytest.mark.slow
async def test_a_full_queue_is_refused_at_once(engine: Engine) -> None:
    asked = (whole(engine.generate(ask(prompt(i), max_tokens=60))) for i in range(120))
    outs = await asyncio.gather(*asked, return_exceptions=True)
    refused = [out for out in outs if isinstance(out, OverloadedError)]
    # Some may be answered before the last has arrived.
    assert 0 < len(refused) <= 120 - 16 - 64
    assert refused[0].status == 429 and refused[0].retry_after > 0
    assert all(not isinstance(out, BaseException) for out in outs if out not in refused)


@pytest.mark.slow
async def test_adapters_compute_what_peft_computes(
    engine: Engine, base: Path, adapters: dict[str, Path], name: str
) -> None:
    given = prompt(9)
    for kind, path in adapters.items():
        await engine.load_adapter(f"{name}-{kind}", path)
    requests = [ask(given, adapter, max_tokens=10, seed=4) for adapter in _names(name, adapters)]
    # All in the same batch, base model included.
    outs = await asyncio.gather(*(whole(engine.generate(request)) for request in requests))
    assert len({tuple(out.token_ids) for out in outs}) == len(outs)
    for request, out in zip(requests, outs, strict=True):
        kind = request.adapter.removeprefix(f"{name}-") if request.adapter else None
        row = [*given, *out.token_ids]
        model = AutoModelForCausalLM.from_pretrained(base)
        if kind:
            model = PeftModel.from_pretrained(model, adapters[kind])
        expected = reference_logprobs(model, row)
        assert out.logprobs == pytest.approx(expected[len(given) - 1 :], abs=CLOSE)
        assert (await engine.score(request.adapter, [row]))[0] == pytest.approx(expected, abs=CLOSE)
        # And alone in the batch.
        again = await whole(engine.generate(request))
        assert again.token_ids == out.token_ids
        assert again.logprobs == pytest.approx(out.logprobs, abs=CLOSE)
    if kind:
        merged = reference_logprobs(model.merge_and_unload(), row)
        assert out.logprobs == pytest.approx(merged[len(given) - 1 :], abs=CLOSE)


def _names(name: str, adapters: dict[str, Path]) -> list[str | None]:
    return [None, *(f"{name}-{kind}" for kind in adapters)]


@pytest.mark.slow
async def test_a_cached_prefix_is_never_shared_between_adapters(
    engine: Engine, adapters: dict[str, Path], name: str
) -> None:
    await engine.load_adapter(name, adapters["plain"])
    given = prompt(10, 80)
    warm = await whole(engine.generate(ask(given, None, max_tokens=5, seed=1)))
    out = await whole(engine.generate(ask(given, name, max_tokens=5, seed=1)))
    [scores] = await engine.score(name, [[*given, *out.token_ids]])
    assert out.logprobs == pytest.approx(scores[len(given) - 1 :], abs=CLOSE)
    assert out.logprobs != pytest.approx(warm.logprobs, abs=CLOSE)


async def test_an_unknown_adapter_is_named(engine: Engine) -> None:
    for call in (
        whole(engine.generate(ask(prompt(1), "nobody@1"))),
        engine.score("nobody@1", [prompt(1)]),
        engine.unload_adapter("nobody@1"),
    ):
        with pytest.raises(NotFoundError, match="nobody@1") as caught:
            await call
        assert caught.value.status == 404


async def test_a_name_stands_for_the_same_weights_for_ever(
    engine: Engine, adapters: dict[str, Path], name: str
) -> None:
    await engine.load_adapter(name, adapters["plain"])
    await engine.load_adapter(name, adapters["plain"])
    assert name in (await engine.info()).adapters
    with pytest.raises(ConfigurationError, match="plain"):
        await engine.load_adapter(name, adapters["partial"])
    await engine.unload_adapter(name)
    assert name not in (await engine.info()).adapters
    with pytest.raises(ConfigurationError, match="plain"):
        await engine.load_adapter(name, adapters["partial"])


@pytest.mark.slow
async def test_unloading_waits_for_the_last_request(
    engine: Engine, adapters: dict[str, Path], name: str
) -> None:
    await engine.load_adapter(name, adapters["plain"])
    stream = engine.generate(ask(prompt(11), name, max_tokens=200, seed=1, stream=True))
    first = await anext(stream)
    unloading = asyncio.create_task(engine.unload_adapter(name))
    await until_info(engine, lambda info: name not in info.adapters)
    with pytest.raises(NotFoundError):
        await whole(engine.generate(ask(prompt(11), name)))
    rest = await whole(stream)
    assert len(first.token_ids) + len(rest.token_ids) == 200
    await asyncio.wait_for(unloading, DEADLINE_S)


async def test_an_unfit_adapter_is_refused(engine: Engine, tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        await engine.load_adapter(name, tmp_path)


@pytest.mark.slow
async def test_a_warm_cache_changes_nothing(engine: Engine) -> None:
    """Several turns, siblings and a repetition: same ids and logprobs as with a cold cache."""

    async def conversation(seed: int) -> list[tuple[list[int], list[float]]]:
        ids, turns = prompt(12, 40), []
        for turn in range(4):
            out = await whole(engine.generate(ask(ids, max_tokens=7, seed=seed + turn)))
            turns.append((list(out.token_ids), list(out.logprobs)))
            ids = [*ids, *out.token_ids, *prompt(100 * seed + turn, 9)]
        return turns

    first = await conversation(1)
    again = await asyncio.gather(*(conversation(seed) for seed in (1, 2, 1, 3)))
    await engine.sleep()
    await engine.wake()
    cold = [await conversation(seed) for seed in (1, 2, 1, 3)]
    for warm, fresh in zip([first, *again], [cold[0], *cold], strict=True):
        for (warm_ids, warm_logprobs), (ids, logprobs) in zip(warm, fresh, strict=True):
            assert warm_ids == ids
            assert warm_logprobs == pytest.approx(logprobs, abs=CLOSE)


@pytest.mark.slow
async def test_ragged_conversations_equal_one_at_a_time(
    engine: Engine, adapters: dict[str, Path], name: str
) -> None:
    await engine.load_adapter(name, adapters["plain"])

    async def conversation(number: int) -> list[list[int]]:
        rng = random.Random(number)
        ids = prompt(number % 3, 30)
        adapter = [None, name][number % 2]
        turns = []
        for turn in range(rng.randint(1, 5)):
            request = ask(
                ids, adapter, max_tokens=rng.randint(1, 12), seed=1000 * number + turn, temperature=0.8
            )
            out = await whole(engine.generate(request))
            turns.append(list(out.token_ids))
            ids = [*ids, *out.token_ids, *rng.choices(range(VOCAB), k=rng.randint(1, 20))]
        return turns

    together = await asyncio.gather(*(conversation(number) for number in range(24)))
    await engine.sleep()
    await engine.wake()
    alone = [await conversation(number) for number in range(24)]
    assert together == alone


async def test_sleep_finishes_what_runs_and_makes_new_requests_wait(engine: Engine) -> None:
    stream = engine.generate(ask(prompt(13), max_tokens=100, seed=1, stream=True))
    first = await anext(stream)  # of one token or, on a busy machine, of several
    rest, _ = await asyncio.gather(whole(stream), engine.sleep())
    assert len(first.token_ids) + len(rest.token_ids) == 100
    late = asyncio.create_task(whole(engine.generate(ask(prompt(13), max_tokens=3))))
    await until_info(engine, lambda info: info.waiting > 0)
    assert not late.done()
    await engine.wake()
    assert len((await asyncio.wait_for(late, DEADLINE_S)).token_ids) == 3


STOP = END
"""No text of the tokenizer's: it can only end a completion."""
TEXTS = [first + second + rest for first in "ab" for second in "abc" for rest in ("", "d", "dd")]


async def dense_logits(base: Path, given: list[int], drawn: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(base)(torch.tensor([given + drawn])).logits
    return logits[0, len(given) - 1 : -1].clone()


def spelled(base: Path) -> list[str]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    return [tokenizer.decode([token]) if token < len(tokenizer) else "?" for token in range(VOCAB)]


def what_may_follow(texts: list[str], spelling: list[str], so_far: str) -> list[int]:
    """The ids after which one of the texts can still be written, and STOP where one is."""
    allowed = [
        token
        for token, piece in enumerate(spelling)
        if piece and any(text.startswith(so_far + piece) for text in texts)
    ]
    return [*allowed, *([STOP] if so_far in texts else [])]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_biased_logprobs_are_those_of_the_biased_distribution(
    engine: Engine, base: Path, temperature: float
) -> None:
    given, bias = prompt(8), {3: 4.0, 9: -100.0, 200: 3.5, 41: 4.5}
    out = await whole(
        engine.generate(
            ask(given, max_tokens=12, seed=2, temperature=temperature, logit_bias=tuple(bias.items()))
        )
    )
    logits = await dense_logits(base, given, list(out.token_ids))
    for row, token, logprob in zip(logits, out.token_ids, out.logprobs, strict=True):
        row[list(bias)] += torch.tensor(list(bias.values()))
        assert logprob == pytest.approx(float((row / (temperature or 1)).log_softmax(0)[token]), abs=CLOSE)
        assert temperature or token == int(row.argmax())


async def test_a_bias_of_an_unknown_id_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match=str(VOCAB)):
        await whole(engine.generate(ask(prompt(8), logit_bias=((VOCAB, 1.0),))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(kind="regex", text="[ab][abc]d{0,2}"),
        Constraint(kind="choice", text=json.dumps(TEXTS)),
        Constraint(kind="json_schema", text=json.dumps({"enum": TEXTS})),
        Constraint(kind="lark", text='start: /[ab]/ ("a" | "b" | "c") ("d" "d"?)?'),
    ],
    ids=lambda constraint: constraint.kind,
)
async def test_constrained_logprobs_are_those_of_what_is_allowed(
    engine: Engine, base: Path, constraint: Constraint, seed: int
) -> None:
    """Against the list of all texts: each id is one that leads to a text, drawn among those that do."""
    given, spelling = prompt(seed), spelled(base)
    texts = [json.dumps(text) for text in TEXTS] if constraint.kind == "json_schema" else TEXTS
    sampling = {"seed": seed, "temperature": 1.4, "constraint": constraint, "stop_token_ids": (STOP,)}
    out = await whole(engine.generate(ask(given, max_tokens=16, **sampling)))
    assert (out.finish_reason, out.token_ids[-1]) == ("stop", STOP)
    logits = await dense_logits(base, given, list(out.token_ids))
    so_far = ""
    for row, token, logprob in zip(logits, out.token_ids, out.logprobs, strict=True):
        allowed = what_may_follow(texts, spelling, so_far)
        assert token in allowed
        expected = (row[allowed] / 1.4).log_softmax(0)[allowed.index(token)]
        assert logprob == pytest.approx(float(expected), abs=CLOSE)
        assert len(allowed) > 1 or logprob == 0.0
        so_far += spelling[token] if token != STOP else ""
    assert so_far in texts


@pytest.mark.slow
async def test_a_constraint_leaves_its_neighbours_alone(engine: Engine) -> None:
    given = prompt(9)
    alone = await whole(engine.generate(ask(given, max_tokens=20, seed=4)))
    constraint = Constraint(kind="regex", text="[a-f]+")
    beside = [engine.generate(ask(prompt(i), max_tokens=20, constraint=constraint)) for i in range(6)]
    crowd = await asyncio.gather(
        whole(engine.generate(ask(given, max_tokens=20, seed=4))), *map(whole, beside)
    )
    assert crowd[0].token_ids == alone.token_ids
    assert crowd[0].logprobs == pytest.approx(alone.logprobs, abs=CLOSE)
    assert all(out.finish_reason == "length" for out in crowd[1:]), "without an id to end it, it goes on"


@pytest.mark.slow
async def test_streamed_constrained_deltas_are_the_whole(engine: Engine) -> None:
    constraint = Constraint(kind="regex", text="[a-f]{30}")
    sampling = {"max_tokens": 64, "seed": 6, "constraint": constraint, "stop_token_ids": (STOP,)}
    at_once = await whole(engine.generate(ask(prompt(6), **sampling)))
    streamed = await whole(engine.generate(ask(prompt(6), stream=True, **sampling)))
    assert streamed.token_ids == at_once.token_ids
    assert streamed.finish_reason == at_once.finish_reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type": "objectt"}'),
        ("json_schema", "{"),
        ("regex", "["),
        ("choice", "[]"),
        ("lark", "start: missing"),
        ("lark", "start: " + "(" * 100_000),
    ],
)
async def test_a_constraint_that_is_none_is_refused(engine: Engine, kind: str, text: str) -> None:
    with pytest.raises(RequestError) as refused:
        await whole(engine.generate(ask(prompt(7), constraint=Constraint(kind=kind, text=text))))
    assert refused.value.status == 400
    await settled(engine)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "truncation", [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_k": 3}, {"temperature": 1.3}]
)
async def test_the_most_probable_ids_are_those_of_the_distribution_that_was_drawn_from(
    engine: Engine, base: Path, truncation: dict[str, float], stream: bool
) -> None:
    given = prompt(12)
    asked = {"max_tokens": 10, "seed": 5, "top_logprobs": 5, **truncation}
    out = await whole(engine.generate(ask(given, stream=stream, **asked)))
    kept = int(truncation.get("top_k", 5))
    logits = await dense_logits(base, given, list(out.token_ids))
    for row, token, logprob, top in zip(logits, out.token_ids, out.logprobs, out.top_logprobs, strict=True):
        row = row / (truncation.get("temperature", 1.0) or 1.0)
        best = row.topk(5)
        allowed = row if kept == 5 else best.values[:kept]
        expected = (best.values[:kept] - allowed.logsumexp(0)).tolist()
        assert [each for each, _ in top] == best.indices[:kept].tolist()
        assert [value for _, value in top] == pytest.approx(expected, abs=CLOSE)
        assert dict(top).get(token, logprob) == pytest.approx(logprob, abs=1e-6)


async def test_other_ids_are_told_only_where_they_are_asked_for(engine: Engine) -> None:
    plain, beside = await asyncio.gather(
        whole(engine.generate(ask(prompt(13), seed=1))),
        whole(engine.generate(ask(prompt(13), seed=1, top_logprobs=2))),
    )
    assert plain.top_logprobs == [] and [len(top) for top in beside.top_logprobs] == [2] * 8
    assert plain.token_ids == beside.token_ids


PENALTIES = [
    {"frequency_penalty": 1.5},
    {"presence_penalty": -2.0},
    {"repetition_penalty": 1.8},
    {"frequency_penalty": -0.5, "presence_penalty": 0.7, "repetition_penalty": 0.8},
]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.2, 0.0])
@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
async def test_penalised_logprobs_are_those_of_the_penalised_distribution(
    engine: Engine, base: Path, penalties: dict[str, float], temperature: float
) -> None:
    """Against the definition: repetition over prompt and completion, the others over the completion."""
    given, bias = prompt(14), {7: 6.0, 30: 5.0}
    asked = {"max_tokens": 16, "seed": 8, "temperature": temperature, "logit_bias": tuple(bias.items())}
    out = await whole(engine.generate(ask(given, **asked, **penalties)))
    logits = await dense_logits(base, given, list(out.token_ids))
    for at, (row, token, logprob) in enumerate(zip(logits, out.token_ids, out.logprobs, strict=True)):
        row[list(bias)] += torch.tensor(list(bias.values()))
        said = list(out.token_ids[:at])
        factor = penalties.get("repetition_penalty", 1.0)
        for known in {*given, *said}:
            row[known] = row[known] / factor if row[known] > 0 else row[known] * factor
        for known in set(said):
            row[known] -= penalties.get("frequency_penalty", 0.0) * said.count(known)
            row[known] -= penalties.get("presence_penalty", 0.0)
        assert logprob == pytest.approx(float((row / (temperature or 1)).log_softmax(0)[token]), abs=CLOSE)
        assert temperature or token == int(row.argmax())


async def test_under_a_huge_penalty_nothing_is_said_twice(engine: Engine) -> None:
    given = prompt(15)
    free = await whole(engine.generate(ask(given, max_tokens=20, temperature=0.0, logit_bias=((3, 50.0),))))
    assert set(free.token_ids) == {3}
    sampling = {"temperature": 0.0, "repetition_penalty": 100.0}
    out = await whole(engine.generate(ask(given, max_tokens=20, **sampling)))
    assert len({*given, *out.token_ids}) == len(set(given)) + 20


async def test_penalties_leave_their_neighbours_alone(engine: Engine) -> None:
    alone = await whole(engine.generate(ask(prompt(16), max_tokens=12, seed=4)))
    penalised = {"max_tokens": 12, "frequency_penalty": 2.0, "min_tokens": 3, "stop_token_ids": (5,)}
    beside = [engine.generate(ask(prompt(i), **penalised)) for i in range(6)]
    crowd = await asyncio.gather(
        whole(engine.generate(ask(prompt(16), max_tokens=12, seed=4))), *map(whole, beside)
    )
    assert crowd[0].token_ids == alone.token_ids
    assert crowd[0].logprobs == pytest.approx(alone.logprobs, abs=CLOSE)


async def test_before_min_tokens_nothing_ends_it(engine: Engine) -> None:
    asked = {"max_tokens": 20, "stop_token_ids": (STOP,), "logit_bias": ((STOP, 100.0),)}
    at_once = await whole(engine.generate(ask(prompt(17), **asked)))
    assert (at_once.token_ids, at_once.finish_reason) == ([STOP], "stop")
    later = await whole(engine.generate(ask(prompt(17), min_tokens=6, **asked)))
    assert len(later.token_ids) == 7 and later.finish_reason == "stop"
    assert STOP not in later.token_ids[:6] and later.token_ids[6] == STOP
    assert all(value <= 0 for value in later.logprobs)


async def test_before_min_tokens_no_stop_string_ends_it(engine: Engine, base: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    request = {"max_tokens": 24, "seed": 3}
    free = await whole(engine.generate(ask(prompt(15), **request)))
    stop = tokenizer.decode(free.token_ids[:3])[1:3]
    early = await whole(engine.generate(ask(prompt(15), stop=(stop,), **request)))
    assert early.stop_string == stop and len(early.token_ids) <= 3
    out = await whole(engine.generate(ask(prompt(15), stop=(stop,), min_tokens=5, **request)))
    assert len(out.token_ids) > 5 and out.token_ids == free.token_ids[: len(out.token_ids)]


async def test_a_stop_string_may_begin_within_min_tokens(engine: Engine, base: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
    request = {"max_tokens": 24, "seed": 3}
    free = await whole(engine.generate(ask(prompt(15), **request)))
    said = [tokenizer.decode(free.token_ids[:count]) for count in range(len(free.token_ids) + 1)]
    seams = [
        (count, stop)
        for count in range(2, 20)
        if said[count + 1].startswith(said[count]) and (rest := said[count + 1][len(said[count]) :])
        if (stop := said[count][-1:] + rest[0]).isascii() and stop not in said[count]
    ]
    count, stop = seams[0]
    out = await whole(engine.generate(ask(prompt(15), stop=(stop,), min_tokens=count, **request)))
    assert out.token_ids == free.token_ids[: count + 1] and out.stop_string == stop


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"frequency_penalty": 2.5}, "frequency_penalty 2.5"),
        ({"presence_penalty": -3.0}, "presence_penalty -3.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0"),
        ({"min_tokens": 9}, "min_tokens is 9"),
        ({"min_tokens": 2, "constraint": Constraint(kind="regex", text="a+")}, "min_tokens 2 with a regex"),
        ({"min_tokens": 2, "stop_token_ids": tuple(range(10**5))}, "no id is left to draw"),
        ({"top_logprobs": 21}, "top_logprobs is 21"),
    ],
)
async def test_what_is_out_of_bounds_is_refused(engine: Engine, sampling: dict, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        await whole(engine.generate(ask(prompt(8), **sampling)))


async def test_closing_twice_is_allowed_and_calls_fail_afterwards(engine: Engine) -> None:
    await engine.close()
    await engine.close()
    with pytest.raises(WorkerError):
        await whole(engine.generate(ask(prompt(1))))


async def forwarded(socket: str) -> asyncio.Server:
    """A TCP port of what listens on a unix socket."""

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(socket)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    return await asyncio.start_server(connected, "127.0.0.1", 0)


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_vllm_that_runs_already_is_attached_to(
    vllm: Callable[[], VllmEngine], base: Path, adapters: dict[str, Path], tmp_path: Path, name: str
) -> None:
    from art_extensions.vllm.options import VllmOptions
    from art_extensions.vllm.start import attach

    [server] = [
        child
        for child in psutil.Process().children(recursive=True)
        if any(word.startswith("--uds=") for word in child.cmdline())
    ]
    [socket] = [word.removeprefix("--uds=") for word in server.cmdline() if word.startswith("--uds=")]
    (tmp_path / "key").write_text(server.environ()["VLLM_API_KEY"])
    assert server.environ()["VLLM_API_KEY"] not in " ".join(server.cmdline())
    proxy = await forwarded(socket)
    url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    options = VllmOptions(urls=(url,), key_file=tmp_path / "key", dtype="float32")
    order = ServerOrder(name="there", base_model=str(base), options=options, log_path=tmp_path / "log")
    engine = await attach(order, options)
    rows = [prompt(1), prompt(2, 30)]
    theirs = vllm()
    await theirs.load_adapter(name, adapters["plain"])
    await engine.load_adapter(name, adapters["plain"])
    assert await engine.score(name, rows) == [
        pytest.approx(row, abs=CLOSE) for row in await theirs.score(name, rows)
    ]
    with pytest.raises(ConfigurationError, match=name):
        await engine.load_adapter(name, adapters["partial"])
    await engine.close()
    await theirs.close()
    for unfit, said in (
        (replace(order, base_model="somebody/else"), "somebody/else"),
        (replace(order, replica=1), "replica 1"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            await attach(unfit, options)
    (tmp_path / "key").write_text("wrong")
    with pytest.raises(RequestError, match="nauthorized"):
        await attach(order, options)
    proxy.close()
