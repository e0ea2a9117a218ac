"""The record of a step's rollouts: it adds up to the sheet, and it is whole whatever happens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art.batch.balance_sheet import masked
from art.batch.batch_types import GroupRow, RolloutRow, SampleRow, Untrainable
from art.batch.build import build_batch
from art.server.jobs.step_files import rollout_records, write_rollouts
from art.tracking.step_record import read_rollouts
from art.wire.algorithm import Algorithm, Estimator
from art.wire.jobs import TrainJobRequest
from art.wire.rollout_record import fold_lines, sum_of_lines

REASONS = [
    None,
    None,
    None,
    Untrainable(reason="greedy", drawn="x"),
    Untrainable(reason="constraint", drawn="x"),
]


def row(name: str, tokens: int, **changes: Any) -> SampleRow:
    ids = list(range(10, 10 + tokens))
    return SampleRow(
        sample_id=name, prompt_ids=[1], completion_ids=ids, completion_logprobs=[-0.5] * tokens, **changes
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[TrainJobRequest, list[GroupRow]]:
    """A request, and the rows that the ledger has for it."""
    groups, rows = [], []
    count = draw(st.integers(1, 4))
    first_discarded = draw(st.integers(1, count))
    for g in range(count):
        rollouts = []
        for r in range(draw(st.integers(0, 4))):
            samples = [
                row(
                    f"{g}.{r}.{s}",
                    draw(st.integers(0, 4)),
                    step=draw(st.integers(0, 9)),
                    fork_reason=draw(st.sampled_from([None, None, "history was rewritten", "other tools"])),
                    truncated=draw(st.booleans()),
                    untrainable=draw(st.sampled_from(REASONS)),
                )
                for s in range(draw(st.integers(0, 3)))
            ]
            rollouts.append(
                RolloutRow(
                    rollout=f"r{g}.{r}",
                    reward=draw(st.sampled_from([None, 0.0, 0.5, 1.0])),
                    samples=samples,
                    stale=draw(st.integers(0, 5)) == 0,
                    damaged=draw(st.integers(0, 5)) == 0,
                )
            )
        failed = draw(st.integers(0, 2))
        rows.append(
            GroupRow(
                rollouts=rollouts,
                failed=failed,
                discarded=g >= first_discarded,
                replaced=draw(st.booleans()),
                weight=draw(st.sampled_from([1.0, 0.5, 3.0])),
            )
        )
        groups.append(
            {
                "trajectories": [
                    {
                        "rollout": one.rollout,
                        "reward": one.reward,
                        "samples": [sample.sample_id for sample in one.samples],
                    }
                    for one in rollouts
                ],
                "failed": failed,
                "failures": [{"type": "TimeoutError", "message": "x" * 9000}] * draw(st.integers(0, failed)),
            }
        )
    request = TrainJobRequest(
        job_id="j",
        groups=groups[:first_discarded],
        discarded=groups[first_discarded:],
        optimizer={"learning_rate": 1e-3},
    )
    return request, rows


@st.composite
def algorithms(draw: st.DrawFn) -> Algorithm:
    return Algorithm.model_validate(
        {
            "advantage": {"kind": draw(st.sampled_from(sorted(get_args(Estimator))))},
            "zero_advantage": draw(st.sampled_from(["drop", "count"])),
            "truncated": draw(st.sampled_from(["train", "drop"])),
        }
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(steps(), algorithms(), st.sampled_from([None, 3]), st.booleans())
def test_the_lines_add_up_to_the_sheet(
    step: tuple[TrainJobRequest, list[GroupRow]], algorithm: Algorithm, longest: int | None, mask: bool
) -> None:
    request, rows = step
    batch = build_batch(rows, algorithm=algorithm, max_length=longest)
    sheet = masked(batch.sheet) if mask else batch.sheet
    lines = [one.line() for one in rollout_records(request, rows, batch, masked=mask)]
    records = fold_lines(lines)
    assert len(records) == sheet.started.rollouts == len(lines)
    assert sum(one.tokens for one in records) == sheet.started.tokens
    empty = {fate for fate, told in sheet.fates.items() if not (told.rollouts or told.tokens)}
    assert sum_of_lines(records) == {fate: told for fate, told in sheet.fates.items() if fate not in empty}
    forks = sum((Counter(one.forks) for one in records), Counter[str]())
    assert dict(forks) == sheet.forks
    context: dict[str, list[int]] = {}
    for one in records:
        for reason, told in one.context.items():
            seen = context.setdefault(reason, [0, 0])
            seen[0], seen[1] = seen[0] + told.samples, seen[1] + told.tokens
    assert context == {reason: [told.samples, told.tokens] for reason, told in sheet.context.items()}
    places = {(one.group, one.place) for one in records}
    assert len(places) == len(records), "each rollout has a place of its own"


def made_step() -> tuple[TrainJobRequest, list[GroupRow]]:
    notes = {"scenario": "a", "reward_parts": {"won": 1.0}, "started_at": 5.0, "seconds": 2.5}
    request = TrainJobRequest(
        job_id="j",
        groups=[
            {
                "trajectories": [
                    {"rollout": "r1", "reward": 1.0, "samples": ["s1", "s2"], "notes": notes},
                    {"rollout": "r2", "reward": 0.0, "samples": ["s3"]},
                    {
                        "rollout": "r3",
                        "reward": None,
                        "unscored_reason": "the judge is down",
                        "samples": ["s4"],
                    },
                ],
                "failed": 2,
                "failures": [{"type": "TimeoutError", "message": "no answer"}],
            }
        ],
        optimizer={"learning_rate": 1e-3},
    )
    rollouts = [
        RolloutRow(
            rollout="r1",
            reward=1.0,
            samples=[row("s1", 3, step=4), row("s2", 2, step=6, fork_reason="other tools", truncated=True)],
        ),
        RolloutRow(rollout="r2", reward=0.0, samples=[row("s3", 4, step=6)]),
        RolloutRow(rollout="r3", reward=None, samples=[row("s4", 1)]),
    ]
    return request, [GroupRow(rollouts=rollouts, failed=2)]


def test_what_the_file_says_of_each_rollout(tmp_path: Path) -> None:
    request, rows = made_step()
    batch = build_batch(rows)
    path = write_rollouts(tmp_path / "steps", 7, rollout_records(request, rows, batch))
    assert path == tmp_path / "steps" / "0007" / "rollouts.jsonl"
    won, lost, unscored, failed, unnamed = read_rollouts(tmp_path, 7)
    assert (won.fate, won.reward, won.tokens, won.turns, won.samples) == ("trained", 1.0, 5, 2, ["s1", "s2"])
    assert won.advantage == pytest.approx(-(lost.advantage or 0.0)) and (won.advantage or 0.0) > 0
    assert (won.policy_steps, won.forks, won.truncated) == ((4, 6), {"other tools": 1}, True)
    assert (won.scenario, won.reward_parts, won.started_at, won.seconds) == ("a", {"won": 1.0}, 5.0, 2.5)
    assert (unscored.fate, unscored.unscored_reason, unscored.advantage) == (
        "unscored",
        "the judge is down",
        None,
    )
    assert (failed.fate, failed.place, unnamed.place) == ("failed", 3, 4)
    assert failed.failure is not None and failed.failure.message == "no answer" and unnamed.failure is None


def test_a_job_that_runs_again_writes_the_same(tmp_path: Path) -> None:
    request, rows = made_step()
    batch = build_batch(rows)
    first = write_rollouts(tmp_path / "steps", 1, rollout_records(request, rows, batch))
    assert first is not None
    content = first.read_bytes()
    assert write_rollouts(tmp_path / "steps", 1, rollout_records(request, rows, build_batch(rows))) == first
    assert first.read_bytes() == content and [*first.parent.iterdir()] == [first]


def test_a_disk_that_refuses_stops_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request, rows = made_step()
    (tmp_path / "steps").write_text("a file where the folder belongs")
    assert write_rollouts(tmp_path / "steps", 1, rollout_records(request, rows, build_batch(rows))) is None
    assert "step 1 has no record of its rollouts" in caplog.text
