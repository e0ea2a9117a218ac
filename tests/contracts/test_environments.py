"""All environments by name keep one contract: the same scenarios everywhere, and a rollout's whole record.

Those of other libraries run, with the real ones, in an environment of their own: `make test-all` makes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from environment_program import ROLLOUTS, examine, model_of

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError
from art_extensions.testing import LlmServer
from openenv_server import openenv_server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIBRARIES, VERIFIERS = ".venv-environments", ".venv-verifiers"
"""Environments of Python with other libraries: verifiers and OpenEnv, which do not go with the others."""


INSPECT_TASKS = "tests/extensions/environments/programs/inspect_tasks.py"


def python_of(place: str) -> Path:
    return ROOT / place / "bin" / "python"


def is_missing(place: str) -> bool:
    return not python_of(place).exists() and not os.environ.get("ART_TEST_EVERYTHING")


@dataclass(frozen=True, kw_only=True)
class Case:
    """An environment, and what is known of it."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rewards: tuple[float, float]
    """The least and the greatest, which are a bad player's and a good one's."""
    parts: frozenset[str]
    """Metrics of each rollout."""
    apart: str = ""
    """The environment of Python that it needs, if not that of the tests."""
    better: bool = True
    """Whether the good player beats the bad one in each scenario."""

    def order(self, worlds: str) -> dict[str, Any]:
        """worlds: the address of a server of OpenEnv."""
        name = self.name.replace("WORLDS", worlds)
        return {"name": name, "options": {"train": 20, "val": 10, **self.options}}

    def __str__(self) -> str:
        return f"{self.name} {self.options or ''}".strip()


TURNS = frozenset({"turns"})
GUESS = frozenset({"turns", "truncated", "right", "distance"})
GAME = TURNS | {"score", "won", "draw", "not_lost", "invalid"}
CASES = [
    Case(
        name="tic-tac-toe",
        rewards=(-1, 1),
        parts=frozenset({"won", "draw", "invalid", "not_lost"}),
        better=False,
    ),
    Case(name="yes-no-maybe", rewards=(0, 1), parts=frozenset(), better=False),
    Case(name="gymnasium:worlds:Guess", rewards=(-0.5, 1), parts=GUESS),
    Case(name="gymnasium:worlds:OlderGuess", rewards=(-0.5, 1), parts=GUESS),
    Case(
        name="gymnasium:worlds:Guess", options={"max_turns": 2}, rewards=(-0.2, 1), parts=GUESS, better=False
    ),
    Case(name="python:worlds:Echo", rewards=(0, 1), parts=frozenset({"right"})),
    Case(name="gymnasium:registered_world:Guess-v0", rewards=(-0.5, 1), parts=GUESS, apart=LIBRARIES),
    Case(
        name="reasoning-gym:letter_counting",
        options={"min_words": 2, "max_words": 4},
        rewards=(0, 1),
        parts=frozenset({"score", "solved", "tagged"}),
        apart=LIBRARIES,
    ),
    Case(name="textarena:TicTacToe-v0", rewards=(-1, 1), parts=GAME, apart=LIBRARIES, better=False),
    Case(
        name="textarena:TicTacToe-v0",
        options={"opponent": "self"},
        rewards=(-1, 1),
        parts=GAME,
        apart=LIBRARIES,
        better=False,
    ),
    Case(
        name="textarena:GuessTheNumber-v0",
        rewards=(-1, 1),
        parts=TURNS | {"score"},
        apart=LIBRARIES,
        better=False,
    ),
    Case(
        name="verifiers:play-hub",
        rewards=(0, 1),
        parts=frozenset({"exact", "num_turns", "truncated"}),
        apart=VERIFIERS,
    ),
    Case(
        name="verifiers:play-hub",
        options={"kind": "multi"},
        rewards=(0, 1),
        parts=frozenset({"right", "num_turns", "truncated"}),
        apart=VERIFIERS,
    ),
    Case(
        name=f"inspect:{INSPECT_TASKS}@say",
        rewards=(0, 1),
        parts=TURNS | {"exact", "truncated"},
        apart=LIBRARIES,
    ),
    Case(
        name="openenv:WORLDS/guess",
        rewards=(-0.5, 1),
        parts=TURNS | {"truncated", "invalid_actions"},
        apart=VERIFIERS,
    ),
]


