"""Requests to forward_backward, as a client writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.forward_backward import ForwardBackwardCall, read_forward_backward

TYPE = "application/x-protobuf"
LARGEST = 1 << 24


def tensor(values: Any) -> messages.Tensor:
    if isinstance(values, messages.Tensor):
        return values
    array = np.asarray(values)
    kind = np.dtype("<f4") if array.dtype.kind == "f" else np.dtype("<i8")
    dtype = messages.DTYPE_FLOAT32 if array.dtype.kind == "f" else messages.DTYPE_INT64
    return messages.Tensor(dense=array.astype(kind).tobytes(), dtype=dtype, shape=array.shape)


def sparse(rows: list[dict[int, float]], width: int, *, ids: bool = False) -> messages.Tensor:
    """A row is its columns and their values."""
    values = [value for row in rows for _, value in sorted(row.items())]
    csr = messages.SparseCsr(
        values=np.asarray(values, "<i8" if ids else "<f4").tobytes(),
        crow_indices=np.cumsum([0, *map(len, rows)]).astype("<i8").tobytes(),
        col_indices=np.asarray([one for row in rows for one in sorted(row)], "<i8").tobytes(),
    )
    dtype = messages.DTYPE_INT64 if ids else messages.DTYPE_FLOAT32
    return messages.Tensor(sparse_csr=csr, dtype=dtype, shape=[len(rows), width])


def datum(input_ids: Any, **columns: Any) -> messages.Datum:
    text = messages.EncodedTextChunk(tokens=np.asarray(input_ids, "<i4").tobytes())
    return messages.Datum(
        model_input=[messages.Chunk(encoded_text=text)],
        loss_fn_inputs={name: tensor(values) for name, values in columns.items()},
    )


def message(
    *data: messages.Datum, loss_fn: str = "cross_entropy", config: Mapping[str, float | str] | None = None
) -> messages.ForwardBackwardRequest:
    request = messages.ForwardBackwardRequest(model_id="m1", seq_id=1, loss_fn=loss_fn, data=data)
    for name, value in (config or {}).items():
        if isinstance(value, str):
            request.loss_fn_config_v2[name].text = value
        else:
            request.loss_fn_config_v2[name].number = value
            request.loss_fn_config[name] = value
    return request


def read(
    *data: messages.Datum, loss_fn: str = "cross_entropy", config: Mapping[str, float | str] | None = None
) -> ForwardBackwardCall:
    return read_body(message(*data, loss_fn=loss_fn, config=config).SerializeToString())


def read_body(
    body: bytes, *, kind: str = TYPE, encoding: str | None = None, largest: int = LARGEST
) -> ForwardBackwardCall:
    return read_forward_backward(body, content_type=kind, content_encoding=encoding, largest=largest)
