"""What a token keeps is counted once for a model, and again where anything of it is another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_policies import policy

from art.training.known_footprints import KnownFootprints, facts_of
from art.training.lora import LoraAdapters
from art.training.memory_plan import MemoryPlanner
from art.training.policy import Policy
from art.wire.training import LoraSpec

pytestmark = pytest.mark.slow


class Counts:
    """A count of so many bytes that knows how often it was made."""

    def __init__(self, found: float) -> None:
        self.found, self.made = found, 0

    def __call__(self) -> float:
        self.made += 1
        return self.found


def adapted(r: int = 3, dropout: float = 0.0) -> tuple[Policy, list[torch.nn.Parameter]]:
    tiny = policy()
    adapters = LoraAdapters(tiny)
    adapters.attach("a1", LoraSpec(r=r, alpha=6, dropout=dropout), seed=0)
    adapters.activate("a1", dropout=True)
    return tiny, list(adapters.parameters("a1").values())


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnownFootprints:
    monkeypatch.setattr("art.training.known_footprints.SMALL_MODEL_PARAMETERS", 0)
    return KnownFootprints(folder=tmp_path / "memory")


def test_a_model_is_counted_once(known: KnownFootprints) -> None:
    first, second = Counts(120.0), Counts(7.0)
    assert known.bytes_per_token(*adapted(), first) == 120.0
    assert known.bytes_per_token(*adapted(), second) == 120.0
    assert (first.made, second.made) == (1, 0)


def test_a_planner_forwards_nothing_for_what_is_known(
    known: KnownFootprints, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny, trained = adapted()
    counted = MemoryPlanner(tiny, token_budget=None, known=known).plan(trained, longest=10)
    monkeypatch.setattr(Policy, "hidden_of", None)
    again, parameters = adapted()
    planned = MemoryPlanner(again, token_budget=None, known=known).plan(parameters, longest=10)
    assert planned.needed == counted.needed and planned.token_budget == counted.token_budget


@pytest.mark.parametrize("shape", [{"r": 4}, {"dropout": 0.5}])
def test_another_adapter_is_counted_anew(known: KnownFootprints, shape: dict[str, float]) -> None:
    known.bytes_per_token(*adapted(), Counts(120.0))
    assert known.bytes_per_token(*adapted(**shape), Counts(7.0)) == 7.0  # type: ignore[arg-type]


def test_other_libraries_and_other_weights_are_counted_anew(
    known: KnownFootprints, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.bytes_per_token(*adapted(), Counts(120.0))
    tiny, trained = adapted()
    tiny.fingerprint = "another"
    assert known.bytes_per_token(tiny, trained, Counts(7.0)) == 7.0
    monkeypatch.setattr("art.training.known_footprints._version", lambda package: "99")
    assert known.bytes_per_token(*adapted(), Counts(8.0)) == 8.0


@pytest.mark.parametrize("damage", ["cut", "another model's", "no number", "below zero"])
def test_a_file_that_does_not_fit_is_counted_and_written_anew(known: KnownFootprints, damage: str) -> None:
    tiny, trained = adapted()
    known.bytes_per_token(tiny, trained, Counts(120.0))
    (path,) = known.folder.iterdir()
    facts = facts_of(tiny, trained)
    bad = {
        "cut": path.read_text()[:40],
        "another model's": json.dumps({"facts": {**facts, "model": "x"}, "bytes_per_token": 1.0}),
        "no number": json.dumps({"facts": facts, "bytes_per_token": None}),
        "below zero": json.dumps({"facts": facts, "bytes_per_token": -1.0}),
    }
    path.write_text(bad[damage])
    assert known.bytes_per_token(tiny, trained, Counts(121.0)) == 121.0
    assert known.bytes_per_token(tiny, trained, Counts(7.0)) == 121.0


def test_a_cache_that_cannot_be_written_is_done_without(known: KnownFootprints) -> None:
    known.folder.write_text("a file where the folder would be")
    assert [known.bytes_per_token(*adapted(), Counts(9.0)) for _ in range(2)] == [9.0, 9.0]


def test_a_small_model_leaves_no_file(tmp_path: Path) -> None:
    known = KnownFootprints(folder=tmp_path / "memory")
    assert known.bytes_per_token(*adapted(), Counts(9.0)) == 9.0 and not known.folder.exists()
