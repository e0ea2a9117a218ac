"""Two keys at one `art tinker`, with the real tinker SDK: neither owner sees what is the other's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tinker_fixtures import run_program, started
from tinker_service import Service, with_sdk

from waiting import DEADLINE_S

pytestmark = with_sdk
Told = dict[str, dict[str, Any]]


def tenant_key(service: Service, name: str) -> str:
    """What a client of a new tenant presents."""
    command = [str(Path(sys.executable).with_name("art")), "keys", "create", name]
    done = subprocess.run(
        [*command, "--data-dir", str(service.data)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return f"tml-{done.stdout.split()[-1]}"


def histories(data: Path) -> dict[str, list[tuple[int, float]]]:
    """The project of each run that has a history, and its steps with their losses."""
    found: dict[str, list[tuple[int, float]]] = {}
    for file in data.glob("*/models/*/history.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        made = [(row["step"], row["loss/train"]) for row in rows if "loss/train" in row]
        found.setdefault(file.parents[2].name, []).extend(made)
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture(scope="module")
def told(data: Path) -> Iterator[Told]:
    with started(data) as service:
        keys = [tenant_key(service, name) for name in ("ann", "bob")]
        lines = run_program(service, "two_keys.py", *keys)
        found = {one["method"]: one for one in lines}
        lines = run_program(service, "two_keys.py", service.variables["TINKER_API_KEY"], keys[0])
        yield found | {f"operator: {one['method']}": one for one in lines}


def outcomes(told: Told, before: str = "") -> dict[str, str]:
    return {
        name.removeprefix(before): one["outcome"] for name, one in told.items() if name.startswith(before)
    }


@pytest.mark.parametrize("before", ["", "operator: "])
def test_lists_have_one_s_own(told: Told, before: str) -> None:
    for kind in ("runs", "checkpoints", "sessions", "search"):
        for owner in ("first", "second"):
            one = told[f"{before}listed {kind} of the {owner}"]
            assert one["outcome"] == "hidden", one


@pytest.mark.parametrize("before", ["", "operator: "])
def test_what_is_another_s_does_not_exist(told: Told, before: str) -> None:
    found = {name: one for name, one in outcomes(told, before).items() if ":" not in name}
    attempts = {name for name in found if not name.startswith(("listed", "mine"))}
    assert len(attempts) == 20
    words = {name: told[before + name]["detail"] for name in attempts}
    assert {name: found[name] for name in attempts if found[name] == "works"} == {}
    unclear = {name for name, said in words.items() if "this key" not in said}
    assert unclear == set()


@pytest.mark.parametrize("before", ["", "operator: "])
def test_published_weights_are_known_and_not_loaded(told: Told, before: str) -> None:
    found = outcomes(told, f"{before}published: ")
    assert found == {
        "get_weights_info": "works",
        "copy_weights": "BadRequestError",
        "from_state": "RequestFailedError",
        "create_sampling_client": "BadRequestError",
        "delete_checkpoint": "NotFoundError",
    }
    for name in ("copy_weights", "from_state", "create_sampling_client"):
        assert "only the key that it is of" in told[f"{before}published: {name}"]["detail"]


@pytest.mark.parametrize("before", ["", "operator: "])
def test_the_owner_goes_on(told: Told, before: str) -> None:
    assert told[f"{before}mine is untouched"]["outcome"] == "works"


@pytest.mark.usefixtures("told")
def test_the_steps_of_tenants_are_written_beside_their_checkpoints(data: Path) -> None:
    found = histories(data)
    assert set(found) == {"tinker", "ann~tinker", "bob~tinker"}
    for steps in found.values():
        assert {number for number, _ in steps} == {1}
        assert all(loss > 0 for _, loss in steps)
