"""What clients up to release 0.25 send, which later ones do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loss_requests import datum, message
from loss_requests import read as read_call
from scripted_service import ScriptedServer, serving

from art.errors import RequestError
from art_extensions.tinker.bodies import parse
from art_extensions.tinker.forward_backward import forward_backward_output, read_forward_backward
from art_extensions.tinker.older_clients import (
    ForwardAsked,
    ForwardBackwardAsked,
    batch_as_json,
    pack_batch,
    samples_as_json,
)
from art_extensions.tinker.sample_response import AnswerSequence, sample_response

COLUMNS: dict[str, Any] = {"target_tokens": [6, 7, 8], "weights": [0.0, 1.0, -0.5]}


def body(name: str = "forward_backward_input", model: str = "run", seq: int = 1, **changes: Any) -> bytes:
    """As release 0.22 writes it."""
    columns = {
        column: {"data": values, "dtype": "int64" if column == "target_tokens" else "float32", "shape": [3]}
        for column, values in COLUMNS.items()
    }
    chunks = [{"type": "encoded_text", "tokens": [5, 6, 7]}]
    batch = {"data": [{"model_input": {"chunks": chunks}, "loss_fn_inputs": columns}]}
    asked = {"loss_fn": "cross_entropy", "loss_fn_config": None, **batch, **changes}
    return json.dumps({"model_id": model, "seq_id": seq, name: asked}).encode()


def pack_json(content: bytes, *, forward_only: bool) -> bytes:
    """As the routes do it."""
    if forward_only:
        scored = parse(ForwardAsked, content)
        return pack_batch(scored, scored.forward_input, forward_only=True)
    asked = parse(ForwardBackwardAsked, content)
    return pack_batch(asked, asked.forward_backward_input, forward_only=False)


def read(packed: bytes) -> Any:
    kind = "application/x-protobuf"
    return read_forward_backward(packed, content_type=kind, content_encoding=None, largest=1 << 20)


@pytest.mark.parametrize("forward_only", [False, True])
def test_json_says_what_protobuf_says(forward_only: bool) -> None:
    name = "forward_input" if forward_only else "forward_backward_input"
    found = read(pack_json(body(name), forward_only=forward_only))
    asked = message(datum([5, 6, 7], **COLUMNS))
    asked.model_id, asked.seq_id, asked.forward_only = "run", 1, forward_only
    same = read(asked.SerializeToString())
    assert (found.model_id, found.seq_id, found.loss_fn) == (same.model_id, same.seq_id, same.loss_fn)
    assert found.forward_only is same.forward_only is forward_only
    for one, other in zip(found.data, same.data, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.targets.tolist() == other.targets.tolist() and one.columns.keys() == other.columns.keys()
        assert all(np.array_equal(one.columns[column], other.columns[column]) for column in one.columns)


def test_the_configuration_of_a_loss_comes_along() -> None:
    columns = {
        "target_tokens": {"data": [6], "dtype": "int64"},
        "logprobs": {"data": [-1.0]},
        "advantages": {"data": [2.0]},
    }
    batch = [{"model_input": {"chunks": [{"tokens": [5]}]}, "loss_fn_inputs": columns}]
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.5}
    found = read(pack_json(body(data=batch, loss_fn="ppo", loss_fn_config=config), forward_only=False))
    assert found.loss_fn == "ppo" and found.config == config


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"{", "Invalid JSON"),
        (body("forward_input"), "forward_backward_input"),
        (body(data=[{"model_input": {"chunks": [{"type": "image", "tokens": []}]}}]), "encoded_text"),
        (body().replace(b"[6, 7, 8]", b"[6, 7.5, 8]"), "whole numbers"),
        (body().replace(b"[6, 7, 8]", b"[6, 1e300, 8]"), "out of range"),
        (body().replace(b"[5, 6, 7]", b"[5, 6, 99999999999]"), "out of range"),
        (body(seq=2**40), "out of range"),
    ],
)
def test_what_cannot_be_read_is_refused(wrong: bytes, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        pack_json(wrong, forward_only=False)
    assert refused.value.status == 400


def test_several_targets_of_a_position_keep_their_shape() -> None:
    call = read_call(datum([5, 6], target_tokens=[[6, 7], [7, 8]]), datum([5], target_tokens=[6]))
    logprobs = [np.asarray([[-1, -2], [-3, -4]], np.float32), np.asarray([-5], np.float32)]
    found = json.loads(batch_as_json(forward_backward_output(call, logprobs, {"loss:sum": 2.5})))
    assert [one["logprobs"]["shape"] for one in found["loss_fn_outputs"]] == [[2, 2], [1]]
    assert [one["logprobs"]["data"] for one in found["loss_fn_outputs"]] == [[-1, -2, -3, -4], [-5]]
    assert found["metrics"] == {"loss:sum": 2.5} and found["loss_fn_output_type"] == "scalar"


def test_samples_and_their_prompt() -> None:
    written = sample_response(
        [
            AnswerSequence(tokens=[7, 8], logprobs=[-0.5, -1.0], stop_reason="length"),
            AnswerSequence(tokens=[], logprobs=None, stop_reason="stop"),
        ],
        prompt_logprobs=[None, -2.0],
        top_prompt_logprobs=[None, [(3, -0.5), (4, -1.0)], [(5, -0.25)]],
    )
    assert json.loads(samples_as_json(written)) == {
        "type": "sample",
        "sequences": [
            {"tokens": [7, 8], "logprobs": [-0.5, -1.0], "stop_reason": "length"},
            {"tokens": [], "logprobs": None, "stop_reason": "stop"},
        ],
        "prompt_logprobs": [None, -2.0],
        "topk_prompt_logprobs": [None, [[3, -0.5], [4, -1.0]], [[5, -0.25]]],
    }
    assert [*json.loads(samples_as_json(sample_response([])))] == ["type", "sequences"]


@pytest.mark.slow
async def test_a_run_of_json_alone_and_its_end(tmp_path: Path) -> None:
    server = ScriptedServer()
    async with serving(tmp_path, server) as client:
        assert (await client.post("client/config")).json()["proto_write_fwdbwd"] is True
        model = await client.model(await client.session())
        scored = (await client.post("forward", body("forward_input", model, 1))).json()["request_id"]
        added = (await client.post("forward_backward", body(model=model, seq=2))).json()["request_id"]
        for request in (scored, added):
            found = await client.result(request)
            (columns,) = found["loss_fn_outputs"]
            assert columns["logprobs"] == {"data": [-0.5] * 3, "dtype": "float32", "shape": [3]}
            assert columns["elementwise_loss"]["data"] == [0.0, 0.5, -0.25]
            assert found["metrics"]["loss:sum"] == 1.0
        assert [call[0] for call in server.calls] == ["register", "none", "add"]
        waiting = await client.step(model, 9)
        for _ in range(2):
            ended = (await client.post("unload_model", {"model_id": model, "type": "unload_model"})).json()
            assert await client.result(ended["request_id"]) == {"model_id": model, "type": "unload_model"}
        assert ("release",) in server.calls
        assert "the run was unloaded" in (await client.result(waiting))["error"]
        refused = await client.post("forward_backward", body(model=model, seq=3))
        assert refused.status_code == 400 and "was unloaded" in refused.json()["detail"]
        missing = await client.post("unload_model", {"model_id": "none"})
        assert missing.status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "polls"),
    [("0.38.0", True), ("0.39.1", True), ("1.0", True), ("0.36.0", False), ("0.9", False), ("new", False)],
)
async def test_only_releases_that_say_what_they_have_poll_for_all(
    release: str, polls: bool, tmp_path: Path
) -> None:
    async with serving(tmp_path, ScriptedServer()) as client:
        flags = (await client.post("client/config", {"sdk_version": release, "more": 1})).json()
        assert flags["sample_use_retrieve_futures"] is polls
