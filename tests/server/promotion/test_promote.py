"""A step becomes the served one only when the engine computes it; then old ones go, after their last
request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from art.engine.protocol import Engine
from art.errors import CanaryError
from art.rendering.chat_renderer import ChatRenderer
from art.server.catalog import Catalog
from art.server.checkpoints.checkpoints import Checkpoints, JobNote
from art.server.checkpoints.registered_models import Registration
from art.server.checkpoints.sampler_agreement import Canary, CanaryLimits, Rows, Scores
from art.server.promotion.promote import ServedModel, ignore_progress
from art.server.settings import ControlSettings
from art.server.workers.base_model import BaseModelWorkers, Unload
from art.server.workers.trainer_worker import TrainedModel
from art.wire.jobs import TrainResultInfo
from art.wire.training import LoraSpec
from waiting import turns, until

MODEL = Registration(project="p", name="m", base_model="base", lora=LoraSpec())
ROWS = [[1, 2, 3]]


class Trained(TrainedModel):
    """What a trainer holds: its scores are those of `weights`."""

    def __init__(self, weights: float) -> None:
        self.model, self.step, self.weights = MODEL.key, 0, weights

    async def score(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
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
        self.adapters: dict[str, float] = {}
        self.invalidated = 0

    async def load(self, adapter: str, path: Path) -> None:
        assert adapter not in self.adapters, "a name is never used for other weights"
        self.adapters[adapter] = float((path / "weights").read_text())

    async def score_each(
        self, adapter: str | None, rows: Sequence[Sequence[int]]
    ) -> dict[int, list[list[float]]]:
        assert adapter is not None
        return {0: [[self.adapters[adapter] + self.off] * (len(row) - 1) for row in rows]}

    def checked(self, adapter: str, rows: Rows, scores: Scores, limits: CanaryLimits) -> None:
        return

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
    with pytest.raises(CanaryError, match=r"0\.25 in the mean.*set aside as .*\.0001\.rejected-1"):
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
    with pytest.raises(CanaryError, match=r"'p/m@1' gives no.*2 of 2.*set aside as .*\.0001\.rejected-1"):
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
