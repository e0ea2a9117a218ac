"""The trainer's logprobs of tempered and truncated sampling are those that the engine reports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_policies import policy

from art.engine.builtin.sampler import SamplingTable, sample
from art.engine.protocol import Sampling
from art.training.logprobs import target_logprobs
from art.training.sampling import NUCLEUS, PenalisedText, SamplingRows, Shapes, TargetBias

CASES = [
    dict(temperature=0.7),
    dict(temperature=1.6, top_k=5),
    dict(top_p=0.8),
    dict(top_k=1),
    dict(min_p=0.1),
    dict(temperature=0.0, top_p=0.5),
    dict(temperature=0.9, top_k=9, top_p=0.9, min_p=0.02),
    dict(temperature=2.5, top_k=400, top_p=0.5),
    dict(temperature=0.01, min_p=0.9),
    dict(),
]


def rows_of(cases: list[dict[str, float]]) -> SamplingRows:
    def column(name: str, default: float) -> torch.Tensor:
        return torch.tensor([case.get(name, default) for case in cases])

    return SamplingRows.make(
        temperature_N=column("temperature", 1.0),
        top_k_N=column("top_k", 0),
        top_p_N=column("top_p", 1.0),
        min_p_N=column("min_p", 0.0),
    )


class Identity:
    """A head whose hidden states are the logits."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, hidden_PD: torch.Tensor) -> torch.Tensor:
        return hidden_PD * 1.0

    def trained(self) -> list[torch.nn.Parameter]:
        return []

    def plain_rows(self, hidden_PD: torch.Tensor) -> None:
        """It has no output layer whose rows could be averaged."""


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_logprobs_are_those_of_the_engine(ties: bool, rows: int) -> None:
    vocabulary, times = 50, 30
    generator = torch.Generator().manual_seed(3)
    cases = CASES * times
    logits_RV = torch.randn(len(cases), vocabulary, generator=generator) * 3
    if ties:
        logits_RV = logits_RV.round()
    table = SamplingTable(len(cases))
    for row, case in enumerate(cases):
        table.set(row, Sampling(max_tokens=1, **case), seed=row)
    drawn = sample(logits_RV, table, np.arange(len(cases)), np.zeros(len(cases), np.uint64))
    logprob_N, _ = target_logprobs(
        Identity(vocabulary),  # type: ignore[arg-type]
        logits_RV,
        torch.arange(len(cases)),
        torch.tensor(drawn.tokens),
        sampling=rows_of(cases),
        chunk_elements=rows * vocabulary,
    )
    assert torch.allclose(logprob_N, torch.tensor(drawn.logprobs), atol=1e-5)
    plain_N = torch.log_softmax(logits_RV, -1)[torch.arange(len(cases)), torch.tensor(drawn.tokens)]
    assert (logprob_N - plain_N).abs().max() > 0.5, "the cases make a difference"


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_gradient_is_that_of_finite_differences(rows: int) -> None:
    head = policy(dtype=torch.float64).head
    generator = torch.Generator().manual_seed(1)
    hidden_PD = torch.randn(4, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    predictor_N = torch.arange(4).repeat_interleave(len(CASES))  # each predictor under every case at once
    sampling = rows_of(CASES * 4)
    # The likeliest token is in every kept set; finite differences do not move it out.
    id_N = head(hidden_PD).argmax(-1)[predictor_N]
    chunk = rows * head.vocab_size

    def total(hidden: torch.Tensor) -> torch.Tensor:
        logprob_N, _ = target_logprobs(
            head, hidden, predictor_N, id_N, sampling=sampling, chunk_elements=chunk
        )
        weight_N = torch.linspace(0.5, 2.0, len(id_N), dtype=torch.float64)
        return (logprob_N * weight_N).sum()

    assert torch.autograd.gradcheck(total, (hidden_PD,), eps=1e-7, atol=1e-6)


def test_a_nucleus_wider_than_the_first_look() -> None:
    vocabulary = 3 * NUCLEUS
    generator = torch.Generator().manual_seed(0)
    logits_RV = (torch.randn(6, vocabulary, generator=generator) * 0.3).round(decimals=1)
    cases = [dict(top_p=p) for p in (0.1, 0.5, 0.9, 0.99, 0.999, 0.05)]
    table = SamplingTable(6)
    for row, case in enumerate(cases):
        table.set(row, Sampling(max_tokens=1, **case), seed=row)
    drawn = sample(logits_RV, table, np.arange(6), np.zeros(6, np.uint64))
    logprob_N, _ = target_logprobs(
        Identity(vocabulary),  # type: ignore[arg-type]
        logits_RV,
        torch.arange(6),
        torch.tensor(drawn.tokens),
        sampling=rows_of(cases),
    )
    assert torch.allclose(logprob_N, torch.tensor(drawn.logprobs), atol=1e-5)


def test_a_target_outside_the_kept_set_joins_it() -> None:
    logits_PV = torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=torch.float64)
    sampling = rows_of([dict(top_k=2)])
    logprob_N, _ = target_logprobs(
        Identity(4),  # type: ignore[arg-type]
        logits_PV,
        torch.tensor([0]),
        torch.tensor([3]),
        sampling=sampling,
    )
    expected = torch.log_softmax(torch.tensor([4.0, 3.0, 1.0], dtype=torch.float64), 0)[2]
    assert torch.allclose(logprob_N, expected)


