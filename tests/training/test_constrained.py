"""Samples under a constraint or a bias are trained with the logprobs that they were drawn with."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_models import VOCAB, ask, build_qwen3, whole
from tiny_policies import randomize
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.encode import decode_batch, encode_batch
from art.engine.builtin.engine import BuiltinEngine
from art.errors import TokenMismatchError
from art.training.distributions import follow_constraints
from art.training.policy import load_policy
from art.training.trainer import Trainer
from art.wire.engine import BuiltinOptions
from art.wire.sampling import DISTRIBUTION, Constraint
from art.wire.training import LoraSpec, OptimizerSpec, SamplingSpec, TrainRequest

pytestmark = pytest.mark.slow

MODEL = "p/m"
STOP = 380
TEXTS = [first + second + rest for first in "ab" for second in "abc" for rest in ("", "d", "dd")]
REGEX = Constraint(kind="regex", text="[ab][abc]d{0,2}")
JSON = Constraint(
    kind="json_schema",
    text=json.dumps({"type": "array", "items": {"enum": ["ab", "c", 12]}, "minItems": 2, "maxItems": 4}),
)
BIAS = ((7, 6.0), (90, -100.0), (12, 5.5))
SPECS = [
    SamplingSpec(constraint=REGEX, stop_token_ids=(STOP,)),
    SamplingSpec(constraint=JSON, stop_token_ids=(STOP,), temperature=1.3),
    SamplingSpec(logit_bias=BIAS, temperature=0.8, top_k=9),
    SamplingSpec(constraint=REGEX, stop_token_ids=(STOP,), logit_bias=((ord("d") - 33, 3.0),), top_p=0.9),
    SamplingSpec(constraint=JSON, stop_token_ids=(STOP,), min_p=0.02),
    SamplingSpec(),
    SamplingSpec(temperature=0.7),
    SamplingSpec(frequency_penalty=0.7, presence_penalty=-0.4),
    SamplingSpec(repetition_penalty=1.7, temperature=0.8, top_k=12),
    SamplingSpec(repetition_penalty=0.6, frequency_penalty=-0.3, logit_bias=BIAS, min_p=0.01),
    SamplingSpec(constraint=JSON, stop_token_ids=(STOP,), repetition_penalty=1.3),
    SamplingSpec(min_tokens=9, stop_token_ids=tuple(range(0, VOCAB, 3)), presence_penalty=0.5),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return build_qwen3(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = opened(base)
    randomize(trainer.parameters(MODEL))
    folder = tmp_path_factory.mktemp("adapter") / "0001"
    trainer.save(MODEL, folder)
    return folder


def opened(base: Path, checkpoint: Path | None = None) -> Trainer:
    trainer = Trainer(load_policy(str(base), name="test/tiny"), token_budget=200)
    trainer.open(MODEL, LoraSpec(), checkpoint=checkpoint)
    return trainer


def prompt(number: int) -> list[int]:
    return [5, 6, 7, 100 + number % 3, 60 + number]


async def drawn(base: Path, adapter: Path, specs: list[SamplingSpec]) -> list[SampleRow]:
    engine = await BuiltinEngine.start(str(base), BuiltinOptions(threads=1))
    await engine.load_adapter("m@1", adapter)

    async def one(number: int, spec: SamplingSpec) -> SampleRow:
        sampling = {name: getattr(spec, name) for name in DISTRIBUTION}
        out = await whole(engine.generate(ask(prompt(number), "m@1", max_tokens=24, seed=number, **sampling)))
        return SampleRow(
            sample_id=str(number),
            prompt_ids=prompt(number),
            completion_ids=out.token_ids,
            completion_logprobs=out.logprobs,
            sampling=spec,
        )

    try:
        return list(await asyncio.gather(*(one(number, spec) for number, spec in enumerate(specs))))
    finally:
        await engine.close()


def batch_of(rows: list[SampleRow]) -> Batch:
    rollouts = [RolloutRow(rollout=row.sample_id, reward=n % 2, samples=[row]) for n, row in enumerate(rows)]
    return build_batch([GroupRow(rollouts=rollouts)])


def request(batch: Batch) -> TrainRequest:
    return TrainRequest(
        model=MODEL,
        step=0,
        optimizer=OptimizerSpec(learning_rate=1e-3),
        normalizer=batch.normalizer,
        sampling=list(batch.sampling),
    )


async def test_sampler_and_trainer_agree(base: Path, adapter: Path) -> None:
    batch = batch_of(await drawn(base, adapter, SPECS * 3))
    assert len(batch.entries) > 100
    tree, entries, sent = decode_batch(encode_batch(batch, request(batch)))
    metrics = opened(base, adapter).train(tree, entries, sent)
    assert metrics["loss/logprob_difference_max"] <= 1e-4
    assert metrics["loss/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["loss/grad_norm"] > 0


async def test_logprobs_are_those_of_the_list_of_all_texts(base: Path, adapter: Path) -> None:
    """Recorded logprobs against a forward pass of PEFT's and plain text: no grammar, no bits."""
    from peft import PeftModel

    [row] = await drawn(base, adapter, [SPECS[0]])
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    with torch.inference_mode():
        logits = model(torch.tensor([[*row.prompt_ids, *row.completion_ids]])).logits[0]
    tokenizer, so_far = PreTrainedTokenizerFast.from_pretrained(base), ""
    for place, (token, logprob) in enumerate(zip(row.completion_ids, row.completion_logprobs, strict=True)):
        pieces = [tokenizer.decode([number]) for number in range(len(tokenizer))]
        allowed = [n for n, p in enumerate(pieces) if any(t.startswith(so_far + p) for t in TEXTS)]
        allowed += [STOP] if so_far in TEXTS else []
        expected = logits[len(row.prompt_ids) + place - 1, allowed].log_softmax(0)[allowed.index(token)]
        assert logprob == pytest.approx(float(expected), abs=1e-4)
        so_far += pieces[token] if token < len(pieces) else ""


