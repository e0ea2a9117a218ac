"""What a program of the real SDK samples is on the pages of its run: groups, rollouts, tokens."""

from __future__ import annotations

import html
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loss_requests import datum, read
from starlette.testclient import TestClient
from tinker_fixtures import run_program, started
from tinker_service import Service, with_sdk
from typer.testing import CliRunner

from art.cli.main import app
from art.server.ledger.schema import SampleRecord
from art.tracking.step_record import read_rollouts, recorded_steps
from art.wire.rollout_record import RolloutRecord
from art_extensions.tinker.step_rollouts import (
    PrefixIndex,
    SampledRollout,
    SampleFinder,
    stitch,
    without_scores,
)
from art_extensions.ui.app import RunPages

STEPS, SAMPLES, TOKENS = 3, 4, 5


def sampled(number: int, prompt: list[int], completion: list[int], **more: Any) -> SampleRecord:
    return SampleRecord(
        sample_id=f"s{number}",
        rollout_id=None,
        project="tinker",
        model="m",
        base_model="b",
        step=more.get("step", 2),
        adapter="tinker/m@2",
        parent_id=None,
        fork_reason=None,
        prompt_ids=array("i", prompt),
        completion_ids=array("i", completion),
        completion_logprobs=array("f", [-1.0] * len(completion)),
        sampling=more.get("sampling", {}),
        finish_reason=more.get("finish", "stop"),
        turn_key=b"",
        tools_key=b"",
        created_at=float(number),
    )


def names(rollouts: list[SampledRollout]) -> list[tuple[int, int, list[str]]]:
    return [(one.group, one.place, [turn.sample_id for turn in one.turns]) for one in rollouts]


def test_samples_of_one_prompt_are_a_group() -> None:
    found = stitch(
        [sampled(0, [1, 2], [3]), sampled(1, [5], [6]), sampled(2, [1, 2], [4]), sampled(3, [1, 2], [3])]
    )
    assert names(found) == [(0, 0, ["s0"]), (0, 1, ["s2"]), (0, 2, ["s3"]), (1, 0, ["s1"])]


def test_a_prompt_that_goes_on_is_the_next_turn_of_one_rollout() -> None:
    found = stitch(
        [
            sampled(0, [1, 2], [3]),
            sampled(1, [1, 2], [3]),
            sampled(2, [1, 2, 3, 9], [4]),
            sampled(3, [1, 2, 3, 9], [5], step=3, finish="length"),
            sampled(4, [1, 2, 3, 9, 4], [6]),  # as long as an end is no turn of its own
            sampled(5, [1, 2, 3, 9, 4, 8], [7]),
        ]
    )
    assert names(found) == [(0, 0, ["s0", "s2", "s5"]), (0, 1, ["s1", "s3"]), (1, 0, ["s4"])]
    second = found[1].record()
    assert (second.policy_steps, second.truncated, second.tokens) == ((2, 3), True, 2)


def note(rollouts: list[SampledRollout], *data: Any, loss_fn: str = "importance_sampling") -> list[Any]:
    SampleFinder(rollouts).note(read(*data, loss_fn=loss_fn))
    return [(one.record().fate, one.record().advantage) for one in rollouts]


def of(ids: list[int], advantages: list[float]) -> Any:
    columns = {"target_tokens": ids[1:], "logprobs": [-1.0] * (len(ids) - 1), "advantages": advantages}
    return datum(ids[:-1], **columns)


def test_a_datum_has_a_sample_of_its_ids() -> None:
    turns = [sampled(0, [1, 2], [3, 4]), sampled(1, [1, 2], [3]), sampled(2, [1, 2], [3, 4])]
    assert note(stitch(turns), of([1, 2, 3, 4], [0.0, 1.0, 2.0])) == [
        ("trained", 1.5),
        ("discarded", None),
        ("discarded", None),
    ]
    assert note(stitch(turns), of([1, 2, 3, 4], [0.0, 1.0, 2.0]), of([1, 2, 3, 4], [0.0, -1.0, -1.0])) == [
        ("trained", 1.5),
        ("discarded", None),
        ("trained", -1.0),
    ]
    assert note(stitch(turns), of([1, 2, 3, 5], [0.0, 0.0, 1.0])) == [("discarded", None)] * 3


def test_a_datum_of_several_turns_trains_one_rollout() -> None:
    turns = [sampled(0, [1, 2], [3]), sampled(1, [1, 2, 3, 9], [4, 5])]
    (found,) = note(stitch(turns), of([1, 2, 3, 9, 4, 5], [0.0, 3.0, 0.0, 0.0, 0.0]))
    assert found == ("trained", 3.0)
    (found,) = note(stitch(turns), of([1, 2, 3, 9, 4, 5], [0.0, 3.0, 0.0, 1.0, 2.0]))
    assert found == ("trained", 2.0)


