"""Large requests in pieces: the same records, text and refusals, and other threads run between."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from art.wire.jobs import SftJobRequest, TrainJobRequest
from art.wire.records import PieceError, first_flaw, read_pieces, write_pieces

SFT = {
    "job_id": "j \u00e9",
    "conversations": [
        {"name": "a", "messages": [{"role": "user", "content": 'say "\u2028'}], "samples": {"0": "smp"}},
        {"name": "b", "messages": [{"role": "assistant", "content": "", "tool_calls": [{"x": [1.5, None]}]}]},
    ],
    "batches": [[0, 1], [1]],
    "learning_rates": [1e-3, 0],
    "optimizer": {"learning_rate": None, "betas": [0.9, 0.95]},
}
TRAIN = {
    "job_id": "t",
    "groups": [
        {"trajectories": [{"rollout": "r", "reward": 1, "samples": ["s", "t"]}]},
        {"trajectories": []},
    ],
    "optimizer": {"learning_rate": 1e-3},
}


@pytest.mark.parametrize(("kind", "body"), [(SftJobRequest, SFT), (TrainJobRequest, TRAIN)])
@pytest.mark.parametrize("indent", [None, 1])
def test_the_same_record_and_the_same_text(kind: type[BaseModel], body: Any, indent: int | None) -> None:
    text = json.dumps(body, indent=indent)
    whole = kind.model_validate_json(text)
    assert read_pieces(kind, f" {text}\n") == whole
    assert write_pieces(whole) == whole.model_dump_json()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["conversations", 1, "messages"], []),
        (["conversations", 1], 7),
        (["conversations"], {"not": "a list"}),
        (["conversations", 0, "unknown"], 1),
        (["unknown"], 1),
        (["batches"], [[0], [5]]),
        (["batches"], []),
        (["learning_rates"], [1e-3]),
        (["learning_rates", 1], -1),
        (["optimizer"], {}),
        (["optimizer", "betas"], [0.9]),
    ],
)
def test_what_is_wrong_is_said_in_the_same_words_of_the_same_place(path: list[Any], value: Any) -> None:
    body = json.loads(json.dumps(SFT))
    at = body
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    text = json.dumps(body)
    with pytest.raises(ValidationError) as whole:
        SftJobRequest.model_validate_json(text)
    first = first_flaw(whole.value)
    with pytest.raises(PieceError) as pieces:
        read_pieces(SftJobRequest, text)
    assert (pieces.value.field, str(pieces.value)) == (first.field, first.problem)


@given(st.data())
def test_a_broken_text_is_refused_wherever_it_breaks(data: st.DataObject) -> None:
    text = json.dumps(SFT, indent=data.draw(st.sampled_from([None, 1])))
    at = data.draw(st.integers(0, len(text) - 1))
    broken = text[:at] + data.draw(st.sampled_from(["", "{", "]", ",", '"', "\\", "7"])) + text[at + 1 :]
    try:
        whole: Any = SftJobRequest.model_validate_json(broken)
    except ValidationError:
        with pytest.raises(PieceError):
            read_pieces(SftJobRequest, broken)
    else:
        assert read_pieces(SftJobRequest, broken) == whole


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "{", "{7: 1}", "{[1]: 1}", '{"job_id"', "[" * 100_000, "{} {}"]
)
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(PieceError):
        read_pieces(SftJobRequest, text)


@pytest.mark.slow
async def test_the_loop_turns_while_a_large_request_is_read_and_written() -> None:
    many = {**SFT, "conversations": SFT["conversations"] * 12_000}
    text, turns = json.dumps(many), 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    turning = asyncio.create_task(turn())
    record = await asyncio.to_thread(read_pieces, SftJobRequest, text)
    read, turns = turns, 0
    written = await asyncio.to_thread(write_pieces, record)
    assert read > 2 and turns > 2
    assert written == record.model_dump_json()
    turning.cancel()
