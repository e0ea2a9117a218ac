"""What may go goes, and nothing that is named ever does."""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from homes import Home
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from ledger_rows import record

from art.errors import NotFoundError
from art.server.checkpoints.checkpoints import JobNote
from art.server.checkpoints.registered_models import RegisteredModels, Registration
from art.server.data_folder import DataLayout
from art.server.jobs import sample_retention
from art.server.jobs.job_table import TrainingJob
from art.server.jobs.sample_retention import SampleRetention
from art.server.jobs.step_files import write_rollouts
from art.server.jobs.training_jobs import TrainingJobs
from art.server.ledger.schema import SampleRecord
from art.server.promotion.promote import Progress
from art.server.settings import ControlSettings
from art.wire.jobs import TrainJobRequest, TrainResultInfo
from art.wire.models import RegisterRequest
from art.wire.rollout_record import RolloutRecord
from waiting import DEADLINE_S

KEEP, YOUNG = 2, 1
OPEN = "INSERT INTO rollouts (tenant, rollout_id, scope, opened_at, expires_at) VALUES ('', ?, '', 0, ?)"
CLOSE = "UPDATE rollouts SET closed_at = 1 WHERE rollout_id = ?"


class World:
    """A ledger, a model with checkpoints, and jobs that end when they are told to."""

    def __init__(self, home: Home, *, keep: int | None = KEEP, young: int = YOUNG) -> None:
        self.home, self.folder = home, home.folder
        self.settings = ControlSettings(keep_samples_steps=keep, max_off_policy_steps=young)
        self.drawn: dict[str, SampleRecord] = {}
        self.ended: dict[str, asyncio.Event] = {}

    async def start(self) -> World:
        layout = DataLayout(self.folder)
        self.models = RegisteredModels(layout)
        request = RegisterRequest(project="games", name="player", base_model="art/nano")
        self.model: Registration = self.models.register(request, "art/nano")
        self.checkpoints = self.models.checkpoints(self.model)
        self.ledger = await self.home.open_ledger(removes=self.settings.keep_samples_steps is not None)
        self.jobs = TrainingJobs(
            await self.home.open_jobs(),
            run=self._run,
            trainer_of=lambda project, name: "base",
            worker_failed=self._failed,
            settings=self.settings,
        )
        self.retention = SampleRetention(
            self.ledger, models=self.models, jobs=self.jobs, settings=self.settings
        )
        await self.jobs.hold_unfinished()
        self.jobs.resume_all()
        return self

    async def close(self) -> None:
        await self.retention.close()
        await self.jobs.close()
        await self.ledger.close()
        await self.home.close()

    async def _run(self, job: TrainingJob, progress: Progress) -> TrainResultInfo:
        await self.ended.setdefault(job.job_id, asyncio.Event()).wait()
        return TrainResultInfo(step=1, metrics={}, sheet={})

    async def _failed(self, job: TrainingJob, error: Exception) -> None:
        raise AssertionError(error)

    async def draw(self, step: int, *, parent: str | None = None, rollout: str | None = None) -> str:
        """One more sample, which begins with the ids of `parent`."""
        name = f"s{len(self.drawn)}"
        ids: list[int] = []
        if parent is not None:
            ids = [*self.drawn[parent].prompt_ids, *self.drawn[parent].completion_ids]
        number = len(self.drawn)
        made = {
            "sample_id": name,
            "rollout_id": rollout,
            "model": "player",
            "parent_id": parent,
            "shared": len(ids),
            "prompt_ids": array("i", [*ids, number]),
            "completion_ids": array("i", [number + 1, number + 2]),
            "completion_logprobs": array("f", [-0.5, -0.25]),
            "turn_key": name.encode(),
        }
        sample = SampleRecord(
            **{
                **{field: getattr(BLANK, field) for field in SampleRecord.__slots__},
                "step": step,
                "adapter": f"games/player@{step}",
                **made,
            }
        )
        await self.ledger.writer.append([sample])
        self.drawn[name] = sample
        return name

    def make_step(
        self, step: int, samples: list[str], *, kind: str | None = "rl", written: bool = True
    ) -> None:
        result = TrainResultInfo(step=step, metrics={}, sheet={})
        self.checkpoints.fresh_folder(step).mkdir()
        self.checkpoints.commit(step, JobNote(job_id=f"j{step}", result=result, kind=kind))
        if written:
            one = RolloutRecord(rollout="r", group=0, place=0, fate="trained", samples=samples)
            write_rollouts(self.checkpoints.records, step, [one])

    async def submit(self, job_id: str, samples: list[str]) -> None:
        trajectory = {"rollout": "r", "reward": 1.0, "samples": samples}
        request: dict[str, Any] = {
            "groups": [{"trajectories": [trajectory]}],
            "optimizer": {"learning_rate": 1},
        }
        await self.jobs.submit("games", "player", TrainJobRequest(job_id=job_id, **request))

    async def end(self, job_id: str) -> None:
        self.ended.setdefault(job_id, asyncio.Event()).set()
        async with asyncio.timeout(DEADLINE_S):
            async for _ in self.jobs.events(job_id, 0):
                pass

    async def left(self) -> set[str]:
        """The samples that can be read; each is what was written, and every other one is known as removed."""
        records, damaged, removed = await self.ledger.readable(list(self.drawn))
        assert not damaged and set(records) | removed == set(self.drawn) and not set(records) & removed
        for name, found in records.items():
            wrote = self.drawn[name]
            assert (found.prompt_ids, found.completion_ids) == (wrote.prompt_ids, wrote.completion_ids)
        return set(records)


