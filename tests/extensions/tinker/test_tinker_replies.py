"""What goes out, as its bytes say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loss_requests import datum, read

from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.forward_backward import forward_backward_output
from art_extensions.tinker.sample_response import AltTokens, AnswerSequence, TargetLogprobs, sample_response


def floats(*values: float) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.float32)


def test_neighbours_of_one_width_share_a_record() -> None:
    call = read(
        datum([5, 6], target_tokens=[6, 7]),
        datum([5], target_tokens=[6]),
        datum([5], target_tokens=[[6, 7]]),
        datum([5], target_tokens=[6]),
    )
    logprobs = [floats(-1, -2), floats(-3), floats(-4, -5).reshape(1, 2), floats(-6)]
    written = forward_backward_output(call, logprobs, {"loss:sum": 1.5})
    output = messages.ForwardBackwardOutput.FromString(written)
    assert output.loss_fn_output_type == "scalar" and dict(output.metrics) == {"loss:sum": 1.5}
    assert [record.num_datums for record in output.loss_fn_outputs] == [2, 1, 1]
    fields = [record.fields["logprobs"] for record in output.loss_fn_outputs]
    assert [np.frombuffer(one.data, "<f4").tolist() for one in fields] == [[-1, -2, -3], [-4, -5], [-6]]
    assert [np.frombuffer(one.offsets, "<i8").tolist() for one in fields] == [[0, 8, 12], [0, 8], [0, 4]]
    assert [list(one.trailing_shape) for one in fields] == [[], [2], []]
    assert all(one.dtype == messages.DTYPE_FLOAT32 for one in fields)
    parts = [record.fields["elementwise_loss"] for record in output.loss_fn_outputs]
    assert [np.frombuffer(one.data, "<f4").tolist() for one in parts] == [[1, 2, 3], [4, 5], [6]]


def test_results_of_another_shape_are_a_fault() -> None:
    call = read(datum([5, 6], target_tokens=[6, 7]))
    with pytest.raises(ValueError, match=r"\[\(1,\)\], the targets \[\(2,\)\]"):
        forward_backward_output(call, [floats(-1)], {})
    for name in ("loss", "a:b:c"):
        with pytest.raises(ValueError, match="NAME:REDUCTION"):
            forward_backward_output(call, [floats(-1, -2)], {name: 1.0})


def test_samples_and_the_prompt() -> None:
    written = sample_response(
        [
            AnswerSequence(tokens=[7, 8], logprobs=[-0.5, -1.0], stop_reason="length"),
            AnswerSequence(tokens=[], logprobs=None, stop_reason="stop", top_tokens=[]),
        ],
        prompt_logprobs=[None, -2.0],
        top_prompt_logprobs=[None, [(3, -0.5), (4, -1.0)], [(5, -0.25)]],
        target_prompt_logprobs=TargetLogprobs(values=floats(-1, 0), shape=(1, 2)),
        alt_tokens=AltTokens(tokens=np.asarray([[9]]), logprobs=floats(-3).reshape(1, 1)),
        cached_tokens=1,
    )
    found = messages.SampleResponse.FromString(written)
    first, second = found.sequences
    assert np.frombuffer(first.tokens, "<i4").tolist() == [7, 8]
    assert np.frombuffer(first.logprobs, "<f4").tolist() == [-0.5, -1.0]
    assert first.stop_reason == messages.STOP_REASON_LENGTH and second.stop_reason == 0
    assert not second.HasField("logprobs") and second.HasField("topk_sampled_logprobs")
    prompt = np.frombuffer(found.prompt_logprobs, "<f4")
    assert np.isnan(prompt[0]) and prompt[1] == -2.0
    top = found.topk_prompt_logprobs
    assert (top.k, top.length) == (2, 3)
    assert np.frombuffer(top.token_ids, "<i4").tolist() == [0, 0, 3, 4, 5, 0]
    assert np.frombuffer(top.logprobs, "<f4").tolist() == [-99999, -99999, -0.5, -1.0, -0.25, -99999]
    assert list(found.target_prompt_logprobs.shape) == [1, 2] and found.prompt_cache_hit_tokens == 1
    assert np.frombuffer(found.prompt_alt_tokens.tokens.dense, "<i8").tolist() == [9]


def test_what_was_not_asked_for_is_not_there() -> None:
    found = messages.SampleResponse.FromString(sample_response([]))
    assert not found.ListFields()


def test_a_sample_has_a_logprob_for_each_token() -> None:
    with pytest.raises(ValueError, match="2 tokens has 1 logprobs"):
        sample_response([AnswerSequence(tokens=[7, 8], logprobs=[-1.0], stop_reason="stop")])