async def test_a_forced_token_has_no_gradient(base: Path, adapter: Path) -> None:
    """Text that could not be otherwise says nothing about the policy: the adapter does not move."""
    # No two of these characters are one token, so that there is one way only to spell the text.
    ids = PreTrainedTokenizerFast.from_pretrained(base).encode("!")
    single = SamplingSpec(constraint=Constraint(kind="choice", text='["!!"]'), stop_token_ids=(STOP,))
    rows = await drawn(base, adapter, [single, single])
    assert [list(row.completion_ids) for row in rows] == [[*ids, *ids, STOP]] * 2
    assert [list(row.completion_logprobs) for row in rows] == [[0.0] * 3] * 2
    batch = batch_of(rows)
    trainer = opened(base, adapter)
    before = [parameter.detach().clone() for parameter in trainer.parameters(MODEL).values()]
    metrics = trainer.train(batch.tree, batch.entries, request(batch))
    assert metrics["loss/grad_norm"] == 0.0
    after = trainer.parameters(MODEL).values()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


async def test_what_was_not_drawn_under_its_constraint_is_refused(base: Path, adapter: Path) -> None:
    rows = await drawn(base, adapter, [SPECS[0], SPECS[0]])
    grammars = load_policy(str(base), name="test/tiny").grammars
    broken = replace(rows[0], completion_ids=[9, *rows[0].completion_ids[1:]])
    batch = batch_of([broken, rows[1]])
    with pytest.raises(TokenMismatchError, match="Sampled id 0 of a completion of rollout number 0"):
        follow_constraints(batch.tree, batch.entries, batch.sampling, grammars, VOCAB)
    batch = batch_of(rows)
    assert follow_constraints(batch.tree, batch.entries, batch.sampling, grammars, VOCAB) is not None
    blind = replace(batch.entries, place_E=None)
    with pytest.raises(TokenMismatchError, match="entry_place_E"):
        follow_constraints(batch.tree, blind, batch.sampling, grammars, VOCAB)
    torn = replace(batch.entries, place_E=np.roll(batch.entries.place_E, 1))
    with pytest.raises(TokenMismatchError, match="not in the batch"):
        follow_constraints(batch.tree, torn, batch.sampling, grammars, VOCAB)


def test_batches_without_constraints_carry_no_places() -> None:
    row = SampleRow(sample_id="a", prompt_ids=[1], completion_ids=[2], completion_logprobs=[-1.0])
    batch = batch_of([row, replace(row, sample_id="b")])
    assert batch.entries.place_E is None
    assert b"entry_place_E" not in encode_batch(batch, request(batch))
