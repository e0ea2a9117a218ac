"""Other ids in a prompt's places: what a request asks the server for, and the reply in its layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from art.errors import RequestError
from art.wire.engine import MOST_ALTERNATIVES
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.records import SampleAsked
from art_extensions.tinker.samples import answer, generate_request

PROMPT = [5, 6, 7, 8]
DENSE = {"data": [9, -1, -1, 2, 3, 4], "dtype": "int64", "shape": [3, 2]}
SPARSE = {
    "data": [9, 2, -1, 4],
    "dtype": "int64",
    "shape": [3, 100],
    "sparse_crow_indices": [0, 1, 2, 4],
    "sparse_col_indices": [0, 70, 0, 1],
}


def asked(**more: Any) -> SampleAsked:
    prompt = {"chunks": [{"tokens": PROMPT[:1]}, {"tokens": PROMPT[1:]}]}
    return SampleAsked.model_validate(
        {"prompt": prompt, "sampling_params": {"max_tokens": 1, "temperature": 0.5, "seed": 3}, **more}
    )


def wanted(**more: Any) -> dict[str, Any]:
    params: dict[str, Any] = generate_request("m", asked(**more))["sampling_params"]
    return params


def read_answer(request: SampleAsked, **found: Any) -> messages.SampleResponse:
    return messages.SampleResponse.FromString(answer(request, {"choices": [], **found}))


def test_what_nobody_asks_for_is_not_computed() -> None:
    assert "prompt_alternatives" not in wanted() and "prompt_alternatives" not in wanted(prompt_logprobs=True)
    found = read_answer(asked())
    assert not found.HasField("target_prompt_logprobs") and not found.HasField("prompt_alt_tokens")


def test_named_ids_of_a_dense_tensor() -> None:
    request = asked(target_prompt_logprobs=DENSE)
    alternatives = generate_request("m", request)["sampling_params"]["prompt_alternatives"]
    assert alternatives["ids"] == [(1, 9), (2, 2), (3, 3), (3, 4)] and alternatives["draws"] == 0
    reply = {"logprobs": [-1.0, -2.0, -3.0, -4.0], "draws": []}
    found = read_answer(request, prompt_alternatives=reply, prompt_logprobs=[None, {}, {}, {}])
    tensor = found.target_prompt_logprobs
    assert list(tensor.shape) == [3, 2] and tensor.dtype == messages.DTYPE_FLOAT32
    assert np.frombuffer(tensor.dense, "<f4").tolist() == [-1, 0, 0, -2, -3, -4]
    assert not found.HasField("prompt_logprobs"), "the prompt's own were not asked for"


def test_named_ids_of_a_sparse_tensor() -> None:
    request = asked(target_prompt_logprobs=SPARSE)
    assert wanted(target_prompt_logprobs=SPARSE)["prompt_alternatives"]["ids"] == [(1, 9), (2, 2), (3, 4)]
    found = read_answer(request, prompt_alternatives={"logprobs": [-1.0, -2.0, -4.0], "draws": []})
    tensor = found.target_prompt_logprobs
    assert list(tensor.shape) == [3, 100]
    assert np.frombuffer(tensor.sparse_csr.values, "<f4").tolist() == [-1, -2, 0, -4]
    assert np.frombuffer(tensor.sparse_csr.crow_indices, "<i8").tolist() == SPARSE["sparse_crow_indices"]
    assert np.frombuffer(tensor.sparse_csr.col_indices, "<i8").tolist() == SPARSE["sparse_col_indices"]


def test_draws_have_the_temperature_and_the_seed_of_the_request() -> None:
    told = wanted(prompt_alt_tokens_k=2)["prompt_alternatives"]
    assert told == {"draws": 2, "temperature": 0.5, "seed": 3}
    draws = [[[7, -0.5], [2_000_000_001, -9.0]], [[1, -1.0], [1, -1.0]], [[0, -2.0], [3, -3.0]]]
    reply = {"logprobs": [], "draws": draws}
    found = read_answer(asked(prompt_alt_tokens_k=2), prompt_alternatives=reply).prompt_alt_tokens
    assert list(found.tokens.shape) == list(found.logprobs.shape) == [3, 2]
    assert np.frombuffer(found.tokens.dense, "<i8").tolist() == [7, 2_000_000_001, 1, 1, 0, 3]
    assert np.frombuffer(found.logprobs.dense, "<f4").tolist() == [-0.5, -9, -1, -1, -2, -3]


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        ({**DENSE, "shape": [2, 3]}, "a prompt of 4 ids takes 3 rows"),
        ({**DENSE, "shape": [3, 3]}, "6 values, and its shape"),
        ({**DENSE, "data": [9, -1, -1, 2, 3, -2]}, "ids below -1"),
        ({**DENSE, "data": [-1] * 6}, "names 0 ids"),
        ({**SPARSE, "sparse_crow_indices": [0, 1, 2]}, "4 row pointers"),
        ({**SPARSE, "sparse_crow_indices": [0, 3, 2, 4]}, "row pointers rise"),
        ({**SPARSE, "sparse_crow_indices": [0, 1, 2, 3]}, "row pointers rise"),
        ({**SPARSE, "sparse_col_indices": [0, 100, 0, 1]}, "a column from 0 to 99"),
        ({**SPARSE, "sparse_col_indices": [0, 70, 0]}, "a column from 0 to 99"),
        ({**SPARSE, "sparse_col_indices": None}, "4 values, and its shape"),
        (
            {"data": [1] * (3 * MOST_ALTERNATIVES), "dtype": "int64", "shape": [3, MOST_ALTERNATIVES]},
            "from 1 to 65536",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused_by_name(tensor: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as refused:
        wanted(target_prompt_logprobs=tensor)
    assert "target_prompt_logprobs" in str(refused.value)


def test_too_many_draws_are_refused_by_name() -> None:
    assert wanted(prompt_alt_tokens_k=MOST_ALTERNATIVES // 3)["prompt_alternatives"]["draws"] == 21845
    with pytest.raises(RequestError, match="prompt_alt_tokens_k=21846 asks for 65538 draws"):
        wanted(prompt_alt_tokens_k=21846)
