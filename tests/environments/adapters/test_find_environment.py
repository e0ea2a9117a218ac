from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import art
from art.environments import tasks
from art.environments.adapters import registry
from art.environments.adapters.environment import Scenario, scenario_seed
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError, EnvironmentTimeoutError


class Own:
    """An environment of a user."""

    def __init__(self, *, name: str = "own") -> None:
        self.name = name

    def scenarios(self, split: str) -> Sequence[Scenario]:
        return [Scenario(f"{self.name}/{split}")]

    async def rollout(self, model: art.Model, scenario: Scenario, **options: Any) -> art.Trajectory:
        return art.Trajectory(reward=1.0)

    async def close(self) -> None: ...


class Hangs(Own):
    """An environment whose rollouts end when they are cancelled, or when they give up themselves."""

    def __init__(self, *, ended: list[str], own_s: float | None = None) -> None:
        super().__init__()
        self.ended, self.own_s = ended, own_s

    async def rollout(self, model: art.Model, scenario: Scenario, **options: Any) -> art.Trajectory:
        try:
            async with asyncio.timeout(self.own_s):
                await asyncio.Event().wait()
        finally:
            self.ended.append(scenario.id)
        raise AssertionError


OWN = Own()
NO_ENVIRONMENT = 3


class Unfinished:
    """What has no `rollout` yet."""

    def scenarios(self, split: str) -> Sequence[Scenario]:
        return []


@pytest.mark.parametrize("name", tasks.NAMES)
def test_a_task_is_an_environment(name: str) -> None:
    found = find_environment(name, train=3, val=2)
    assert found.name == name
    assert [len(found.scenarios(split)) for split in ("train", "val")] == [3, 2]


@pytest.mark.parametrize("name", ["chess", "tic-tac-to", "no-such:NAME", "", ":", "gymnasium:"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown environment") as refused:
        find_environment(name)
    assert repr(name) in str(refused.value)
    assert all(one in str(refused.value) for one in registry.known_environments())


def test_a_misspelt_name_has_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'tic-tac-toe'"):
        find_environment("tic-tac-to")


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"'tic-tac-toe'.*'sed'.*options: seed, train, val"):
        find_environment("tic-tac-toe", sed=1)


@pytest.mark.parametrize("size", [0, -1, True, "3", 2.0])
def test_a_split_without_scenarios_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="val="):
        find_environment("tic-tac-toe", val=size)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'test'"):
        find_environment("tic-tac-toe").scenarios("test")


def test_a_user_s_object_class_and_function_are_found() -> None:
    found: Any = find_environment(f"python:{__name__}:OWN")
    assert found.name == "own" and found.close == OWN.close and found.scenarios("val") == OWN.scenarios("val")
    assert find_environment(f"python:{__name__}:Own", name="mine").name == "mine"


async def test_a_rollout_of_a_user_s_own_has_a_deadline() -> None:
    """What never ends is ended and told, and a timeout of the user's own is the user's."""
    scenario, model = Scenario("1"), art.Model(name="nobody", project="own")
    ended: list[str] = []
    hangs = find_environment(f"python:{__name__}:Hangs", ended=ended, deadline_s=0.01)
    with pytest.raises(EnvironmentTimeoutError, match=r"'own': a rollout did not end within 0\.01 s"):
        await hangs.rollout(model, scenario)
    assert ended == ["1"]
    own = find_environment(f"python:{__name__}:OWN", deadline_s=60)
    assert (await own.rollout(model, scenario, seed=3)).reward == 1
    impatient = find_environment(f"python:{__name__}:Hangs", ended=ended, own_s=0.01)
    with pytest.raises(TimeoutError) as raised:
        await impatient.rollout(model, scenario)
    assert not isinstance(raised.value, EnvironmentTimeoutError)


@pytest.mark.parametrize("deadline", [0, -1.0, "soon", None, float("nan")])
def test_a_deadline_that_is_none_is_refused(deadline: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no number above 0"):
        find_environment(f"python:{__name__}:OWN", deadline_s=deadline)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python:no_such_module:thing", "no_such_module"),
        (f"python:{__name__}:no_such_name", "no_such_name"),
        ("python:nothing", "module:name"),
        (f"python:{__name__}:NO_ENVIRONMENT", "is int"),
        (f"python:{__name__}:Unfinished", "no rollout and no close"),
    ],
)
def test_what_is_no_environment_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        find_environment(text)


def test_options_of_a_user_s_own_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="options: name"):
        find_environment(f"python:{__name__}:Own", size=3)
    with pytest.raises(ConfigurationError, match="takes no name"):
        find_environment(f"python:{__name__}:OWN", name="mine")


def test_seeds_of_the_splits_are_disjoint_and_do_not_depend_on_sizes() -> None:
    train = [scenario_seed(3, "train", index) for index in range(2000)]
    val = [scenario_seed(3, "val", index) for index in range(2000)]
    assert len({*train, *val}) == 4000
    assert all(0 <= seed < 2**31 for seed in (*train, *val))
    assert train[0] != scenario_seed(4, "train", 0)


@pytest.mark.slow
def test_finding_environments_loads_no_library_of_theirs(tmp_path: Path) -> None:
    program = (
        "import sys, art.environments, art.environments.adapters.registry as r; r.find_environment('mail'); "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'starlette', 'openai', 'gymnasium', "
        "'textarena', 'reasoning_gym', 'verifiers', 'openenv', 'inspect_ai', 'skyrl_gym')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.strip() == "[]"