BLANK = record("games/player@0", 0)


@pytest.fixture
async def world(home: Home):
    made = await World(home).start()
    yield made
    await made.close()


async def test_samples_of_old_steps_go_and_say_so(world: World) -> None:
    for step in range(6):
        await world.draw(step)
    world.make_step(5, [])
    assert await world.retention.remove_old(world.model) == 4
    assert await world.left() == {"s4", "s5"}, "of the newest two steps"
    with pytest.raises(NotFoundError, match=r"'s0', 's1'.*keep_samples_steps") as gone:
        await world.ledger.samples(["s0", "s5", "s1"])
    assert (gone.value.status, gone.value.code) == (410, "sample_removed")
    with pytest.raises(NotFoundError, match="no such sample: 'never'"):
        await world.ledger.samples(["s0", "never"])
    assert await world.retention.remove_old(world.model) == 0
    size = await world.ledger.size()
    assert (size.samples, size.removed) == (2, 4)


async def test_the_steps_that_a_job_may_train_on_stay(home: Home) -> None:
    world = await World(home, keep=1, young=3).start()
    for step in range(6):
        await world.draw(step)
    world.make_step(5, [])
    await world.retention.remove_old(world.model)
    assert await world.left() == {"s2", "s3", "s4", "s5"}
    await world.close()


async def test_without_the_setting_nothing_goes(home: Home) -> None:
    world = await World(home, keep=None).start()
    await world.draw(0)
    world.make_step(9, [])
    world.retention.after_step("games", "player")
    assert await world.retention.remove_old(world.model) == 0
    assert await world.left() == {"s0"}
    await world.close()


async def test_what_a_kept_step_names_goes_with_its_checkpoint(world: World) -> None:
    named, other = await world.draw(0), await world.draw(0)
    world.make_step(1, [named])
    world.make_step(9, [])
    assert await world.retention.remove_old(world.model) == 1
    assert await world.left() == {named}
    assert await world.retention.remove_old(world.model) == 0
    late = await world.draw(0)
    assert await world.retention.remove_old(world.model) == 1, "drawn from an old step on purpose"
    assert late not in await world.left()
    world.checkpoints.delete(1)
    assert await world.retention.remove_old(world.model) == 1
    assert await world.left() == set() and other != named


async def test_a_kept_step_without_a_record_keeps_what_it_may_have_been_trained_on(world: World) -> None:
    for step in range(6):
        await world.draw(step)
    world.make_step(3, [], written=False)
    world.make_step(4, [], kind="sft", written=False)
    world.make_step(9, [])
    await world.retention.remove_old(world.model)
    assert await world.left() == {"s1", "s2"}, "two steps before step 3, as old as is allowed"


async def test_what_an_unfinished_job_names_stays_until_it_ends(world: World) -> None:
    named, _ = await world.draw(0), await world.draw(0)
    world.make_step(9, [])
    await world.submit("job", [named])
    await world.retention.remove_old(world.model)
    assert await world.left() == {named}
    await world.end("job")
    await world.retention.remove_old(world.model)
    assert await world.left() == set()


async def test_a_job_is_not_accepted_between_the_question_and_the_removal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.draw(0)
    world.make_step(9, [])
    asked, goes_on = asyncio.Event(), asyncio.Event()
    remove = world.ledger.remove

    async def slow(names: list[str]) -> int:
        asked.set()
        await goes_on.wait()
        return await remove(names)

    monkeypatch.setattr(world.ledger, "remove", slow)
    removing = asyncio.create_task(world.retention.remove_old(world.model))
    await asked.wait()
    submitting = asyncio.create_task(world.submit("job", ["s0"]))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not submitting.done()
    goes_on.set()
    assert await removing == 1
    await submitting
    await world.end("job")