def test_rows_that_change_nothing_are_not_processed() -> None:
    rows = rows_of(CASES)
    assert rows.processed_N.tolist() == [True] * 5 + [False] + [True] * 3 + [False]


TEXTS = [
    dict(ids=[3, 4, 4, 7, 7, 1, 7], prompt=3, frequency=0.5, presence=-0.25, repetition=1.7),
    dict(ids=[9, 2, 2, 2], prompt=1, frequency=-0.3, presence=0.0, repetition=0.6),
    dict(ids=[5, 0, 0], prompt=1, frequency=1.0, presence=0.5, repetition=1.0),
]


def penalised(logits_V: torch.Tensor, text: dict, place: int) -> torch.Tensor:
    """The definition, id by id."""
    scores = list(logits_V)
    said = text["ids"][text["prompt"] :][:place]
    for token in {*text["ids"][: text["prompt"]], *said}:
        scores[token] = scores[token] * text["repetition"] ** (-1.0 if scores[token] > 0 else 1.0)
    for token in set(said):
        scores[token] = scores[token] - text["frequency"] * said.count(token) - text["presence"]
    return torch.stack(scores)


@pytest.mark.parametrize("rows", [2, 100])
def test_penalised_logprobs_and_gradients_are_those_of_the_definition(rows: int) -> None:
    generator = torch.Generator().manual_seed(5)
    targets = [
        (number, place)
        for number, text in enumerate(TEXTS)
        for place in range(len(text["ids"]) - text["prompt"])
    ]
    targets = [(-1, -1), *targets]
    logits = torch.randn(len(targets), 12, generator=generator, dtype=torch.float64) * 2
    wanted = torch.randint(12, (len(targets),), generator=generator)
    weights = torch.randn(len(targets), generator=generator, dtype=torch.float64)
    temperature = torch.full((len(targets),), 0.7, dtype=torch.float64)
    bias = TargetBias(ids=torch.tensor([4, 7]), values=torch.tensor([1.5, -2.0]))
    text_N, place_N = torch.tensor(targets).T
    shapes = Shapes(
        bias_N=torch.where(text_N == 0, 0, -1),
        mask_N=torch.full_like(text_N, -1),
        biases=(bias,),
        bits_KB=torch.zeros(1, 1, dtype=torch.uint8),
        text_N=text_N,
        place_N=place_N,
        texts=tuple(
            PenalisedText(
                ids_J=torch.tensor(text["ids"]),
                **{name: text[name] for name in ("prompt", "frequency", "presence", "repetition")},
            )
            for text in TEXTS
        ),
    )
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    logprob_N, _ = target_logprobs(
        Identity(12),  # type: ignore[arg-type]
        ours,
        torch.arange(len(targets)),
        wanted,
        sampling=SamplingRows.make(temperature_N=temperature, shapes=shapes),
        most_rows=rows,
    )
    added = torch.zeros(12, dtype=torch.float64).index_put((bias.ids,), bias.values.double())
    expected = []
    for row, (number, place) in enumerate(targets):
        scores = theirs[row] + added if number == 0 else theirs[row] + 0
        scores = penalised(scores, TEXTS[number], place) if number >= 0 else scores
        expected.append((scores / 0.7).log_softmax(-1)[wanted[row]])
    assert torch.allclose(logprob_N, torch.stack(expected), atol=1e-12)
    (logprob_N * weights).sum().backward()
    (torch.stack(expected) * weights).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-12)
