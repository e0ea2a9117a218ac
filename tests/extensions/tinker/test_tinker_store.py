"""What a long run leaves in the record of sessions costs its next step nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from art_extensions.tinker.saved_weights import KEPT_SAMPLERS, keep_saved_steps, model_of
from art_extensions.tinker.store import QueuedRequest, Sampler, SavedCheckpoint, Tables, TinkerStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TinkerStore]:
    made = TinkerStore(tmp_path / "tinker.sqlite")
    yield made
    made.close()


def queued(run: str, seq: int, **more: object) -> QueuedRequest:
    values = {"kind": "forward_backward", "body": b"b", "state": "done", "created_at": float(seq), **more}
    return QueuedRequest(request_id=f"{run}:{seq}", owner="o", run_id=run, seq=seq, **values)


async def test_a_step_drops_the_bodies_that_it_is_made_of_and_touches_nothing_else(
    store: TinkerStore,
) -> None:
    def fill(tables: Tables) -> None:
        for seq in range(200):
            tables.add(queued("r", seq, body=None))
        for seq in range(200, 203):
            tables.add(queued("r", seq, added=True, result=b"result"))
        tables.add(queued("r", 203, state="waiting"))
        tables.add(queued("r", 204, state="waiting"))
        tables.add(queued("other", 200, added=True))

    await store.run(fill)
    assert await store.run(lambda tables: tables.forget_bodies("r", 203)) == 3
    assert await store.run(lambda tables: tables.forget_bodies("r", 203)) == 0
    left = await store.run(lambda tables: tables.select(QueuedRequest, body=b"b"))
    assert {one.request_id for one in left} == {"r:203", "r:204", "other:200"}
    kept = await store.run(lambda tables: tables.find(QueuedRequest, request_id="r:201"))
    assert kept is not None and kept.result == b"result" and not kept.added


async def test_a_field_that_is_left_out_is_not_read_and_the_rest_is(store: TinkerStore) -> None:
    await store.run(lambda tables: tables.add(queued("r", 1, result=b"found")))
    lean = await store.run(lambda tables: tables.find(QueuedRequest, without="body", request_id="r:1"))
    assert lean == queued("r", 1, result=b"found", body=None)


async def test_the_newest_samplers_of_a_model_and_what_is_saved_keep_their_steps(store: TinkerStore) -> None:
    """Against a plain reading of all samplers. One model's name begins as another's, one has its project."""
    dice, models = random.Random(5), ["s-1", "s-1.7", "tinker/s-2", "s-22"]
    samplers = []
    for number in range(300):
        model, step = dice.choice(models), dice.randrange(60)
        named = dice.random() < 0.2
        samplers.append(
            Sampler(
                sampler_id=f"{number}",
                owner="o",
                session_id="s",
                base_model="art/nano",
                path=f"tinker://r/sampler_weights/{number}" if named else None,
                model="art/nano" if number % 10 == 0 else f"{model}@{step}",
                step=None if number % 10 == 0 else step,
                created_at=float(number),
            )
        )
    saved = SavedCheckpoint(
        path="p",
        owner="o",
        run_id="r",
        kind="weights",
        name="n",
        model="s-1",
        step=99,
        created_at=0.0,
        metadata={},
    )

    def fill(tables: Tables) -> None:
        tables.add(saved)
        for one in samplers:
            tables.add(one)

    await store.run(fill)
    for model in ("s-1", "s-1.7", "s-2", "s-22", "s"):
        unnamed = [one for one in samplers if one.path is None and model_of(one.model) == model]
        expected = {one.step for one in unnamed[-KEPT_SAMPLERS:]} | ({99} if model == "s-1" else set())
        found = await store.run(lambda tables, model=model: keep_saved_steps(tables, model))
        assert found == sorted(expected)


async def test_the_batches_of_the_next_step_are_found_without_reading_the_requests_before_them(
    store: TinkerStore,
) -> None:
    """Counted in steps of SQLite's machine: a run of 5,000 requests costs what one of 50 does, or nearly."""

    def cost(tables: Tables, run: str, earlier: int) -> int:
        for seq in range(earlier):
            tables.add(queued(run, seq, body=None))
        for seq in range(earlier, earlier + 3):
            tables.add(queued(run, seq, added=True))
        steps = []
        tables._connection.set_progress_handler(lambda: steps.append(1), 1)
        found = tables.select(QueuedRequest, order="seq", without="body", run_id=run, added=True)
        tables._connection.set_progress_handler(None, 1)
        assert [one.seq for one in found] == [earlier, earlier + 1, earlier + 2]
        return len(steps)

    short = await store.run(lambda tables: cost(tables, "short", 50))
    assert await store.run(lambda tables: cost(tables, "long", 5000)) < short + 10
