"""Replicas as one engine: who gets a request, and what becomes of it when engines die, fill up, sleep."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from art.engine.protocol import Constraint, Delta, EngineInfo, GenerateRequest, Sampling
from art.engine.replicas.pool import EnginePool, ReplicaWaits
from art.errors import (
    CheckpointError,
    DeadlineError,
    NotFoundError,
    OverloadedError,
    WorkerDiedError,
    WorkerError,
    WorkerUnreachableError,
)
from art.wire.samples import candidates_record, split_candidates
from waiting import turns, until


class Dice:
    """An engine whose ids follow from the seed, or from nothing, one a turn of the loop. It can die."""

    def __init__(self, *, places: int = 100, refuses: bool = False) -> None:
        self.places, self.refuses = places, refuses
        self.asked: list[GenerateRequest] = []
        self.adapters: dict[str, Path] = {}
        self.running, self.dies_after = 0, 10**9
        self.dead = self.asleep = self.closed = False

    def _alive(self) -> None:
        if self.dead:
            raise WorkerDiedError("it was killed")

    async def info(self) -> EngineInfo:
        self._alive()
        return EngineInfo(
            base_model="dice",
            max_context=99,
            vocab_size=6,
            device="cpu",
            dtype="float32",
            adapters=tuple(self.adapters),
            running=self.running,
            max_waiting=self.places,
        )

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        self._alive()
        assert not self.asleep, "the pool keeps requests from a sleeping engine"
        if self.running >= self.places:
            raise OverloadedError("full", code="queue_full")
        if request.adapter is not None and request.adapter not in self.adapters:
            raise NotFoundError(f"no {request.adapter}", status=404)
        self.asked.append(request)
        rng, most, ids = random.Random(request.sampling.seed), request.sampling.max_tokens, []
        self.running += 1
        try:
            for at in range(most):
                await asyncio.sleep(0)
                self.dies_after -= 1
                self.dead = self.dead or self.dies_after < 0
                self._alive()
                ids.append(rng.randrange(6))
                last = "length" if at + 1 == most else None
                if request.stream or last:
                    news = ids[-1:] if request.stream else ids
                    told = b"".join(candidates_record([one, 7]) for one in news)
                    yield Delta(
                        token_ids=news, logprobs=[-1.0] * len(news), finish_reason=last, candidates=told
                    )
        finally:
            self.running -= 1

    async def load_adapter(self, name: str, path: Path) -> None:
        self._alive()
        if self.refuses:
            raise CheckpointError(f"{path} is unfit")
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        self._alive()
        if self.adapters.pop(name, None) is None:
            raise NotFoundError(f"no {name}", status=404)

    async def score(self, adapter: str | None, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        self._alive()
        return [[-1.0] * (len(row) - 1) for row in rows]

    async def sleep(self) -> None:
        self._alive()
        self.asleep = True

    async def wake(self) -> None:
        self._alive()
        self.asleep = False

    async def close(self) -> None:
        self.closed = True


def ask(affinity: str | None = None, *, stream: bool = False, adapter: str | None = None, **sampling: object):
    options = {"max_tokens": 12, **sampling}
    return GenerateRequest(
        request_id="r",
        adapter=adapter,
        prompt_ids=[1, 2],
        sampling=Sampling(**options),  # type: ignore[arg-type]
        stream=stream,
        affinity=affinity,
    )


async def ids_of(pool: EnginePool, request: GenerateRequest) -> list[int]:
    return [token async for delta in pool.generate(request) for token in delta.token_ids]


async def pool_of(*engines: Dice, up: float = 5.0) -> EnginePool:
    pool = EnginePool(len(engines), waits=ReplicaWaits(up=up, awake=up))
    for number, engine in enumerate(engines):
        await pool.join(number, engine)
    return pool


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_outlives_its_engine(stream: bool) -> None:
    first, second = Dice(), Dice()
    first.dies_after = 5
    pool = await pool_of(first, second)
    assert len(await ids_of(pool, ask(stream=stream))) == 12
    [again] = second.asked
    if stream:
        assert len(again.prompt_ids) == 2 + 5 and again.sampling.max_tokens == 7, "it goes on where it was"
    else:
        assert again == first.asked[0], "nothing was told: from the start"


@pytest.mark.parametrize(
    "bound",
    [
        {"seed": 4},
        {"stop": ("so",)},
        {"constraint": Constraint(kind="regex", text="a")},
        {"frequency_penalty": 0.5},
        {"min_tokens": 3},
    ],
)
async def test_what_cannot_be_cut_is_sampled_again_and_told_once(bound: dict) -> None:
    first, second = Dice(), Dice()
    first.dies_after = 5
    told = await ids_of(await pool_of(first, second), ask(stream=True, **bound))
    [again] = second.asked
    assert list(again.prompt_ids) == [1, 2] and again.sampling.max_tokens == 12
    rng = random.Random(again.sampling.seed)
    assert told == [rng.randrange(6) for _ in range(12)]


@pytest.mark.parametrize("seed", [None, 4], ids=["it goes on", "sampled again"])
async def test_the_candidates_of_each_id_are_told_once(seed: int | None) -> None:
    first, second = Dice(), Dice()
    first.dies_after = 5
    pool = await pool_of(first, second)
    deltas = [delta async for delta in pool.generate(ask(stream=True, seed=seed))]
    ids = [one for delta in deltas for one in delta.token_ids]
    told = split_candidates(b"".join(delta.candidates for delta in deltas))
    assert len(ids) == 12 and [one.tolist() for one in told] == [[one, 7] for one in ids]


async def test_another_answer_than_the_one_begun_is_an_error_by_name() -> None:
    class Other(Dice):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
            yield Delta(token_ids=[9] * 12, logprobs=[0.0] * 12, finish_reason="length")

    first = Dice()
    first.dies_after = 5
    with pytest.raises(WorkerDiedError, match="does not sample the same"):
        await ids_of(await pool_of(first, Other()), ask(stream=True, seed=4))


async def test_a_request_that_kills_every_engine_is_given_up() -> None:
    engines = [Dice() for _ in range(6)]
    for engine in engines:
        engine.dies_after = 2
    with pytest.raises(WorkerDiedError):
        await ids_of(await pool_of(*engines), ask())
    assert sum(engine.dead for engine in engines) == 3


async def test_engines_that_were_dead_before_it_came_do_not_count_against_a_request() -> None:
    class Unreachable(Dice):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
            self.asked.append(request)
            raise WorkerUnreachableError("its machine was lost with others")
            yield

    lost, alive = [Unreachable() for _ in range(7)], Dice()
    pool = await pool_of(*lost, alive)
    for number in range(12):
        assert len(await ids_of(pool, ask(f"r{number}"))) == 12
        for engine in lost:  # the pool has found that they answer again, until the next request
            pool._ring.set_up(pool.replicas[lost.index(engine)], True)
    assert sum(len(engine.asked) for engine in lost) > 12


async def test_only_when_all_are_full_is_a_request_refused() -> None:
    engines = [Dice(places=2), Dice(places=2)]
    pool = await pool_of(*engines)
    outs = await asyncio.gather(*(ids_of(pool, ask("one rollout")) for _ in range(6)), return_exceptions=True)
    assert [type(out) for out in outs].count(OverloadedError) == 2
    assert [len(engine.asked) for engine in engines] == [2, 2]


async def test_an_adapter_is_on_all_replicas_or_on_none(tmp_path: Path) -> None:
    good, bad = Dice(), Dice(refuses=True)
    pool = await pool_of(good, bad)
    with pytest.raises(CheckpointError):
        await pool.load_adapter("m@1", tmp_path)
    assert good.adapters == {} and (await pool.info()).adapters == ()
    bad.refuses = False
    await pool.load_adapter("m@1", tmp_path)
    assert good.adapters == bad.adapters == {"m@1": tmp_path}


async def test_a_replica_that_comes_back_has_every_adapter_before_it_has_a_request(tmp_path: Path) -> None:
    first, second, third = Dice(), Dice(), Dice()
    pool = await pool_of(first, second)
    await pool.load_adapter("m@1", tmp_path)
    first.dead = True
    await pool.load_adapter("m@2", tmp_path)
    assert [replica.number for replica in pool.running_replicas] == [1]
    seen: list[str] = []

    async def verify(engine: object, name: str) -> None:
        assert not pool.replicas[0].up
        seen.append(name)

    await pool.join(0, third, verify)
    assert seen == ["m@1", "m@2"] == list(third.adapters) and first.closed
    await pool.unload_adapter("m@1")
    assert list(second.adapters) == list(third.adapters) == ["m@2"]


async def test_the_only_engine_is_waited_for() -> None:
    first, second = Dice(), Dice()
    first.dies_after = 5
    pool = await pool_of(first)
    waiting = asyncio.create_task(ids_of(pool, ask(stream=True)))
    await until(lambda: first.dead)
    await turns()
    assert not waiting.done()
    await pool.join(0, second)
    assert len(await waiting) == 12


async def test_waits_end() -> None:
    first = Dice()
    pool = await pool_of(first, up=0.05)
    await pool.sleep()
    with pytest.raises(DeadlineError, match="to wake"):
        await ids_of(pool, ask())
    await pool.wake()
    first.dead = True
    with pytest.raises(DeadlineError, match="to be up"):
        await ids_of(pool, ask())
    pool.give_up(0, WorkerDiedError("given up"))
    with pytest.raises(WorkerDiedError, match="given up"):
        await ids_of(pool, ask())


async def test_asleep_requests_wait_here_and_a_replica_that_starts_meanwhile_sleeps_too() -> None:
    first, second = Dice(places=1), Dice(places=1)
    pool = await pool_of(first)
    await pool.sleep()
    held = asyncio.create_task(ids_of(pool, ask()))
    await asyncio.sleep(0)
    assert (await pool.info()).waiting == 1 and not first.asked
    with pytest.raises(OverloadedError):
        await ids_of(pool, ask())
    await pool.join(0, second)
    assert second.asleep and not held.done()
    await pool.wake()
    assert len(await held) == 12 and len(second.asked) == 1


async def test_a_broken_connection_is_no_death() -> None:
    class Flaky(Dice):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
            if not self.asked:
                self.asked.append(request)
                raise WorkerDiedError("the connection broke")
            async for delta in super().generate(request):
                yield delta

    pool = await pool_of(Flaky())
    assert len(await ids_of(pool, ask())) == 12
    assert pool.replicas[0].starts == 2


async def test_a_closed_pool_answers_nobody() -> None:
    pool = await pool_of(Dice())
    await pool.sleep()
    waiting = asyncio.create_task(ids_of(pool, ask()))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(WorkerError, match="closed"):
        await waiting


async def test_a_replica_that_loads_far_slower_than_the_others_is_reported_and_serves_after_it_has_caught_up(
    tmp_path: Path,
) -> None:
    class Slow(Dice):
        async def load_adapter(self, name: str, path: Path) -> None:
            await asyncio.Event().wait()

    engines, told = [Dice(), Dice(), Dice(), Slow()], []
    pool = EnginePool(
        4,
        waits=ReplicaWaits(up=5.0, straggle=0.05),
        failed=lambda number, error: told.append((number, error)),
    )
    for number, engine in enumerate(engines):
        await pool.join(number, engine)
    await pool.load_adapter("new", tmp_path)
    await until(lambda: told)
    [(number, error)] = told
    assert number == 3 and "had not answered" in str(error), "who owns it starts it again"
    assert [one.number for one in pool.running_replicas] == [0, 1, 2]
    for rollout in range(20):
        await ids_of(pool, ask(f"r{rollout}", adapter="new"))
    assert not engines[3].asked, "it has not the adapter"
    fresh = Dice()
    await pool.join(3, fresh)
    assert fresh.adapters == {"new": tmp_path} and pool.replicas[3].up


async def test_a_replica_that_was_replaced_before_its_turn_refuses_for_nobody(tmp_path: Path) -> None:
    closing, fresh = asyncio.Event(), Dice()

    class Closed(Dice):
        async def load_adapter(self, name: str, path: Path) -> None:
            await closing.wait()
            raise WorkerError("the engine client is closed")

    pool = await pool_of(Dice(), Closed())
    loading = asyncio.create_task(pool.load_adapter("new", tmp_path))
    await turns()
    await pool.join(1, fresh)
    closing.set()
    await loading
    assert pool.adapters == {"new": tmp_path} and fresh.adapters == {"new": tmp_path}