async def test_a_conversation_that_goes_on_is_kept_from_its_beginning(world: World) -> None:
    first = await world.draw(0)
    second = await world.draw(0, parent=first)
    third = await world.draw(9, parent=second)
    alone = await world.draw(0, parent=first)
    world.make_step(9, [])
    assert await world.retention.remove_old(world.model) == 1
    assert await world.left() == {first, second, third} and alone not in await world.left()


async def test_a_rollout_is_kept_as_long_as_it_is_open_or_goes_on(world: World) -> None:
    opened, goes_on = await world.draw(0, rollout="a"), await world.draw(0, rollout="b")
    recent, gone = await world.draw(8, rollout="b"), await world.draw(0, rollout="c")
    await world.ledger.writer.append([], [(OPEN, ("a", time.time() + 1000)), (OPEN, ("c", time.time() - 1))])
    world.make_step(9, [])
    await world.retention.remove_old(world.model)
    assert await world.left() == {opened, goes_on, recent} and gone not in await world.left()
    await world.ledger.writer.append([], [(CLOSE, ("a",))])
    world.make_step(10, [])
    await world.retention.remove_old(world.model)
    assert await world.left() == set()


async def test_a_reply_to_a_removed_turn_is_written_whole(world: World) -> None:
    first = await world.draw(0)
    world.make_step(9, [])
    await world.retention.remove_old(world.model)
    late = await world.draw(9, parent=first)  # its prompt was made before the removal
    (found,) = await world.ledger.samples([late])
    assert found.shared == 0 and found.prompt_ids == world.drawn[late].prompt_ids


async def test_an_earlier_model_of_the_name_keeps_nothing(world: World) -> None:
    await world.draw(12)
    world.model = world.model.model_copy(update={"removals": 1})
    world.make_step(3, [])
    assert await world.retention.remove_old(world.model) == 1


async def test_other_models_are_not_touched(world: World) -> None:
    name = await world.draw(0)
    world.make_step(9, [])
    other = world.model.model_copy(update={"name": "play"})
    assert await world.retention.remove_old(other) == 0
    assert await world.left() == {name}


async def test_many_samples_go_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_retention, "BATCH", 4)
    parent = None
    for _ in range(23):
        parent = await world.draw(0, parent=parent)
    kept = await world.draw(0)
    world.make_step(1, [kept])
    world.make_step(9, [])
    assert await world.retention.remove_old(world.model) == 23
    assert await world.left() == {kept}


async def test_of_adapters_without_samples_nothing_is_kept(world: World) -> None:
    for step in range(30):
        await world.draw(step)
        world.make_step(step + 1, [])
        await world.retention.remove_old(world.model)
    assert await world.left() == {"s29"}
    assert len(world.retention._settled[world.model.key]) <= 3, "one for each step of a long run would be 28"


async def test_jobs_keep_their_requests_as_long_as_their_samples(world: World) -> None:
    """What the table of jobs keeps of a step does not depend on how many came before."""
    kept, checkpoint, store = dict[int, set[str]](), 3, world.jobs.store
    for step in range(1, 41):
        failed = [f"f{step}"] if step % 4 == 0 else []
        for job in [*failed, f"j{step}"]:
            trajectories = [{"rollout": "r", "reward": 1.0, "samples": [f"{job}.{n}"]} for n in range(50)]
            groups = [{"trajectories": trajectories}]
            request = TrainJobRequest(job_id=job, groups=groups, optimizer={"learning_rate": 1})
            await store.submit("games", "player", request)
            await store.progress(job, "training")
        for job in failed:
            await store.fail(job, "no", "internal_error")
        await store.finish(f"j{step}", TrainResultInfo(step=step, metrics={}, sheet={}))
        world.make_step(step, [])
        if step - 1 != checkpoint and step > 1:
            world.checkpoints.delete(step - 1)
        if step == 30:
            world.checkpoints.delete(checkpoint)
        await world.retention.remove_old(world.model)
        rows = world.home.sql("SELECT job_id FROM jobs WHERE length(request) > 2000", of_jobs=True)
        whole = {str(row[0]) for row in rows}
        told = world.home.sql("SELECT DISTINCT job_id FROM events", of_jobs=True)
        assert {str(row[0]) for row in told} == whole
        kept[step] = whole
    assert kept[20] == {"j3", "j19", "j20", "f20"} and kept[40] == {"j39", "j40", "f40"}, kept
    assert max(map(len, kept.values())) <= 5
    assert len(world.retention._whole[world.model.key][1]) == 0


