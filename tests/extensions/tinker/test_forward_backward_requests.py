"""What comes in is read exactly, and what is wrong is refused by name."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from loss_requests import LARGEST, datum, message, read, read_body, sparse, tensor

from art.errors import RequestError
from art_extensions.tinker import tinker_public_pb2 as messages

SAMPLED = {"logprobs": [-0.5, -1.0], "advantages": [1.0, -2.0]}
TARGETS = {"target_tokens": [6, 7]}


def test_an_example() -> None:
    request = message(
        datum([5, 6], **TARGETS, **SAMPLED, mask=[0, 1]), loss_fn="ppo", config={"clip_low_threshold": 0.9}
    )
    request.forward_only = True
    call = read_body(request.SerializeToString(), kind="Application/X-Protobuf; charset=binary")
    (found,) = call.data
    assert (call.model_id, call.seq_id, call.loss_fn, call.forward_only) == ("m1", 1, "ppo", True)
    assert call.config == {"clip_low_threshold": 0.9}
    assert found.input_ids.tolist() == [5, 6] and found.input_ids.dtype == np.int32
    assert found.targets.tolist() == [6, 7] and found.targets.dtype == np.int32
    assert {name: column.tolist() for name, column in found.columns.items()} == {**SAMPLED, "mask": [0, 1]}
    assert all(column.dtype == np.float32 for column in found.columns.values())


def test_the_pieces_of_an_input_are_joined() -> None:
    one = datum([5], target_tokens=[6, 7, 8])
    one.model_input.add().encoded_text.tokens = np.asarray([6, 7], "<i4").tobytes()
    assert read(one).data[0].input_ids.tolist() == [5, 6, 7]


def test_older_releases_write_one_field_of_the_configuration() -> None:
    request = message(datum([5, 6], **TARGETS, **SAMPLED), loss_fn="dro")
    request.loss_fn_config["beta"] = 0.1
    assert read_body(request.SerializeToString()).config == {"beta": 0.1}


def test_a_tensor_may_leave_out_its_shape_and_have_short_integers() -> None:
    ids = messages.Tensor(dense=np.asarray([6, 7], "<i4").tobytes(), dtype=messages.DTYPE_INT32)
    assert read(datum([5, 6], target_tokens=ids)).data[0].targets.tolist() == [6, 7]


def test_sparse_targets_and_weights() -> None:
    (found,) = read(
        datum(
            [5, 6],
            target_tokens=sparse([{0: 9, 2: 8}, {}], 3, ids=True),
            weights=sparse([{0: 0.25, 2: 0.75}, {}], 3),
        )
    ).data
    assert found.targets.tolist() == [[9, 0, 8], [0, 0, 0]]
    assert found.columns["weights"].tolist() == [[0.25, 0, 0.75], [0, 0, 0]]


@pytest.mark.slow
@given(st.data())
def test_whatever_is_written_is_read(data: st.DataObject) -> None:
    written = []
    for _ in range(data.draw(st.integers(1, 3))):
        length, k = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([None, 1, 3]))
        shape = (length,) if k is None else (length, k)
        ids = data.draw(arrays(np.int64, length, elements=st.integers(0, 2**31 - 1)))
        targets = data.draw(arrays(np.int64, shape, elements=st.integers(0, 2**31 - 1)))
        finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
        written.append((ids, targets, data.draw(arrays(np.float32, shape, elements=finite))))
    body = message(
        *(datum(ids, target_tokens=targets, weights=weights) for ids, targets, weights in written)
    ).SerializeToString()
    if data.draw(st.booleans()):
        call = read_body(zstandard.ZstdCompressor().compress(body), encoding="zstd")
    else:
        call = read_body(body)
    for (ids, targets, weights), found in zip(written, call.data, strict=True):
        assert found.input_ids.tolist() == ids.tolist() and found.targets.tolist() == targets.tolist()
        assert found.columns["weights"].tobytes() == weights.tobytes()


def refused(body: bytes, **how: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_body(body, **how)
    assert caught.value.status == 400
    return caught.value


GOOD = message(datum([5, 6], **TARGETS, weights=[0.5, 1.0])).SerializeToString()
PACKED = zstandard.ZstdCompressor().compress(GOOD * 50)


@pytest.mark.parametrize(
    ("body", "how", "said"),
    [
        (b"{}", {"kind": "application/json"}, "takes protobuf"),
        (b"{}", {"kind": ""}, "'of no type'"),
        (GOOD, {"encoding": "gzip"}, "'gzip'; send 'zstd'"),
        (GOOD, {"encoding": "zstd"}, "no zstd"),
        (PACKED[:-1], {"encoding": "zstd"}, "torn"),
        (b"", {"encoding": "zstd"}, "no zstd"),
        (PACKED + PACKED, {"encoding": "zstd"}, "torn or goes on"),
        (GOOD[:-1], {}, "no ForwardBackwardRequest"),
        (b"\xff\xff", {}, "no ForwardBackwardRequest"),
        (b"", {}, "model_id is empty"),
        (GOOD, {"largest": len(GOOD) - 1}, "more than"),
        (GOOD, {"largest": 10}, "more than 10 bytes"),
    ],
)
def test_bodies_that_are_none(body: bytes, how: dict[str, Any], said: str) -> None:
    assert said in refused(body, **how).detail


def test_every_cut_of_a_body_is_refused_or_leaves_something_out() -> None:
    for end in range(len(GOOD)):
        refused(GOOD[:end])


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    refused(noise)
    refused(noise, encoding="zstd")


@pytest.mark.slow
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_wrong_byte_never_breaks_the_reader(at: int, byte: int) -> None:
    body = GOOD[:at] + bytes([byte]) + GOOD[at + 1 :]
    try:
        assert read_body(body).data
    except RequestError as error:
        assert error.status == 400


@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_bomb_is_never_unpacked(says_its_size: bool) -> None:
    writer = zstandard.ZstdCompressor(write_content_size=says_its_size).compressobj(
        size=1 << 27 if says_its_size else -1
    )
    bomb = b"".join(writer.compress(bytes(1 << 20)) for _ in range(128)) + writer.flush()
    assert len(bomb) < 1 << 16
    tracemalloc.start()
    error = refused(bomb, encoding="zstd", largest=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.code == "request_too_large" and "1048576 bytes" in error.detail
    assert peak < 1 << 26


def test_a_frame_that_asks_for_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = writer.compress(GOOD) + writer.flush()
    assert "no zstd: " in refused(body, encoding="zstd", largest=1 << 20).detail
    assert read_body(body, encoding="zstd", largest=1 << 27).data


def test_a_sparse_bomb_is_never_unpacked() -> None:
    bomb = sparse([{}, {}], 1 << 40, ids=True)
    error = refused(message(datum([5, 6], target_tokens=bomb)).SerializeToString())
    assert error.code == "request_too_large" and error.param == "data[0].loss_fn_inputs.target_tokens"
    many = [datum([5], target_tokens=sparse([{}], LARGEST // 8, ids=True)) for _ in range(3)]
    assert refused(message(*many).SerializeToString()).param == "data[2].loss_fn_inputs.target_tokens"


def csr(
    values: Any = (1.0,), crow: Any = (0, 1, 1), column: Any = (0,), shape: Any = (2, 2)
) -> messages.Tensor:
    written = messages.SparseCsr(
        values=np.asarray(values, "<f4").tobytes(),
        crow_indices=np.asarray(crow, "<i8").tobytes(),
        col_indices=np.asarray(column, "<i8").tobytes(),
    )
    return messages.Tensor(sparse_csr=written, dtype=messages.DTYPE_FLOAT32, shape=shape)


WEIGHTS: list[tuple[Any, str]] = [
    ([0.5, np.nan], r"weights is nan at \[1\]; its values are finite"),
    ([np.inf, 0.5], r"weights is inf at \[0\]"),
    ([0.5], r"weights has shape \[1\]; send that of target_tokens, \[2\]"),
    ([[0.5], [0.5]], r"shape \[2, 1\]"),
    ([[[0.5, 1.0]]], "one or two dimensions"),
    (messages.Tensor(dense=b"123", dtype=messages.DTYPE_FLOAT32), "3 bytes"),
    (messages.Tensor(dense=bytes(8), dtype=messages.DTYPE_BFLOAT16), "dtype number 4"),
    (messages.Tensor(dense=bytes(8)), "dtype number 0"),
    (
        messages.Tensor(dense=bytes(8), dtype=messages.DTYPE_FLOAT32, shape=[3]),
        r"2 values, and its shape \[3\]",
    ),
    (messages.Tensor(dense=bytes(8), dtype=messages.DTYPE_FLOAT32, shape=[-2]), r"\[-2\]"),
    (messages.Tensor(dense=b"", dtype=messages.DTYPE_FLOAT32, shape=[0, 1 << 62]), r"shape \[0, 4611"),
    (messages.Tensor(dense=bytes(8), dtype=messages.DTYPE_FLOAT32, shape=[1 << 62, 1 << 62]), "asks for"),
    (csr(shape=(2,)), "row pointers"),
    (csr(crow=(0, 1)), "row pointers"),
    (csr(crow=(0, 2, 1)), "rise from 0 to 1"),
    (csr(crow=(1, 1, 1)), "rise from 0 to 1"),
    (csr(column=(0, 1)), "2 columns"),
    (csr(column=(2,)), "columns rise within each row, from 0 to 1"),
    (csr(column=(-1,)), "columns rise"),
    (csr(values=(1.0, 2.0), crow=(0, 2, 2), column=(1, 0)), "columns rise"),
    (csr(values=(1.0, 2.0), crow=(0, 2, 2), column=(1, 1)), "columns rise"),
]


@pytest.mark.parametrize(("weights", "said"), WEIGHTS)
def test_tensors_that_are_none(weights: Any, said: str) -> None:
    good = datum([5, 6], **TARGETS)
    with pytest.raises(RequestError, match=said) as caught:
        read(good, datum([5, 6], **TARGETS, weights=weights))
    assert caught.value.param == "data[1].loss_fn_inputs.weights"


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([6], r"shape \[1\], and the input has 2 tokens"),
        (np.zeros((2, 0), np.int64), r"shape \[2, 0\]"),
        ([6, -100], r"id -100 at \[1\]; ids are from 0 to 2147483647"),
        ([6, 2**31], r"id 2147483648 at \[1\]"),
        ([[6, 7], [2**40, 8]], r"id 1099511627776 at \[1, 0\]"),
        ([6.0, 7.0], "is float32; send int64"),
    ],
)
def test_targets_that_are_none(targets: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        read(datum([5, 6], target_tokens=targets))
    assert caught.value.param == "data[0].loss_fn_inputs.target_tokens"


@pytest.mark.parametrize(
    ("chunk", "said", "code"),
    [
        (messages.Chunk(image=messages.ImageChunk()), r"model_input\[1\] is image", "unsupported_input"),
        (messages.Chunk(dmel=messages.DmelChunk()), "is dmel", "unsupported_input"),
        (messages.Chunk(), "is empty", "unsupported_input"),
        (
            messages.Chunk(encoded_text={"tokens": np.asarray([5, -1], "<i4").tobytes()}),
            "has id -1 at index 1",
            "invalid_request",
        ),
        (messages.Chunk(encoded_text={"tokens": b"12345"}), "5 bytes", "invalid_request"),
    ],
)
def test_inputs_that_are_none(chunk: messages.Chunk, said: str, code: str) -> None:
    one = datum([5, 6], **TARGETS)
    one.model_input.append(chunk)
    with pytest.raises(RequestError, match=said) as caught:
        read(one)
    assert caught.value.code == code
    assert caught.value.param is not None and caught.value.param.startswith("data[0].model_input[1]")


def test_an_input_needs_a_token_and_a_request_a_datum() -> None:
    with pytest.raises(RequestError, match="has no tokens"):
        read(datum([], target_tokens=[]))
    with pytest.raises(RequestError, match="data is empty"):
        read()


def test_a_model_and_a_number_are_needed() -> None:
    for changed, said in (({"model_id": ""}, "model_id is empty"), ({"seq_id": 0}, "seq_id is 0")):
        request = message(datum([5, 6], **TARGETS))
        for name, value in changed.items():
            setattr(request, name, value)
        assert said in refused(request.SerializeToString()).detail


RATIO = {"sequence_ratio_mask": [0.0, 1.0]}
CLIP = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}


@pytest.mark.parametrize(
    ("loss_fn", "config", "columns", "said"),
    [
        ("cross_entropy", {}, {"advantages": [1.0, 1.0]}, "takes: target_tokens, weights"),
        ("cross_entropy", {}, {"target_tokens": None}, r"needs data\[0\].loss_fn_inputs.target_tokens"),
        ("importance_sampling", {}, {"logprobs": [-0.1, -0.1]}, "needs .*advantages"),
        ("importance_sampling", {}, {**SAMPLED, "rewards": [1.0, 1.0]}, "rewards is nothing that"),
        ("importance_sampling", {}, {**SAMPLED, "logprobs": [0.1, -1.0]}, r"logprobs is 0.1\d* at \[0\]"),
        ("importance_sampling", {}, {**SAMPLED, "advantages": [np.nan, 1.0]}, r"advantages is nan at \[0\]"),
        ("importance_sampling", {}, {**SAMPLED, "mask": [-1.0, 1.0]}, "at least 0"),
        ("importance_sampling", {}, {**SAMPLED, "target_tokens": [[1, 2], [3, 4]]}, "only 'cross_entropy'"),
        ("ppo", {}, {**SAMPLED, "clip_low_threshold": [0.8, 0.8]}, "belong in loss_fn_config"),
        ("gspo", CLIP, SAMPLED, "needs .*sequence_ratio_mask"),
        ("gspo", {}, {**SAMPLED, **RATIO}, "needs loss_fn_config.clip_low_threshold"),
        ("gspo", CLIP, {**SAMPLED, **RATIO}, "advantages is not 0 at position 0"),
        ("dro", {}, SAMPLED, "needs loss_fn_config.beta"),
        ("dro", {"beta": -1.0}, SAMPLED, "send a number of at least 0"),
        ("dro", {"beta": "much"}, SAMPLED, "'much'; send a finite number"),
        ("dro", {"beta": np.nan}, SAMPLED, "nan; send a finite number"),
        ("ppo", {"clip_low_threshold": 1.1}, SAMPLED, "1.1; send a number from 0 to 1"),
        ("ppo", {"clip_high_threshold": 0.9}, SAMPLED, "of at least 1"),
        ("ppo", {"beta": 0.1}, SAMPLED, "It takes clip_low_threshold, clip_high_threshold"),
        ("cross_entropy", {"beta": 0.1}, {}, "It takes nothing"),
    ],
)
def test_what_a_loss_does_not_take(
    loss_fn: str, config: dict[str, Any], columns: dict[str, Any], said: str
) -> None:
    given = {name: values for name, values in {**TARGETS, **columns}.items() if values is not None}
    with pytest.raises(RequestError, match=said) as caught:
        read(datum([5, 6], **given), loss_fn=loss_fn, config=config)
    assert caught.value.param is not None and caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stable_reinforce", "neither this record nor the formula is published"),
        ("crossentropy", "not supported. Use cross_entropy, importance_sampling, ppo, cispo, dro, gspo"),
    ],
)
def test_losses_that_are_not_supported(name: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        read(datum([5, 6], **TARGETS), loss_fn=name, config={"loss_id": "l1"})
    assert (caught.value.code, caught.value.param) == ("unsupported_loss", "loss_fn")


def test_a_custom_loss_has_inputs_of_any_shape_and_an_id() -> None:
    own = datum([5, 6, 7], target_tokens=[6, 7, 8], reward=[0.5], table=[[1.0, 2.0]])
    call = read(own, loss_fn="custom", config={"loss_id": "s:loss:0"})
    assert call.config == {"loss_id": "s:loss:0"} and not call.data[0].columns
    assert {name: one.shape for name, one in call.data[0].inputs.items()} == {
        "target_tokens": (3,),
        "reward": (1,),
        "table": (1, 2),
    }


@pytest.mark.parametrize(
    ("config", "given", "said"),
    [
        ({}, {"target_tokens": [6]}, "takes loss_fn_config.loss_id alone"),
        ({"loss_id": 3.0}, {"target_tokens": [6]}, "takes loss_fn_config.loss_id alone"),
        ({"loss_id": "a", "beta": 1.0}, {"target_tokens": [6]}, "takes loss_fn_config.loss_id alone"),
        ({"loss_id": "a"}, {"weights": [1.0]}, "needs .*target_tokens"),
        ({"loss_id": "a"}, {"target_tokens": [6, 7]}, "the input has 1 tokens"),
    ],
)
def test_what_a_custom_loss_does_not_take(config: dict[str, Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read(datum([5], **given), loss_fn="custom", config=config)


def test_a_value_of_the_configuration_may_be_missing() -> None:
    request = message(datum([5, 6], **TARGETS, **SAMPLED), loss_fn="dro")
    request.loss_fn_config_v2["beta"].SetInParent()
    assert "beta has no value" in refused(request.SerializeToString()).detail


def test_rounded_logprobs_are_those_of_certainty() -> None:
    columns = {**SAMPLED, "logprobs": [5e-5, -1.0]}
    call = read(datum([5, 6], **TARGETS, **columns), loss_fn="importance_sampling")
    assert call.data[0].columns["logprobs"].tolist() == [0.0, -1.0]


def test_a_helper_writes_what_it_says() -> None:
    assert tensor([1, 2]).dtype == messages.DTYPE_INT64 and tensor([1.0]).dtype == messages.DTYPE_FLOAT32


@pytest.mark.parametrize("mask", [None, [2.0, 1.0]])
@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
def test_weights_beside_advantages_are_a_mask(loss_fn: str, mask: list[float] | None) -> None:
    given = {} if mask is None else {"mask": mask}
    (found,) = read(datum([5, 6], **TARGETS, **SAMPLED, **given, weights=[0.5, 0.0]), loss_fn=loss_fn).data
    expected = {**SAMPLED, "mask": [0.5 if mask is None else 1.0, 0.0]}
    assert {name: column.tolist() for name, column in found.columns.items()} == expected


def test_weights_of_gspo_say_which_tokens_the_ratio_has() -> None:
    thresholds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    one = datum([5, 6], **TARGETS, **SAMPLED, weights=[0.0, 1.0])
    (found,) = read_body(message(one, loss_fn="gspo", config=thresholds).SerializeToString()).data
    assert found.columns["sequence_ratio_mask"].tolist() == [0.0, 1.0]
    assert found.columns["advantages"].tolist() == [0.0, -2.0]
    assert "weights" not in found.columns


@pytest.mark.parametrize(
    ("loss_fn", "weights", "rule"),
    [("ppo", [1.0, -1.0], "at least 0"), ("gspo", [1.0, 0.5], "0 or 1")],
)
def test_weights_that_are_no_mask_are_refused(loss_fn: str, weights: list[float], rule: str) -> None:
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    one = datum([5, 6], **TARGETS, **SAMPLED, weights=weights)
    with pytest.raises(RequestError, match=rf"weights is {weights[1]} at \[1\]; .* is {rule}"):
        read_body(message(one, loss_fn=loss_fn, config=config).SerializeToString())
