"""A step becomes the served one only when the engine computes it; then old ones go, after their last
request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from art.engine.protocol import Engine
from art.errors import CanaryError
from art.rendering.chat_renderer import ChatRenderer
from art.server.catalog import Catalog
from art.server.checkpoints.canary import Canary, CanaryLimits
from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.server.checkpoints.registered_models import Registration
from art.server.checkpoints.score_difference import Rows, Scores
from art.server.jobs.job_table import TrainingJob
from art.server.jobs.step_job import StepJob
from art.server.promotion.promote import ServedModel, ignore_progress
from art.server.settings import ControlSettings
from art.server.workers.base_model import BaseModelWorkers, Unload
from art.server.workers.trainer_worker import TrainedModel
from art.wire.jobs import BalanceSheet, TrainResultInfo
from art.wire.training import LoraSpec
from waiting import turns, until

MODEL = Registration(project="p", name="m", base_model="base", lora=LoraSpec())
ROWS = [[1, 2, 3]]


class Trained(TrainedModel):
    """What a trainer holds: its scores are those of `weights`."""

    def __init__(self, weights: float) -> None:
        self.model, self.step, self.weights, self.scored = MODEL.key, 0, weights, 0

    async def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        self.scored += 1
        return [[self.weights] * (len(row) - 1) for row in rows]

    async def save(self, path: Path) -> None:
        path.mkdir()  # noqa: ASYNC240
        state = json.dumps({"step": self.step + 1}).encode()
        digest = hashlib.sha256(state).hexdigest()
        (path / "weights").write_text(str(self.weights))
        (path / "trainer_state.json").write_bytes(state)
        (path / "manifest.json").write_text(json.dumps({"files": {"trainer_state.json": {"sha256": digest}}}))


class Pair(BaseModelWorkers):
    """Workers that are not processes, all sides in one: the engine scores with the weights of the folder it
    loaded.
    """

    engine: Any = None

    def __init__(self, off: float = 0.0) -> None:
        self.off = off
        self.engine = self.engines = self.trainers = cast(Any, self)
        self.supervisor = SimpleNamespace(health={}, spec=SimpleNamespace(config={}))
        self.ranks = SimpleNamespace(ranks=1, sharding="none")
        self.adapters: dict[str, float] = {}
        self.invalidated = self.scored = 0
        self.alike: list[tuple[str, str]] = []
        self.stale = False
        """Whether it loads a folder and goes on with the weights before."""

    async def load(self, adapter: str, path: Path) -> None:
        assert adapter not in self.adapters, "a name is never used for other weights"
        before = [*self.adapters.values()]
        self.adapters[adapter] = before[-1] if self.stale else float((path / "weights").read_text())

    async def score_each(
        self, adapter: str | None, rows: Sequence[Sequence[int]]
    ) -> dict[int, list[list[float]]]:
        assert adapter is not None
        self.scored += 1
        return {0: [[self.adapters[adapter] + self.off] * (len(row) - 1) for row in rows]}

    def checked(self, adapter: str, rows: Rows, scores: Scores, limits: CanaryLimits) -> None:
        return

    def checked_alike(self, adapter: str, other: str) -> None:
        self.alike.append((adapter, other))

    async def wake(self) -> None:
        return

    async def dtypes(self) -> list[str]:
        return ["float32", "float32"]

    def unloader(self, adapter: str) -> Unload:
        async def unload() -> None:
            self.adapters[adapter] = float("nan")

        return unload

    def invalidate(self, model: Registration) -> None:
        self.invalidated += 1

    def loaded(self) -> list[str]:
        return [name for name, weights in self.adapters.items() if weights == weights]


def stage(path: Path, pair: Pair, keep_loaded: int = 2) -> ServedModel:
    catalog = Catalog()
    catalog.add_base("base", Engine.__new__(Engine), ChatRenderer.__new__(ChatRenderer), max_context=8)
    settings = ControlSettings(keep_loaded=keep_loaded)
    return ServedModel(MODEL, workers=pair, catalog=catalog, checkpoints=Checkpoints(path), settings=settings)


async def promote(it: ServedModel, step: int, weights: float) -> str:
    note = JobNote(job_id=f"job-{step}", result=TrainResultInfo(step=step, metrics={}, sheet={}))
    canary = Canary(rows=ROWS)
    return (await it.promote(Trained(weights), step, canary, note, ignore_progress)).adapter


async def test_a_promoted_step_is_committed_and_the_alias_means_it(tmp_path: Path) -> None:
    it = stage(tmp_path, Pair())
    assert await promote(it, 0, -1.0) == "p/m@0"
    assert await promote(it, 1, -1.5) == "p/m@1"
    target = await it.catalog.resolve("m")
    assert (target.step, target.adapter) == (1, "p/m@1")
    assert it.checkpoints.steps() == [0, 1]


async def test_a_replica_that_starts_again_during_a_promotion_is_held_to_the_trainers_scores(
    tmp_path: Path,
) -> None:
    order: list[str] = []

    class Watched(Pair):
        async def load(self, adapter: str, path: Path) -> None:
            order.append("loaded")
            await super().load(adapter, path)

        def checked(self, adapter: str, rows: Rows, scores: Scores, limits: CanaryLimits) -> None:
            order.append(f"{adapter} must give {scores}")

        async def score_each(
            self, adapter: str | None, rows: Sequence[Sequence[int]]
        ) -> dict[int, list[list[float]]]:
            order.append("scored")
            return await super().score_each(adapter, rows)

    await promote(stage(tmp_path, Watched()), 0, -1.0)
    assert order == ["p/m@0 must give [[-1.0, -1.0]]", "loaded", "scored"]


async def test_a_step_that_the_engine_does_not_compute_is_set_aside(tmp_path: Path) -> None:
    pair = Pair()
    it = stage(tmp_path, pair)
    await promote(it, 0, -1.0)
    pair.off = 0.25
    with pytest.raises(
        CanaryError, match=r"0\.25 in the mean.*rejected checkpoint is kept as .*\.0001\.rejected-1"
    ):
        await promote(it, 1, -1.5)
    assert (await it.catalog.resolve("m")).step == 0 and pair.loaded() == ["p/m@0"]
    assert it.checkpoints.steps() == [0] and pair.invalidated == 1
    pair.off = 0.0
    assert await promote(it, 1, -1.6) == "p/m@1#1", "other weights, another name"
    target = await it.catalog.resolve("m@1")
    assert target.adapter == "p/m@1#1" and it.adapter_name(1) == "p/m@1#1"


@pytest.mark.parametrize("weights", [float("nan"), float("-inf")])
async def test_a_step_whose_weights_are_no_numbers_is_refused_by_name(tmp_path: Path, weights: float) -> None:
    pair = Pair()
    it = stage(tmp_path, pair)
    await promote(it, 0, -1.0)
    with pytest.raises(
        CanaryError, match=r"'p/m@1' gives no.*2 of 2.*rejected checkpoint is kept as .*\.0001\.rejected-1"
    ):
        await promote(it, 1, weights)
    assert (await it.catalog.resolve("m")).step == 0 and pair.loaded() == ["p/m@0"]
    with pytest.raises(CanaryError, match="weights hold NaN"):
        await it.serve(0, Canary(rows=ROWS), [[weights, weights]], set_aside=False)
    assert it.checkpoints.steps() == [0]


async def test_registration_sets_nothing_aside(tmp_path: Path) -> None:
    pair = Pair(off=0.25)
    it = stage(tmp_path, pair)
    await it.save(Trained(-1.0), 0, Canary(rows=ROWS), None)
    with pytest.raises(CanaryError, match="p/m@0"):
        await it.serve(0, Canary(rows=ROWS), [[-1.0, -1.0]], set_aside=False)
    assert it.checkpoints.steps() == [0] and it.catalog.loaded_steps("p", "m") == {}


async def test_old_adapters_go_when_their_last_request_has_ended(tmp_path: Path) -> None:
    pair = Pair()
    it = stage(tmp_path, pair, keep_loaded=1)
    await promote(it, 0, -1.0)
    use = it.catalog.using(await it.catalog.resolve("m"))
    use.__enter__()
    await promote(it, 1, -1.5)
    await turns()
    assert pair.loaded() == ["p/m@0", "p/m@1"], "a request still uses it"
    assert list(it.catalog.loaded_steps("p", "m")) == [1], "but no new one gets it"
    use.__exit__(None, None, None)
    await until(lambda: pair.loaded() == ["p/m@1"])
    await it.close()


class Job(StepJob):
    """One that trains nothing by itself: `opened` holds what a trainer would have made."""

    kind = "rl"

    def __init__(self, it: ServedModel, opened: Trained) -> None:
        job = cast(
            TrainingJob, SimpleNamespace(job_id=f"job-{opened.step + 1}", model=MODEL.key, request=None)
        )
        super().__init__(
            job=job, served=it, progress=ignore_progress, ledger=cast(Any, None), renderer=cast(Any, None)
        )
        self.opened = opened

    async def run(self) -> TrainResultInfo:
        raise NotImplementedError

    async def some_ids(self) -> Sequence[Sequence[int]]:
        return ROWS

    async def moved(self, weights: float, rows: list[list[int]] = ROWS) -> TrainResultInfo:
        """A step whose weights are these."""
        canary = await self.canary(self.opened, rows)
        self.opened.weights = weights
        return await self.finish(self.opened, canary, {}, BalanceSheet())

    async def unmoved(self) -> TrainResultInfo:
        return await self.carry_forward(self.opened.step, {}, BalanceSheet())


async def started(path: Path) -> tuple[ServedModel, Pair, Trained]:
    """A model at step 0, served as a registration does it."""
    pair, opened = Pair(), Trained(-1.0)
    it = stage(path, pair)
    scores = await it.save(opened, 0, Canary(rows=ROWS), None)
    await it.serve(0, Canary(rows=ROWS), scores, set_aside=False)
    opened.scored = pair.scored = 0
    return it, pair, opened


async def test_the_scores_after_a_step_are_those_before_the_next(tmp_path: Path) -> None:
    it, pair, opened = await started(tmp_path)
    await Job(it, opened).moved(-1.5)
    assert (opened.scored, pair.scored) == (2, 2), "before and after: nothing was known yet"
    await Job(it, opened).moved(-1.6, rows=[[7, 8, 9]])
    assert (opened.scored, pair.scored) == (3, 3), "the rows stayed, and so did their scores"
    known = it.canary(2)
    assert known is not None and known.rows == ROWS and known.trainer_before == [[-1.6, -1.6]]


async def test_kept_scores_find_an_engine_that_serves_the_step_before(tmp_path: Path) -> None:
    it, pair, opened = await started(tmp_path)
    await Job(it, opened).moved(-1.5)
    pair.stale = True
    with pytest.raises(CanaryError, match="still computes the step before"):
        await Job(it, opened).moved(-1.5 - 1e-4)  # smaller than the limit of agreement
    assert it.checkpoints.steps() == [0, 1] and (await it.catalog.resolve("m")).step == 1


async def test_rows_that_do_not_show_a_step_give_way_to_the_next_job_s(tmp_path: Path) -> None:
    it, _, opened = await started(tmp_path)
    await Job(it, opened).moved(-1.5)
    await Job(it, opened).moved(-1.5 - 1e-7)
    assert it.canary(2) is None
    await Job(it, opened).moved(-1.6, rows=[[7, 8, 9]])
    known = it.canary(3)
    assert known is not None and known.rows == [[7, 8, 9]]


async def test_a_step_without_new_weights_is_served_unscored_and_the_next_one_is_checked(
    tmp_path: Path,
) -> None:
    it, pair, opened = await started(tmp_path)
    await Job(it, opened).moved(-1.5)
    opened.scored = pair.scored = 0
    result = await Job(it, opened).unmoved()
    assert (result.step, result.metrics["trained"]) == (2, 0.0) and (opened.scored, pair.scored) == (0, 0)
    assert (await it.catalog.resolve("m")).adapter == "p/m@2" and pair.alike == [("p/m@2", "p/m@1")]
    opened.step, pair.stale = 2, True
    with pytest.raises(CanaryError, match="still computes the step before"):
        await Job(it, opened).moved(-1.5 - 1e-4)
    pair.stale, opened.step = False, 2  # opened anew
    assert (await Job(it, opened).moved(-1.7)).step == 3 and (opened.scored, pair.scored) == (2, 2)


async def test_unmoved_weights_are_checked_where_the_step_before_is_not_served(tmp_path: Path) -> None:
    pair, opened = Pair(off=0.25), Trained(-1.0)
    it = stage(tmp_path, pair)
    await it.save(opened, 0, Canary(rows=ROWS), None)

    async def reopened(model: Registration, checkpoints: Checkpoints) -> Trained:
        return opened

    pair.open = reopened  # type: ignore[attr-defined]
    with pytest.raises(CanaryError, match=r"0\.25 in the mean"):
        await Job(it, opened).unmoved()
