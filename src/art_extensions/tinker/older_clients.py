"""Clients up to release 0.22, which speak JSON: their batches are packed into the message that later clients
send, and what such a message answers is written as JSON. Those up to 0.36 poll for each sample by itself.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict

from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.records import Asked, RunAsked
from art_extensions.tinker.refusals import refusal
from art_extensions.tinker.sample_response import NO_LOGPROB
from art_extensions.tinker.tensors import float_bytes, id_bytes, long_bytes

POLLING_SINCE = (0, 38)
"""The first release that says which results it has fetched, and stops polling where nothing is to be told."""


class ClientConfigAsked(Asked):
    model_config = ConfigDict(extra="ignore")

    sdk_version: str = ""


def polls_for_all(asked: ClientConfigAsked) -> bool:
    """Returns whether a client is to poll for all samples at once. An unknown release is not."""
    release = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.|$)", asked.sdk_version)
    return release is not None and (int(release[1]), int(release[2])) >= POLLING_SINCE


class TokensAsked(Asked):
    """Text is the only kind of input."""

    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class InputAsked(Asked):
    chunks: list[TokensAsked]


class ColumnAsked(Asked):
    data: list[float]
    dtype: Literal["int64", "float32"] = "float32"
    shape: list[int] | None = None


class DatumAsked(Asked):
    model_input: InputAsked
    loss_fn_inputs: dict[str, ColumnAsked]


class BatchAsked(Asked):
    data: list[DatumAsked]
    loss_fn: str
    loss_fn_config: dict[str, float] | None = None


class ForwardAsked(RunAsked):
    forward_input: BatchAsked


class ForwardBackwardAsked(RunAsked):
    forward_backward_input: BatchAsked


def pack_batch(asked: RunAsked, batch: BatchAsked, *, forward_only: bool) -> bytes:
    """The message of a batch. What it says is checked where those of later clients are.

    Raises RequestError (status 400) for a number that the message cannot hold.
    """
    try:
        message = messages.ForwardBackwardRequest(
            model_id=asked.model_id,
            seq_id=asked.seq_id or 0,
            data=[_datum(one) for one in batch.data],
            loss_fn=batch.loss_fn,
            loss_fn_config=batch.loss_fn_config or {},
            forward_only=forward_only,
        )
        return bytes(message.SerializeToString())
    except (OverflowError, ValueError) as error:
        raise refusal(f"a number of the batch is out of range: {error}") from error


def _datum(asked: DatumAsked) -> messages.Datum:
    chunks = [
        messages.Chunk(encoded_text=messages.EncodedTextChunk(tokens=id_bytes(one.tokens)))
        for one in asked.model_input.chunks
    ]
    columns = {name: _tensor(one) for name, one in asked.loss_fn_inputs.items()}
    return messages.Datum(model_input=chunks, loss_fn_inputs=columns)


def _tensor(asked: ColumnAsked) -> messages.Tensor:
    """Raises ValueError for a number that is no whole one where they have to be."""
    is_float = asked.dtype == "float32"
    if not is_float and not all(one.is_integer() for one in asked.data):
        raise ValueError("a column of int64 has whole numbers")
    return messages.Tensor(
        dense=float_bytes(asked.data) if is_float else long_bytes(asked.data),
        dtype=messages.DTYPE_FLOAT32 if is_float else messages.DTYPE_INT64,
        shape=[len(asked.data)] if asked.shape is None else asked.shape,
    )


JSON_BATCH = "forward_backward_json"
"""The kind of a request whose batch came as JSON: so does its result."""


def batch_as_json(result: bytes) -> bytes:
    """The result of a batch, a `ForwardBackwardOutput`, as JSON."""
    output = messages.ForwardBackwardOutput.FromString(result)
    found = {
        "loss_fn_output_type": output.loss_fn_output_type,
        "loss_fn_outputs": [one for record in output.loss_fn_outputs for one in _datums(record)],
        "metrics": dict(output.metrics),
        "type": "forward_backward",
    }
    return json.dumps(found).encode()


def _datums(record: messages.ArrayRecord) -> list[dict[str, Any]]:
    return [
        {name: _column(tensor, number) for name, tensor in record.fields.items()}
        for number in range(record.num_datums)
    ]


def _column(tensor: messages.BatchedTensor, number: int) -> dict[str, Any]:
    start, end = np.frombuffer(tensor.offsets, "<i8")[number : number + 2]
    values = np.frombuffer(tensor.data[start:end], "<f4")
    shape = values.reshape(-1, *tensor.trailing_shape).shape
    return {"data": values.tolist(), "dtype": "float32", "shape": list(shape)}


def samples_as_json(result: bytes) -> bytes:
    """Samples, a `SampleResponse`, as JSON; without what these clients cannot ask for."""
    response = messages.SampleResponse.FromString(result)
    found: dict[str, Any] = {"type": "sample", "sequences": [_sequence(one) for one in response.sequences]}
    if response.HasField("prompt_logprobs"):
        values = np.frombuffer(response.prompt_logprobs, "<f4").tolist()
        found["prompt_logprobs"] = [None if np.isnan(one) else one for one in values]
    if response.HasField("topk_prompt_logprobs"):
        table = response.topk_prompt_logprobs
        ids = np.frombuffer(table.token_ids, "<i4").reshape(table.length, table.k).tolist()
        logprobs = np.frombuffer(table.logprobs, "<f4").reshape(table.length, table.k).tolist()
        rows = [
            [pair for pair in zip(*row, strict=True) if pair[1] > NO_LOGPROB]
            for row in zip(ids, logprobs, strict=True)
        ]
        found["topk_prompt_logprobs"] = [row or None for row in rows]
    return json.dumps(found).encode()


def _sequence(one: messages.SampledSequence) -> dict[str, Any]:
    return {
        "stop_reason": "length" if one.stop_reason == messages.STOP_REASON_LENGTH else "stop",
        "tokens": np.frombuffer(one.tokens, "<i4").tolist(),
        "logprobs": np.frombuffer(one.logprobs, "<f4").tolist() if one.HasField("logprobs") else None,
    }
