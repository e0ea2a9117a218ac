"""Runs where the tinker SDK is, with the messages of ART beside it: each reads what the other writes.

    python tinker_messages.py

Prints one JSON object of what was found.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import zstandard
from google.protobuf import descriptor
from tinker import types
from tinker.proto import tinker_public_pb2 as theirs
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker.proto.response_conv import deserialize_proto_response

from art_extensions.tinker import tinker_public_pb2 as ours
from art_extensions.tinker.batches import loss_batch, per_datum
from art_extensions.tinker.forward_backward import forward_backward_output, read_forward_backward
from art_extensions.tinker.sample_response import AltTokens, AnswerSequence, TargetLogprobs, sample_response

KINDS = types.TensorData


def real_request() -> types.ForwardBackwardRequest:
    columns: dict[str, Any] = {
        "target_tokens": [6, 9, 8],
        "logprobs": [0.0, -1.5, -2.0],
        "advantages": np.asarray([0.0, 1.0, -1.0]),
        "sequence_ratio_mask": np.asarray([0, 1, 1]),
    }
    prompt = types.ModelInput(
        chunks=[types.EncodedTextChunk(tokens=[5]), types.EncodedTextChunk(tokens=[6, 7])]
    )
    data = types.Datum(model_input=prompt, loss_fn_inputs=columns)
    return types.ForwardBackwardRequest(
        forward_backward_input=types.ForwardBackwardInput(
            data=[
                data,
                types.Datum(model_input=types.ModelInput.from_ints([5, 6, 7]), loss_fn_inputs=columns),
            ],
            loss_fn="gspo",
            loss_fn_config={"clip_low_threshold": 0.75, "clip_high_threshold": 1.5},
        ),
        model_id="m1",
        seq_id=3,
    )


def sparse_request() -> types.ForwardBackwardRequest:
    layout: dict[str, Any] = {
        "shape": [2, 3],
        "sparse_crow_indices": [0, 2, 3],
        "sparse_col_indices": [0, 2, 1],
    }
    columns = {
        "target_tokens": KINDS(data=[9, 8, 7], dtype="int64", **layout),
        "weights": KINDS(data=[0.25, 0.75, -1.0], dtype="float32", **layout),
    }
    datum = types.Datum(model_input=types.ModelInput.from_ints([5, 6]), loss_fn_inputs=columns)
    one = types.ForwardBackwardInput(data=[datum], loss_fn="cross_entropy")
    return types.ForwardBackwardRequest(forward_backward_input=one, model_id="m1", seq_id=1)


def read_of(request: types.ForwardBackwardRequest, *, packed: bool) -> Any:
    message = forward_backward_request_to_proto(request)
    message.forward_only = packed
    body = message.SerializeToString()
    return read_forward_backward(
        zstandard.ZstdCompressor().compress(body) if packed else body,
        content_type="application/x-protobuf",
        content_encoding="zstd" if packed else None,
        largest=1 << 20,
    )


def said(call: Any) -> dict[str, Any]:
    return {
        "call": [call.model_id, call.seq_id, call.loss_fn, call.forward_only, dict(call.config)],
        "data": [
            [one.input_ids.tolist(), one.targets.tolist(), {k: v.tolist() for k, v in one.columns.items()}]
            for one in call.data
        ],
    }


def returned() -> dict[str, Any]:
    call = read_of(sparse_request(), packed=False)
    batch = loss_batch(call)
    logprobs = per_datum(batch, -np.arange(len(batch.entries), dtype=np.float32))
    written = forward_backward_output(call, logprobs, {"loss:sum": 2.5})
    output: Any = deserialize_proto_response(written, types.ForwardBackwardOutput)
    found = [one["logprobs"] for one in output.loss_fn_outputs]
    return {
        "type": output.loss_fn_output_type,
        "metrics": output.metrics,
        "logprobs": [[one.dtype, one.shape, one.tolist()] for one in found],
    }


def sampled() -> dict[str, Any]:
    written = sample_response(
        [
            AnswerSequence(
                tokens=[7, 8], logprobs=[-0.5, -1.0], stop_reason="length", top_tokens=[[(7, -0.5)], None]
            )
        ],
        prompt_logprobs=[None, -2.0],
        top_prompt_logprobs=[None, [(3, -0.5), (4, -1.0)], [(5, -0.25)]],
        target_prompt_logprobs=TargetLogprobs(
            values=np.asarray([-0.5, -1.5], np.float32), shape=(2, 3), crow=[0, 1, 2], column=[2, 0]
        ),
        alt_tokens=AltTokens(tokens=np.asarray([[9, 8]]), logprobs=np.asarray([[-3, -4]], np.float32)),
        cached_tokens=4,
    )
    response: Any = deserialize_proto_response(written, types.SampleResponse)
    (one,) = response.sequences
    targets = response.target_prompt_logprobs
    return {
        "sequence": [one.tokens, one.logprobs, one.stop_reason, one.topk_logprobs],
        "prompt": response.prompt_logprobs,
        "top": response.topk_prompt_logprobs,
        "targets": [targets.data, targets.shape, targets.sparse_crow_indices, targets.sparse_col_indices],
        "alternatives": [
            response.prompt_alt_tokens.tokens.tolist(),
            response.prompt_alt_tokens.logprobs.tolist(),
        ],
        "cached": response.prompt_cache_hit_tokens,
        "first_is_nan": math.isnan(response.prompt_logprobs_np[0]),
    }


def fields(message: descriptor.Descriptor) -> dict[str, tuple[Any, ...]]:
    """What is on the wire of each field: number, type, how often, and the message's or enum's own name."""
    return {
        one.name: (
            one.number,
            one.type,
            one.is_repeated,
            one.message_type.name if one.message_type else one.enum_type.name if one.enum_type else "",
        )
        for one in message.fields
    }


def differing_fields() -> list[str]:
    found = []
    for name, message in ours.DESCRIPTOR.message_types_by_name.items():
        known = fields(theirs.DESCRIPTOR.message_types_by_name[name])
        found += [f"{name}.{field}" for field, facts in fields(message).items() if known.get(field) != facts]
    for name, enum in ours.DESCRIPTOR.enum_types_by_name.items():
        values = {value.name: value.number for value in enum.values}
        their_enum = theirs.DESCRIPTOR.enum_types_by_name[name]
        if values != {value.name: value.number for value in their_enum.values}:
            found.append(name)
    return found


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "differing_fields": differing_fields(),
                "dense": said(read_of(real_request(), packed=False)),
                "packed": said(read_of(real_request(), packed=True)),
                "sparse": said(read_of(sparse_request(), packed=False)),
                "returned": returned(),
                "sampled": sampled(),
            }
        )
    )