def test_a_token_of_an_untrained_prompt_was_asked_for_its_logprobs() -> None:
    one_token = {"sampling": {"max_tokens": 1}}
    turns = [sampled(0, [1], [3], **one_token), sampled(1, [1], [4], **one_token)]
    rollouts = stitch([*turns, sampled(2, [7], [3], **one_token), sampled(3, [8], [3])])
    note(rollouts, of([1, 3], [1.0]))
    assert names(without_scores(rollouts)) == [(0, 0, ["s0"]), (0, 1, ["s1"]), (2, 0, ["s3"])]
    rollouts = stitch([sampled(0, [1], [3, 4]), sampled(1, [1], [4], **one_token)])
    note(rollouts, of([1, 3, 4], [1.0, 1.0]))
    assert names(without_scores(rollouts)) == [(0, 0, ["s0"])]


def test_a_batch_without_advantages_trains_what_has_weights() -> None:
    weighed = datum([1, 2], target_tokens=[2, 3], weights=[0.0, 1.0])
    other = datum([1, 7], target_tokens=[7, 8], weights=[1.0, 0.0])
    turns = [sampled(0, [1, 2], [3]), sampled(1, [1, 7], [8])]
    assert note(stitch(turns), weighed, other, loss_fn="cross_entropy") == [
        ("trained", None),
        ("discarded", None),
    ]


@dataclass(frozen=True)
class Run:
    service: Service
    name: str
    said: list[dict[str, Any]]

    @property
    def folder(self) -> Path:
        return self.service.data / "tinker" / "models" / self.name

    def records(self, step: int) -> list[RolloutRecord]:
        return read_rollouts(self.folder, step)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with started(tmp_path_factory.mktemp("groups") / "data") as service:
        *said, last = run_program(service, "grouped_samples.py", str(STEPS))
        yield Run(service, last["run"].replace(":train:", "-"), said)


@pytest.mark.slow
class TestTheSdk:
    """With the real SDK."""

    pytestmark = with_sdk

    def test_each_step_has_its_groups(self, run: Run) -> None:
        assert recorded_steps(run.folder) == [1, 2, 3]
        for step in range(1, STEPS + 1):
            found = run.records(step)
            first, second = ([one for one in found if one.group == group] for group in (0, 1))
            (talk,) = [one for one in found if one.group == 2]
            assert len(found) == 2 * SAMPLES + 1
            assert [one.advantage for one in first] == [-1.5, -0.5, 0.5, 1.5]
            assert {(one.fate, one.tokens, one.truncated) for one in first} == {("trained", TOKENS, True)}
            assert {(one.fate, one.advantage) for one in second} == {("discarded", None)}
            assert (talk.fate, talk.turns, talk.tokens, talk.advantage) == ("trained", 2, 2 * TOKENS, 2.0)
            assert {one.policy_steps for one in found} == {(step - 1, step - 1)}

    def test_the_pages_show_groups_and_tokens(self, run: Run) -> None:
        pages = RunPages(run.service.data)
        with TestClient(pages.app(), raise_server_exceptions=True) as client:
            for step, said in enumerate(run.said, 1):
                address = f"/runs/-/tinker/{run.name}/train/{step}"
                page = client.get(address).text
                assert all(f"{address}/{group}" in page for group in range(3))
                assert "left out by the program" in page
                group = client.get(f"{address}/0").text
                assert all(f"{address}/0/{place}" in group for place in range(SAMPLES))
                for place in range(SAMPLES):
                    self.check_tokens(client, f"{address}/0/{place}", [said["first"][place]])
                self.check_tokens(client, f"{address}/2/0", said["talk"])
        pages.reader.close()

    def check_tokens(self, client: TestClient, address: str, turns: list[list[int]]) -> None:
        """The page has the ids that the program was told, each with a logprob."""
        page = client.get(address)
        assert page.status_code == 200
        shown = [json.loads(html.unescape(one)) for one in re.findall(r'data-numbers="([^"]*)"', page.text)]
        assert [[token["id"] for token in sample] for sample in shown] == turns
        assert all(token["logprob"] <= 0 for sample in shown for token in sample)

    def test_explain_reads_them(self, run: Run) -> None:
        asked = ["explain", f"tinker/{run.name}", "--json", "--data-dir", str(run.service.data)]
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, (done.output, done.exception)
        assert json.loads(done.output)["steps"] == STEPS


IDS = st.lists(st.integers(-2, 300), max_size=5).map(lambda ids: array("i", ids).tobytes())


@given(st.lists(IDS, max_size=12), st.lists(IDS, min_size=1, max_size=6))
def test_the_longest_beginning_is_that_of_a_plain_search(known: list[bytes], asked: list[bytes]) -> None:
    index, left = PrefixIndex[int](), list(enumerate(known))
    for number, ids in left:
        index.add(ids, number)
    for ids in asked:
        plain = max((one for _, one in left if ids.startswith(one)), key=len, default=None)
        assert index.longest(ids) == plain
        if plain is not None:
            oldest = next((number, one) for number, one in left if one == plain)
            assert index.first(plain) == oldest[0] == index.take(plain)
            left.remove(oldest)
