"""A harness of the real verifiers 0.4 that compacts its history: its branches are those of one tree here."""

import os
import subprocess
from itertools import takewhile
from json import loads
from pathlib import Path
from typing import Any

import pytest

import art
from library_programs import PROGRAMS, ROOT, needs, python_of

PLACE = ".venv-verifiers-tasksets"
pytestmark = [pytest.mark.slow, needs(PLACE)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with art.LocalBackend(path=str(tmp_path_factory.mktemp("compacted"))) as backend:
        model = art.TrainableModel(name="address", project="hub", base_model="art/nano-tools")
        art.run(model.register(backend))
        python = python_of(PLACE)
        done = subprocess.run(
            [
                *(str(python), "-W", "ignore", str(PROGRAMS / "compacted_rollouts.py")),
                *(str(model.inference_base_url), str(model.inference_api_key)),
            ],
            env={
                **os.environ,
                "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", PROGRAMS))),
            },
            cwd=Path(PROGRAMS),
            capture_output=True,
            text=True,
            timeout=580,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def compacted(told: dict[str, Any]) -> list[dict[str, Any]]:
    found = [one for one in told["rollouts"] if len(one["histories"]) > 1]
    assert len(found) == 2
    return found


def test_each_call_of_the_harness_is_one_sample_of_one_history(told: dict[str, Any]) -> None:
    for one in told["rollouts"]:
        named = [sample for part in one["histories"] for sample in part]
        assert sorted(named) == sorted(one["ledger"]) and len({*named}) == len(named) == one["calls"]


def test_the_histories_are_the_branches_of_verifiers_own_trace(told: dict[str, Any]) -> None:
    for one in told["rollouts"]:
        assert len(one["histories"]) == one["branches"]


def test_the_summary_extends_the_history_and_the_rest_shares_its_system_prompt(
    compacted: list[dict[str, Any]],
) -> None:
    for one in compacted:
        called, summary = (one["ledger"][sample] for sample in one["histories"][0][:2])
        before = [*called["prompt"], *called["completion"]]
        assert summary["prompt"][: len(before)] == before
        after = one["ledger"][one["histories"][-1][0]]
        assert "Another language model started" in one["firsts"][-1]
        shared = takewhile(
            lambda pair: pair[0] == pair[1], zip(called["prompt"], after["prompt"], strict=False)
        )
        assert len([*shared]) > 100  # the tree has these tokens once


def test_each_sampled_token_is_trained_once_and_shared_ones_are_forwarded_once(told: dict[str, Any]) -> None:
    sampled = sum(len(sample["completion"]) for one in told["rollouts"] for sample in one["ledger"].values())
    metrics = told["metrics"]
    assert metrics["data/sheet/started_tokens"] == metrics["data/sheet/trained_tokens"] == sampled
    assert metrics["data/entries"] == sampled
    assert metrics["data/forwarded_tokens"] <= metrics["data/tree_tokens"] < metrics["data/raw_tokens"]
