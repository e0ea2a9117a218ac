"""Rows by name, with parts exchanged."""

from __future__ import annotations

from typing import Any

import pytest

from art.batch.algorithms import TABLE, check_algorithm, resolve
from art.errors import ConfigurationError
from art.wire.algorithm import Algorithm, CriticSpec, KlSpec, MismatchSpec, OverlongSpec


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if not row.needs])
def test_every_row_is_complete_and_sensible(name: str) -> None:
    row = TABLE[name]
    assert resolve(name) == row.algorithm and row.algorithm.name == name
    assert row.meaning.endswith(".") and row.papers


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.needs])
def test_a_row_that_needs_a_part_says_so(name: str) -> None:
    with pytest.raises(ConfigurationError, match=TABLE[name].needs[0]):
        check_algorithm(TABLE[name].algorithm)


def test_a_part_adds_to_the_rows_own() -> None:
    dapo = TABLE["dapo"].algorithm
    got = resolve("dapo", overlong={"limit": 100, "band": 20}, loss={"params": {"epsilon_high": 0.3}})
    assert got.overlong == OverlongSpec(limit=100, band=20)
    assert got.loss.params == {"epsilon": 0.2, "epsilon_high": 0.3}
    assert got.advantage == dapo.advantage and got.name == "dapo"
    assert dapo.loss.params == {"epsilon": 0.2, "epsilon_high": 0.28}, "the table is not changed"


def test_a_part_of_another_kind_replaces_the_rows_own() -> None:
    assert resolve("dr_grpo", aggregation={"kind": "token_mean"}).aggregation.length is None
    assert resolve("dr_grpo", aggregation={"length": 40}).aggregation.length == 40
    assert resolve("sapo", loss={"name": "cispo"}).loss.params == {}
    assert resolve("grpo", advantage={"kind": "rloo"}).advantage.std == "population"


def test_a_word_for_a_part_that_has_a_kind() -> None:
    got = resolve("grpo", advantage="centered", aggregation="token_mean", loss="sapo")
    assert (got.advantage.kind, got.aggregation.kind, got.loss.name) == ("centered", "token_mean", "sapo")


def test_specs_and_none() -> None:
    kl = KlSpec(coefficient=0.1)
    mask = MismatchSpec(kind="sequence_mask", high=3.0)
    got = resolve("dapo", kl=kl, mismatch=[mask], overlong=None)
    assert got.kl == kl and got.mismatch == [mask] and got.overlong is None


def test_another_critic_replaces_the_rows_and_its_numbers_add_to_it() -> None:
    assert resolve("ppo_critic", critic="adapter").critic == CriticSpec(kind="adapter")
    assert resolve("ppo_critic", critic={"learning_rate": 0.5}).critic == CriticSpec(learning_rate=0.5)
    assert resolve("ppo_value", critic={"rank": 4}).critic == CriticSpec(kind="adapter", rank=4)
    assert resolve("turn_gae", critic="probe").critic == CriticSpec()


@pytest.mark.parametrize("name", ["ppo_critic", "ppo_value"])
def test_what_is_resolved_survives_json(name: str) -> None:
    got = resolve(name, kl={"coefficient": 0.1, "place": "reward", "estimator": "k1"})
    assert Algorithm.model_validate_json(got.model_dump_json()) == got


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("gropo", {}, r"Unknown algorithm 'gropo' \(did you mean 'grpo'\?\). Known: art, .*sft"),
        ("dapo", {"overlog": {}}, r"no part 'overlog' \(did you mean 'overlong'\?\). Known: .*ratio"),
        ("dapo", {"overlong": {"limits": 3}}, "overlong.limits: no such field; known: limit, band, penalty"),
        ("dapo", {"loss": {"params": {}, "clip": 1}}, "loss.clip: no such field; known: name, params"),
        ("dapo", {"mismatch": [{"kind": "token_mask", "hi": 2}]}, "mismatch.0"),
        ("dapo", {"ratio": "word"}, "ratio: Input should be 'token', 'sequence'.*not 'word'"),
        ("dapo", {"kl": 0.1}, "kl: .*not 0.1"),
        ("dapo", {"critic": {}}, "only asked by advantages 'gae'"),
        ("ppo_value", {"critic": {"trunk": 0.5}}, "critic 'adapter' with trunk 0.5: only kind 'probe' has"),
        ("ppo_critic", {"critic": {"rank": 4}}, "critic 'probe' with rank 4: only kind 'adapter' has `rank`"),
        ("turn_gae", {"advantage": {"balance": 0.5}}, "advantage 'turn_gae' with balance 0.5"),
        ("dapo", {"aggregation": "constant"}, "`length`.*is needed by 'constant'"),
        ("dapo", {"name": "grpo"}, "given twice: 'dapo' and 'grpo'"),
    ],
)
def test_refused_with_the_known_ones(name: str, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolve(name, **parts)