async def test_the_growth_of_a_step_is_measured(world: World) -> None:
    assert world.retention.described() == {}
    for step in range(3):
        for _ in range(200):
            await world.draw(step)
        world.make_step(step + 1, [])
        world.retention.after_step("games", "player")
        assert world.retention._task is not None
        await world.retention._task
    told = world.retention.described()
    assert told["samples"] == 200 and told["removed_samples"] == 400 and told["keep_samples_steps"] == KEEP
    assert told["bytes_a_step"] is not None and 0 < told["bytes_a_step"] < 1_000_000


class Retention(RuleBasedStateMachine):
    """Random runs, with restarts: `must_stay` says what the rules promise."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()

    @initialize()
    def begin(self) -> None:
        self.world = World(Home(Path(self.folder.name)))
        self.run(self.world.start())
        self.step, self.pending = 0, dict[str, list[str]]()
        self.named: dict[int, list[str]] = {}
        self.open: set[str] = set()
        self.jobs = 0

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.run(self.world.close())
        self.loop.close()
        self.folder.cleanup()

    def some(self, data: st.DataObject, most: int = 3) -> list[str]:
        known = sorted(self.run(self.world.left()))
        return data.draw(st.lists(st.sampled_from(known), max_size=most, unique=True)) if known else []

    @rule(
        data=st.data(), back=st.sampled_from([0, 0, 0, 1, 3]), rollout=st.sampled_from([None, "a", "b", "c"])
    )
    def draw(self, data: st.DataObject, back: int, rollout: str | None) -> None:
        parent = (self.some(data, 1) or [None])[0]
        self.run(self.world.draw(max(0, self.step - back), parent=parent, rollout=rollout))

    @rule(data=st.data())
    def train(self, data: st.DataObject) -> None:
        self.step += 1
        self.named[self.step] = self.some(data)
        self.world.make_step(self.step, self.named[self.step])

    @rule(data=st.data())
    def delete_checkpoint(self, data: st.DataObject) -> None:
        if len(self.named) > 1:
            step = data.draw(st.sampled_from(sorted(self.named)[:-1]))
            self.world.checkpoints.delete(step)
            del self.named[step]

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.jobs += 1
        self.pending[f"j{self.jobs}"] = self.some(data)
        self.run(self.world.submit(f"j{self.jobs}", self.pending[f"j{self.jobs}"]))

    @rule(data=st.data())
    def end_job(self, data: st.DataObject) -> None:
        if self.pending:
            first = min(self.pending, key=lambda name: int(name[1:]))
            self.run(self.world.end(first))
            del self.pending[first]

    @rule(rollout=st.sampled_from(["a", "b", "c"]))
    def open_or_close(self, rollout: str) -> None:
        statement = (CLOSE, (rollout,)) if rollout in self.open else None
        if statement is None:
            opening = "INSERT OR REPLACE INTO rollouts VALUES ('', ?, '', 0, 1e12, NULL)"
            self.run(self.world.ledger.writer.append([], [(opening, (rollout,))]))
            self.open.add(rollout)
        else:
            self.run(self.world.ledger.writer.append([], [statement]))
            self.open.discard(rollout)

    @rule()
    def restart(self) -> None:
        self.run(self.world.close())
        self.run(self.world.start())

    def must_stay(self, left: set[str]) -> set[str]:
        drawn = {name: one for name, one in self.world.drawn.items() if name in left}
        since = self.step - KEEP + 1
        active = {one.rollout_id for one in drawn.values() if (one.step or 0) >= since} | self.open
        stay = {
            name
            for name, one in drawn.items()
            if (one.step or 0) >= since or (one.rollout_id is not None and one.rollout_id in active)
        }
        stay.update(name for names in (*self.named.values(), *self.pending.values()) for name in names)
        while more := {drawn[name].parent_id for name in stay if name in drawn} - stay - {None}:
            stay |= more & left  # a reply to a removed turn is whole
            if not more & left:
                break
        return stay

    @rule()
    def remove(self) -> None:
        before = self.run(self.world.left())
        stay = self.must_stay(before) if self.named else before
        for _ in range(3):  # what shares ids over several steps goes one after the other
            self.run(self.world.retention.remove_old(self.world.model))
        assert self.run(self.world.left()) == stay & before

    @invariant()
    def nothing_is_damaged(self) -> None:
        if hasattr(self, "world"):
            self.run(self.world.left())


TestRetention = pytest.mark.slow(Retention.TestCase)
TestRetention.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
