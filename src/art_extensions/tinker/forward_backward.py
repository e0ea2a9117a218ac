"""`POST /api/v1/forward_backward`: its body -> what is computed, and the results -> its reply.

A datum has N input ids and, for each of them, what to predict after it: position i's target is the id that
follows input i, in most datums input i + 1. All of its columns have the shape of the targets, [N]; for
cross_entropy also [N, K], K targets at each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

import numpy as np
import zstandard
from google.protobuf.message import DecodeError

from art.batch.batch_types import FloatArray, IntArray
from art.errors import RequestError
from art.wire.quoting import quote_value
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.loss_functions import (
    ADVANTAGES,
    CUSTOM,
    LOGPROBS,
    MASK,
    RATIO_MASK,
    TARGETS,
    WEIGHTS,
    LossFunction,
    algorithm_of,
    elementwise_loss,
    find_loss,
)
from art_extensions.tinker.refusals import TOO_LARGE, UNSUPPORTED_INPUT, refusal
from art_extensions.tinker.tensors import Numbers, TensorReader, float_bytes, long_bytes, read_ids

PROTOBUF_TYPES = ("application/x-protobuf", "application/protobuf")
_SLICE = 512
"""Bytes that are decompressed at once: they become at most 16 MiB."""
_LEAST_WINDOW = 1 << 23
"""A frame may ask for so many bytes of memory, and for more only where the body may be larger."""
LOSS_ID = "loss_id"
_ELEMENTWISE = "elementwise_loss"
"""Programs for other open servers read it."""
_MOST_ID = np.iinfo(np.int32).max
_ROUNDING = 1e-4
"""A logprob of so much above 0 is one of 0."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossDatum:
    """One sequence and what its loss needs."""

    input_ids: IntArray
    """[N], N at least 1."""
    targets: IntArray
    """[N] or [N, K]: the ids whose logprobs count, each after the inputs up to its position."""
    columns: Mapping[str, FloatArray] = field(default_factory=dict)
    """The columns that came, by their names in the request; each has the shape of `targets`."""
    inputs: Mapping[str, Numbers] = field(default_factory=dict)
    """The inputs of a custom loss, of any shape, instead of columns."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ForwardBackwardCall:
    """One checked request."""

    model_id: str
    seq_id: int
    loss_fn: str
    config: Mapping[str, float | str]
    forward_only: bool
    data: tuple[LossDatum, ...]


def read_forward_backward(
    body: bytes, *, content_type: str, content_encoding: str | None, largest: int
) -> ForwardBackwardCall:
    """Reads and checks the body of a request.

    largest: bytes of the decompressed body at most, and of its tensors once they are dense.

    Raises RequestError (status 400), which names datum, field and value: for a body that is no protobuf, is
    torn or too large, an unsupported loss, an image, unknown or missing columns, wrong shapes and values.
    """
    message = _parse(_decompressed(_of_protobuf(body, content_type), content_encoding, largest))
    if not message.model_id:
        raise refusal("model_id is empty; send that of create_model's reply.", param="model_id")
    if message.seq_id < 1:
        raise refusal(f"seq_id is {message.seq_id}; the first request of a model has 1.", param="seq_id")
    if not message.data:
        raise refusal("data is empty; send at least one datum.", param="data")
    config, tensors = _config(message), TensorReader(largest)
    if message.loss_fn == CUSTOM:
        _check_loss_id(config)
        read_datum = _custom_datum
    else:
        algorithm_of(message.loss_fn, config)
        read_datum = partial(_datum, loss_fn=message.loss_fn, loss=find_loss(message.loss_fn))
    return ForwardBackwardCall(
        model_id=message.model_id,
        seq_id=message.seq_id,
        loss_fn=message.loss_fn,
        config=config,
        forward_only=message.forward_only,
        data=tuple(
            read_datum(datum, f"data[{number}]", tensors=tensors) for number, datum in enumerate(message.data)
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """The run and the number of a request."""

    model_id: str
    seq_id: int


def read_envelope(body: bytes, *, content_type: str, content_encoding: str | None, largest: int) -> Envelope:
    """Returns the run and the number of a request. The rest of its body is not checked.

    Raises RequestError (status 400) for a body that is no protobuf, is torn or too large.
    """
    message = _parse(_decompressed(_of_protobuf(body, content_type), content_encoding, largest))
    return Envelope(model_id=message.model_id, seq_id=message.seq_id)


def _of_protobuf(body: bytes, content_type: str) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in PROTOBUF_TYPES:
        raise refusal(
            f"The body is {quote_value(kind or 'of no type')}; forward_backward takes protobuf "
            f"({PROTOBUF_TYPES[0]}), and of older clients JSON.",
            param=None,
        )
    return body


def _decompressed(body: bytes, content_encoding: str | None, largest: int) -> bytes:
    encoding = (content_encoding or "identity").strip().lower()
    if encoding not in ("identity", "zstd"):
        raise refusal(
            f"The body's Content-Encoding is {quote_value(encoding)}; send 'zstd' or none.", param=None
        )
    if len(body) > largest:
        raise _too_large(largest)
    if encoding == "identity":
        return body
    try:
        if zstandard.frame_content_size(body) > largest:
            raise _too_large(largest)
        return _unpacked(body, largest)
    except zstandard.ZstdError as error:
        raise refusal(f"The body is no zstd: {error}. Send it again.", param=None) from error


def _unpacked(body: bytes, largest: int) -> bytes:
    """Raises ZstdError for damaged frames, RequestError for torn ones and where the result is too large."""
    reader = zstandard.ZstdDecompressor(max_window_size=max(largest, _LEAST_WINDOW)).decompressobj()
    pieces, size = [], 0
    for start in range(0, len(body), _SLICE):
        if reader.eof:
            raise refusal("The body goes on after its zstd frame; send one frame.", param=None)
        pieces.append(reader.decompress(body[start : start + _SLICE]))
        size += len(pieces[-1])
        if size > largest:
            raise _too_large(largest)
    if not reader.eof or reader.unused_data:
        raise refusal(
            "The body is not exactly one zstd frame: it is torn or goes on. Send it again.", param=None
        )
    return b"".join(pieces)


def _too_large(largest: int) -> RequestError:
    return refusal(
        f"The body takes more than {largest} bytes. Send fewer datums in one request.",
        param=None,
        code=TOO_LARGE,
    )


def _parse(body: bytes) -> messages.ForwardBackwardRequest:
    try:
        message = messages.ForwardBackwardRequest()
        message.ParseFromString(body)
        return message
    except DecodeError as error:
        raise refusal(
            f"The body is no ForwardBackwardRequest of protobuf: {error}. Send it again.", param=None
        ) from error


def _config(message: messages.ForwardBackwardRequest) -> dict[str, float | str]:
    """Newer releases write both fields, and strings only into the second."""
    if not message.loss_fn_config_v2:
        return dict(message.loss_fn_config)
    config: dict[str, float | str] = {}
    for name, value in message.loss_fn_config_v2.items():
        kind = value.WhichOneof("value")
        if kind is None:
            param = f"loss_fn_config.{name}"
            raise refusal(f"{param} has no value; send a number or a text.", param=param)
        config[name] = value.number if kind == "number" else value.text
    return config


def _check_loss_id(config: Mapping[str, float | str]) -> None:
    if list(config) != [LOSS_ID] or not isinstance(config[LOSS_ID], str):
        raise refusal(
            f"loss_fn {CUSTOM!r} takes loss_fn_config.{LOSS_ID} alone, the text of create_custom_loss.",
            param="loss_fn_config",
        )


def _tensors(datum: messages.Datum, param: str, tensors: TensorReader) -> dict[str, Numbers]:
    return {
        name: tensors.read(datum.loss_fn_inputs[name], f"{param}.loss_fn_inputs.{name}")
        for name in sorted(datum.loss_fn_inputs)
    }


_ANY_TARGETS = LossFunction(needs=(), several_targets=True)


def _custom_datum(datum: messages.Datum, param: str, *, tensors: TensorReader) -> LossDatum:
    """A datum whose inputs are checked against its loss later."""
    input_ids = _input_ids(datum, f"{param}.model_input")
    if TARGETS not in datum.loss_fn_inputs:
        raise refusal(f"loss_fn {CUSTOM!r} needs {param}.loss_fn_inputs.{TARGETS}.", param=param)
    found = _tensors(datum, param, tensors)
    at = f"{param}.loss_fn_inputs.{TARGETS}"
    targets = _targets(found[TARGETS], len(input_ids), at, CUSTOM, _ANY_TARGETS)
    return LossDatum(input_ids=input_ids, targets=targets, inputs=found)


def _datum(
    datum: messages.Datum, param: str, *, loss_fn: str, loss: LossFunction, tensors: TensorReader
) -> LossDatum:
    input_ids = _input_ids(datum, f"{param}.model_input")
    _check_names(datum.loss_fn_inputs, f"{param}.loss_fn_inputs", loss_fn, loss)
    found = _tensors(datum, param, tensors)
    targets_param = f"{param}.loss_fn_inputs.{TARGETS}"
    targets = _targets(found.pop(TARGETS), len(input_ids), targets_param, loss_fn, loss)
    columns = {
        name: _column(name, values, targets, f"{param}.loss_fn_inputs.{name}")
        for name, values in found.items()
    }
    if loss.needs and WEIGHTS in columns:
        columns = _weighted(columns, param, of_sequence=RATIO_MASK in loss.needs)
    if RATIO_MASK in columns:
        outside = (columns[RATIO_MASK] == 0) & (columns[ADVANTAGES] != 0)
        if outside.any():
            raise refusal(
                f"{param}.loss_fn_inputs.{ADVANTAGES} is not 0 at position "
                f"{int(np.flatnonzero(outside)[0])}, which {RATIO_MASK} leaves out of the "
                "sequence's ratio. Send 0 there.",
                param=f"{param}.loss_fn_inputs.{ADVANTAGES}",
            )
    return LossDatum(input_ids=input_ids, targets=targets, columns=columns)


def _input_ids(datum: messages.Datum, param: str) -> IntArray:
    pieces = []
    for number, chunk in enumerate(datum.model_input):
        at, kind = f"{param}[{number}]", chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise refusal(
                f"{at} is {kind or 'empty'}; this server trains text alone: send EncodedTextChunk.",
                param=at,
                code=UNSUPPORTED_INPUT,
            )
        pieces.append(read_ids(chunk.encoded_text.tokens, f"{at}.tokens"))
    if not sum(map(len, pieces)):
        raise refusal(f"{param} has no tokens; send at least one.", param=param)
    return np.concatenate(pieces)


def _check_names(given: Mapping[str, messages.Tensor], param: str, loss_fn: str, loss: LossFunction) -> None:
    needed = (TARGETS, *loss.needs)
    for name in sorted(given):
        if name not in (*needed, *loss.may_have):
            allowed = ", ".join((*needed, *loss.may_have))
            raise refusal(
                f"{param}.{name} is nothing that loss_fn {loss_fn!r} takes: {allowed}. Leave it out (clip "
                "thresholds belong in loss_fn_config).",
                param=f"{param}.{name}",
            )
    for name in needed:
        if name not in given and not (name == RATIO_MASK and WEIGHTS in given):
            raise refusal(f"loss_fn {loss_fn!r} needs {param}.{name}.", param=f"{param}.{name}")


def _weighted(columns: Mapping[str, FloatArray], param: str, *, of_sequence: bool) -> dict[str, FloatArray]:
    """The columns of a loss of sampled tokens, with its weights as its mask.

    of_sequence: the ratio is that of the sequence's tokens that count.
    """
    rest = {name: values for name, values in columns.items() if name != WEIGHTS}
    weights, param = columns[WEIGHTS], f"{param}.loss_fn_inputs.{WEIGHTS}"
    wrong, rule = weights < 0, "at least 0"
    if of_sequence:
        wrong, rule = (weights != 0) & (weights != 1), "0 or 1"
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise refusal(
            f"{param} is {float(weights[at])!r} at [{at}]; beside advantages it is {rule}.", param=param
        )
    if not of_sequence:
        return {**rest, MASK: weights * rest.get(MASK, np.float32(1))}
    return {RATIO_MASK: weights, **rest, ADVANTAGES: weights * rest[ADVANTAGES]}


def _targets(values: Numbers, length: int, param: str, loss_fn: str, loss: LossFunction) -> IntArray:
    if values.dtype != np.int64:
        raise refusal(f"{param} is float32; send int64.", param=param)
    if values.ndim == 2 and not loss.several_targets:
        raise refusal(
            f"{param} has shape {list(values.shape)}; only 'cross_entropy' takes several targets at a "
            f"position. Send [{length}] for {loss_fn!r}.",
            param=param,
        )
    if len(values) != length or not values.size:
        raise refusal(
            f"{param} has shape {list(values.shape)}, and the input has {length} tokens; send a target for "
            "each.",
            param=param,
        )
    wrong = (values < 0) | (values > _MOST_ID)
    if wrong.any():
        place = tuple(int(at) for at in np.argwhere(wrong)[0])
        raise refusal(
            f"{param} has id {int(values[place])} at {list(place)}; ids are from 0 to {_MOST_ID}. Where a "
            "position does not count, send any id, with a weight or an advantage of 0.",
            param=param,
        )
    return values.astype(np.int32)


def _column(name: str, values: Numbers, targets: IntArray, param: str) -> FloatArray:
    if values.shape != targets.shape:
        raise refusal(
            f"{param} has shape {list(values.shape)}; send that of {TARGETS}, {list(targets.shape)}.",
            param=param,
        )
    column = values.astype(np.float32)
    rule = "are finite"
    wrong = ~np.isfinite(column)
    if name == MASK:
        rule, wrong = "are finite and at least 0", wrong | (column < 0)
    if name == LOGPROBS:
        rule, wrong = "are finite and at most 0", wrong | (column > _ROUNDING)
        column = np.minimum(column, np.float32(0))
    if wrong.any():
        place = tuple(int(at) for at in np.argwhere(wrong)[0])
        raise refusal(
            f"{param} is {float(values[place])!r} at {list(place)}; its values {rule}.", param=param
        )
    return column


def forward_backward_output(
    call: ForwardBackwardCall, logprobs: Sequence[FloatArray], metrics: Mapping[str, float]
) -> bytes:
    """The result as the SDK reads it: for each datum the logprobs of its targets and their terms of the loss,
    in their shape. A custom loss has no such terms.

    metrics: by names with the way of adding up those of several requests, as in `loss:sum`.

    Raises ValueError where logprobs do not have the shape of the targets, or a metric does not say how.
    """
    shapes = [datum.targets.shape for datum in call.data]
    if [one.shape for one in logprobs] != shapes:
        raise ValueError(f"The logprobs have shapes {[one.shape for one in logprobs]}, the targets {shapes}.")
    unclear = [name for name in metrics if name.count(":") != 1]
    if unclear:
        raise ValueError(f"Metrics are named NAME:REDUCTION; the SDK cannot add up {unclear}.")
    # One record has datums of one K; neighbours that differ are in records of their own.
    rows: list[dict[str, FloatArray]] = [{LOGPROBS: one} for one in logprobs]
    if call.loss_fn != CUSTOM:
        for row, datum in zip(rows, call.data, strict=True):
            row[_ELEMENTWISE] = elementwise_loss(call.loss_fn, call.config, datum.columns, row[LOGPROBS])
    records = [
        _record(list(mates), trailing)
        for trailing, mates in groupby(rows, key=lambda row: row[LOGPROBS].shape[1:])
    ]
    output = messages.ForwardBackwardOutput(
        loss_fn_output_type="scalar", loss_fn_outputs=records, metrics=metrics
    )
    return bytes(output.SerializeToString())


def _record(rows: Sequence[Mapping[str, FloatArray]], trailing: tuple[int, ...]) -> messages.ArrayRecord:
    fields = {name: _tensor([row[name] for row in rows], trailing) for name in rows[0]}
    return messages.ArrayRecord(type_tag="ArrayRecord", fields=fields, num_datums=len(rows))


def _tensor(arrays: Sequence[FloatArray], trailing: tuple[int, ...]) -> messages.BatchedTensor:
    ends = np.cumsum([0, *(4 * one.size for one in arrays)])
    return messages.BatchedTensor(
        data=b"".join(map(float_bytes, arrays)),
        offsets=long_bytes(ends),
        dtype=messages.DTYPE_FLOAT32,
        trailing_shape=trailing,
    )
