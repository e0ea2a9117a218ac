from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from safetensors.numpy import save

from art.batch.batch_types import Batch, GroupRow, RolloutRow, SampleRow
from art.batch.build import build_batch
from art.batch.encode import decode_batch, encode_batch
from art.errors import TokenMismatchError
from art.wire.training import OptimizerSpec, TrainRequest

REQUEST = TrainRequest(model="p/m", step=3, optimizer=OptimizerSpec(learning_rate=1e-3), normalizer=4.0)


def batch() -> Batch:
    def attempt(name: str, reward: float, last: int) -> RolloutRow:
        row = SampleRow(
            sample_id=name, prompt_ids=[5, 6], completion_ids=[7, last], completion_logprobs=[-0.5, -1.0]
        )
        return RolloutRow(rollout=name, reward=reward, samples=[row])

    return build_batch([GroupRow(rollouts=[attempt("a", 1.0, 8), attempt("b", 0.0, 9)])])


def test_the_worked_example_of_the_contract_survives_the_wire() -> None:
    tree, entries, request = decode_batch(encode_batch(batch(), REQUEST))
    assert request == REQUEST
    assert tree.tokens_T.tolist() == [5, 6, 7, 8, 9]
    assert tree.parent_T.tolist() == [-1, 0, 1, 2, 2]
    assert tree.end_T.tolist() == [5, 5, 5, 4, 5]
    assert tree.depth_T.tolist() == [0, 1, 2, 3, 3]
    assert entries.token_E.tolist() == [2, 3, 2, 4]
    assert np.sign(entries.advantage_E).tolist() == [1, 1, -1, -1]


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("tree", "parent_T", [-1, 0, 1, 1, 2]),
        ("tree", "parent_T", [0, 0, 1, 2, 2]),
        ("tree", "end_T", [5, 5, 5, 5, 5]),
        ("tree", "end_T", [5, 5, 4, 4, 5]),
        ("tree", "depth_T", [0, 1, 2, 3, 4]),
        ("tree", "depth_T", [0, 1, 2, 3]),
        ("entries", "token_E", [2, 3, 2, 5]),
        ("entries", "token_E", [0, 3, 2, 4]),
        ("entries", "logprob_E", [-1.0, -1.0, 0.5, -1.0]),
        ("entries", "advantage_E", [1.0, np.nan, 1.0, 1.0]),
        ("entries", "weight_E", [1.0, 1.0, 1.0, -1.0]),
        ("entries", "weight_E", [1.0, 1.0, 1.0]),
    ],
)
def test_arrays_that_are_no_batch_are_refused_by_name(where: str, name: str, value: list[float]) -> None:
    good = batch()
    part = getattr(good, where)
    bad = dataclasses.replace(part, **{name: np.array(value, getattr(part, name).dtype)})
    with pytest.raises(TokenMismatchError, match=r"_T|_E|loss entries"):
        decode_batch(encode_batch(dataclasses.replace(good, **{where: bad}), REQUEST))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not a batch at all",
        encode_batch(batch(), REQUEST)[:-3],
        save({"tokens_T": np.zeros(1, np.int32)}),
        save({"tokens_T": np.zeros(1, np.int32)}, metadata={"request": REQUEST.model_dump_json()}),
        save({"tokens_T": np.zeros(1, np.int32)}, metadata={"request": '{"model": "m"}'}),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(TokenMismatchError):
        decode_batch(body)