def reply(body: Mapping[str, Any]) -> str:
    """Plays all the games: model "right" well and "wrong" badly; other games, the first move on offer."""
    texts = [str(message["content"]) for message in body["messages"]]
    good = body["model"] == "right"
    told = texts[-1]
    if counting := re.search(r'letter "(.)" appear in the text: "(.*)"', told):
        return f"<answer>{counting[2].lower().count(counting[1]) if good else -1}</answer>"
    if word := re.match(r"Say (\w+)", told):
        return word[1] if good else "no"
    if "Guess a number from 0 to 9" in texts[0]:
        low, high = 0, 9
        for guess, hint in zip(texts[1::2], texts[2::2], strict=False):
            low, high = (int(guess) + 1, high) if hint == "Higher." else (low, int(guess) - 1)
        return str((low + high) // 2) if good else "99"
    if offered := re.findall(r"Available Moves: (.*)", told):
        return re.findall(r"\d", offered[-1])[0] if good else "nonsense"
    return f"[{len(texts)}]" if good else "nonsense"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[LlmServer]:
    with LlmServer(reply) as server:
        yield server


def run_apart(order: Mapping[str, Any], seed: int, place: str) -> list[dict[str, Any]]:
    hub = ROOT / "tests" / "extensions" / "environments" / "programs"
    variables = {
        **{"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHONHASHSEED": str(seed)},
        **{"PYTHONPATH": f"{ROOT / 'src'}:{HERE}:{hub}", "HF_HUB_OFFLINE": "1"},
    }
    python = str(python_of(place)) if place else sys.executable
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / "environment_program.py")],
        input=json.dumps(order),
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def examined(endpoint: LlmServer) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Case -> what it did, and the scenarios that another process has."""
    asked = {"base_url": endpoint.base_url, "key": endpoint.key}

    async def look(order: dict[str, Any]) -> dict[str, Any]:
        return await examine(order, **asked, rollouts=True)

    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for place in ("", LIBRARIES, VERIFIERS):
        cases = [case for case in CASES if case.apart == place]
        if place and is_missing(place):
            continue
        with openenv_server() if place == VERIFIERS else nullcontext("") as worlds:
            orders = [case.order(worlds) for case in cases]
            if place:
                first = run_apart({**asked, "cases": orders, "rollouts": True}, 1, place)
            else:
                first = [asyncio.run(look(order)) for order in orders]
            second = run_apart({**asked, "cases": orders, "rollouts": False}, 2, place)
        found |= {
            str(case): (done, scenarios) for case, done, scenarios in zip(cases, first, second, strict=True)
        }
    return found


def apart(place: str) -> Any:
    return pytest.mark.skipif(is_missing(place), reason=f"no {place}: `make {place}/.installed`")


each = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, id=str(case), marks=[pytest.mark.slow, *([apart(case.apart)] if case.apart else [])]
        )
        for case in CASES
    ],
)
Found = dict[str, tuple[dict[str, Any], dict[str, Any]]]


@each
def test_scenarios_are_the_same_in_another_process_and_in_one_split_alone(
    case: Case, examined: Found
) -> None:
    first, second = examined[str(case)]
    assert "refused" not in first, first
    assert [first[split] for split in ("train", "val")] == [second[split] for split in ("train", "val")]
    ids = [name for split in ("train", "val") for name, _ in first[split]]
    assert len(ids) == len(set(ids)) >= 20
    assert first["train"] and first["val"]


@each
def test_a_rollout_has_its_whole_record(case: Case, examined: Found) -> None:
    first, _ = examined[str(case)]
    least, most = case.rewards
    for player in ("right", "wrong"):
        assert len(first[player]) == ROLLOUTS
        for one in first[player]:
            if one["reward"] is not None:
                assert least - 1e-9 <= one["reward"] <= most
                assert case.parts <= one["metrics"].keys()
            assert all(isinstance(value, int | float) for value in one["metrics"].values())
            assert one["metadata"]["scenario_id"] == one["scenario"]
            assert one["metadata"]["show"].strip()
            said = [message for message in one["messages"] if message["role"] == "assistant"]
            assert one["choices"] == len(said) >= (one["reward"] is not None)
            assert one["metrics"].get("turns", len(said)) == len(said)


@each
def test_the_reward_is_that_of_how_the_model_played(case: Case, examined: Found) -> None:
    first, _ = examined[str(case)]
    right, wrong = ([one["reward"] for one in first[player]] for player in ("right", "wrong"))
    if case.options.get("opponent") == "self":
        # The first player errs until it has lost: the second one has no turn.
        assert wrong == [None if one["metadata"]["seat"] else -1.0 for one in first["wrong"]]
        assert None not in right
    else:
        assert sum(right) >= sum(wrong)
    if case.better:
        assert min(right) > max(wrong)


@each
def test_a_seeded_rollout_can_be_had_again(case: Case, examined: Found) -> None:
    first, _ = examined[str(case)]
    again = first["again"][0]
    assert (
        again["messages"] == first["right"][0]["messages"] and again["reward"] == first["right"][0]["reward"]
    )


@each
def test_an_endpoint_that_refuses_fails_the_rollout(case: Case, examined: Found) -> None:
    assert examined[str(case)][0]["without the key"] == "AuthenticationError"


async def play(endpoint: LlmServer, name: str, **options: Any) -> art.Trajectory:
    environment = find_environment(name, **options)
    model = model_of("right", endpoint.base_url, endpoint.key)
    return await environment.rollout(model, environment.scenarios("train")[0])


@pytest.mark.extension
@pytest.mark.parametrize(
    ("world", "words"),
    [
        ("FailsInReset", "reset failed: KeyError: 'no board'"),
        ("FailsInStep", "step failed: RuntimeError: the board is gone"),
        ("ShowsNumbers", "the observation is list, not text"),
        ("GivesTwo", "step gave tuple, not"),
    ],
)
async def test_a_failure_of_the_environment_names_it(endpoint: LlmServer, world: str, words: str) -> None:
    with pytest.raises(EnvironmentFailedError, match=f"gymnasium:worlds:{world}.*{words}"):
        await play(endpoint, f"gymnasium:worlds:{world}")


@pytest.mark.extension
async def test_an_environment_that_hangs_fails_one_rollout_of_a_group(endpoint: LlmServer) -> None:
    hangs = play(endpoint, "gymnasium:worlds:HangsInStep", deadline_s=0.05)
    plays = play(endpoint, "gymnasium:worlds:Guess")
    [group] = await art.gather_trajectory_groups([art.TrajectoryGroup([hangs, plays])], max_exceptions=1)
    [error] = group.exceptions
    assert EnvironmentTimeoutError.__name__ in error.type and "did not answer within 0.05 s" in error.message
    assert [one.metrics["right"] for one in group] == [1.0]


@pytest.mark.extension
async def test_a_reset_without_a_seed_is_refused_with_the_remedy(endpoint: LlmServer) -> None:
    with pytest.raises(ConfigurationError, match=r"takes no seed.*write reset\(self, \*, seed=None"):
        await play(endpoint, "gymnasium:worlds:TakesNoSeed")


@pytest.mark.extension
async def test_what_a_request_is_given_arrives(endpoint: LlmServer) -> None:
    environment = find_environment(
        "gymnasium:worlds:Guess", request={"stop": ["\n"]}, system_prompt="Guess well."
    )
    model = model_of("right", endpoint.base_url, endpoint.key)
    scenario = environment.scenarios("val")[0]
    await environment.rollout(model, scenario, seed=1, temperature=0.25, max_tokens=9)
    body = endpoint.served[-1].body
    assert (body["stop"], body["temperature"], body["max_tokens"]) == (["\n"], 0.25, 9)
    assert body["messages"][0] == {"role": "system", "content": "Guess well."}
    assert isinstance(body["seed"], int)
    await environment.rollout(model, scenario)
    assert "seed" not in endpoint.served[-1].body


REFUSED = [
    ("reasoning-gym:leter_counting", {}, r"did you mean 'letter_counting'"),
    ("reasoning-gym:letter_counting", {"max_word": 3}, r"did you mean 'max_words'"),
    ("reasoning-gym:letter_counting", {"min_words": 0}, r"min_words must be positive"),
    ("textarena:TicTacTo-v0", {}, r"did you mean 'TicTacToe-v0'"),
    ("textarena:TicTacToe-v0", {"players": 3}, r"players=3"),
    ("textarena:TicTacToe-v0", {"seat": 2}, r"seats 0 to 1, not seat=2"),
    ("textarena:TicTacToe-v0", {"opponent": "perfect"}, r"'random', 'self', 'module:function'"),
    ("gymnasium:NoSuchGame-v0", {}, r"NoSuchGame"),
]


@apart(LIBRARIES)
@pytest.mark.slow
def test_a_wrong_name_or_option_is_refused_with_what_is_known() -> None:
    order = [{"name": name, "options": options} for name, options, _ in REFUSED]
    found = run_apart({"base_url": "", "key": "", "cases": order, "rollouts": False}, 0, LIBRARIES)
    for (name, _, words), told in zip(REFUSED, found, strict=True):
        assert told["refused"].startswith("ConfigurationError") and re.search(words, told["refused"]), (
            name,
            told,
        )


@pytest.mark.extension
@pytest.mark.parametrize(
    ("name", "extra", "module"),
    [
        ("reasoning-gym:letter_counting", "reasoning-gym", "reasoning_gym"),
        ("textarena:TicTacToe-v0", "textarena", "textarena"),
        ("gymnasium:CartPole-v1", "gymnasium", "gymnasium"),
        ("verifiers:wordle", "verifiers-hub", "verifiers"),
        ("openenv:http://127.0.0.1:9", "openenv", "openenv"),
        ("inspect:tasks.py@say", "inspect", "inspect_ai"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    name: str, extra: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Importing it fails, installed or not, and whatever another test has imported of it.
    for part in {module, *(one for one in sys.modules if one.startswith(f"{module}."))}:
        monkeypatch.setitem(sys.modules, part, None)
    with pytest.raises(ConfigurationError, match=rf"needs .* not installed. Run: pip install .*{extra}"):
        find_environment(name)
