"""All environments by name keep one contract: the same scenarios everywhere, and a rollout's whole record.

`environment_cases.py` has the environments. Those that have a row in the matrix are trained on as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from adapter_lines import adapter_lines
from environment_cases import (
    CASES,
    LIBRARIES,
    OPENENV,
    VERIFIERS,
    Case,
    reply,
    run_apart,
    write_tasks,
)
from environment_matrix import MARK, PAGE, WRITE, read_rows, row_of, table, write_row
from environment_program import ROLLOUTS, ROLLOUTS_OF_A_STEP, examine, model_of

import art
from art.environments.adapters.registry import find_environment
from art.errors import ConfigurationError, EnvironmentFailedError, EnvironmentTimeoutError
from art.extensions import ENVIRONMENT, extension_points
from art_extensions.testing import LlmServer
from library_programs import ROOT, is_missing, needs, python_of
from openenv_server import openenv_server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[LlmServer]:
    with LlmServer(reply) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A server of ours, which trains; the folder is that of the runs."""
    folder = tmp_path_factory.mktemp("server")
    with art.LocalBackend(path=str(folder)) as backend:
        model = art.TrainableModel(name="address", project="matrix", base_model="art/nano-words")
        art.run(model.register(backend))
        url = str(model.inference_base_url).removesuffix("/v1")
        yield {
            "url": url,
            "key": str(model.inference_api_key),
            "folder": str(folder / "runs"),
            "data": str(folder),
        }


class Examined(dict[str, tuple[dict[str, Any], dict[str, Any]]]):
    """Case -> what it did, and what another process did with the same order. All cases of one place are
    looked at together, when one of them is asked for.
    """

    def __init__(self, endpoint: LlmServer, server: dict[str, Any], tasks: str) -> None:
        super().__init__()
        self._asked = {"base_url": endpoint.base_url, "key": endpoint.key}
        self._server, self._tasks = server, tasks
        self.refused: list[dict[str, Any]] = []
        """What the second process of the libraries did with `REFUSED`."""

    def __missing__(self, wanted: str) -> tuple[dict[str, Any], dict[str, Any]]:
        (place,) = (case.apart for case in CASES if str(case) == wanted)
        cases = [
            case for case in CASES if case.apart == place and not (case.needs and is_missing(case.needs))
        ]
        with_worlds = place in (VERIFIERS, OPENENV)
        with openenv_server(python_of(place)) if with_worlds else nullcontext("") as worlds:
            orders = [case.order(worlds, self._tasks) for case in cases]
            wrong = REFUSED_ORDERS if place == LIBRARIES else []
            first, second = self._begin(orders, place), self._resume([*orders, *wrong], place)
        if wrong:
            self.refused = second[len(orders) :]
            del second[len(orders) :]
        self.update(
            {str(case): both for case, both in zip(cases, zip(first, second, strict=True), strict=True)}
        )
        return self[wanted]

    def _begin(self, orders: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
        begun = {**self._server, "steps": 1}
        if place:
            return run_apart({**self._asked, "cases": orders, "rollouts": True, "server": begun}, 1, place)

        async def look(order: dict[str, Any]) -> dict[str, Any]:
            return await examine(order, **self._asked, rollouts=True, server=begun)

        return [asyncio.run(look(order)) for order in orders]

    def _resume(self, orders: list[dict[str, Any]], place: str) -> list[dict[str, Any]]:
        resumed = {**self._server, "steps": 2}
        return run_apart({**self._asked, "cases": orders, "rollouts": False, "server": resumed}, 2, place)


@pytest.fixture(scope="module")
def examined(
    endpoint: LlmServer, server: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Examined:
    return Examined(endpoint, server, write_tasks(tmp_path_factory.mktemp("tasks")))


def samples_of(server: dict[str, Any], model: str) -> dict[str, int]:
    """Returns the samples that the ledger has of a model, with their numbers of tokens."""
    with closing(sqlite3.connect(Path(server["data"], "server", "ledger.sqlite"))) as ledger:
        asked = "SELECT sample_id FROM samples WHERE model IN (?, ?)"
        named = ledger.execute(asked, (model, f"matrix/{model}")).fetchall()
    with httpx.Client(headers={"authorization": f"Bearer {server['key']}"}, timeout=60) as http:
        rows = [http.get(f"{server['url']}/v1/samples/{one}").raise_for_status().json() for (one,) in named]
    return {row["sample_id"]: len(row["completion_ids"]) for row in rows}


def trained_rollouts(server: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """Returns the rows of the steps' rollouts, as the server has written them."""
    steps = Path(server["data"], "matrix", "models", model, "steps")
    files = sorted(steps.rglob("rollouts.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def evaluated_samples(run: Path) -> set[str]:
    lines = [line for file in run.glob("evaluation-*.jsonl") for line in file.read_text().splitlines()]
    rollouts = [one for line in lines for one in json.loads(line)]
    parts = [part for one in rollouts for part in (one, *one["additional_histories"])]
    turns = [turn for part in parts for turn in part["messages_and_choices"]]
    return {turn["sample_id"] for turn in turns if "sample_id" in turn}


def params_of(cases: Iterable[Case]) -> list[Any]:
    return [
        pytest.param(
            case,
            id=str(case),
            marks=[pytest.mark.slow, *(needs(place) for place in (case.apart, case.needs) if place)],
        )
        for case in cases
    ]


each = pytest.mark.parametrize("case", params_of(CASES))
each_scripted = pytest.mark.parametrize("case", params_of(case for case in CASES if case.scripted))
each_kind = pytest.mark.parametrize("case", params_of(case for case in CASES if case.kind))


@each
def test_scenarios_are_the_same_in_another_process_and_in_one_split_alone(
    case: Case, examined: Examined
) -> None:
    first, second = examined[str(case)]
    assert "refused" not in first, first
    assert [first[split] for split in ("train", "val")] == [second[split] for split in ("train", "val")]
    ids = [name for split in ("train", "val") for name, _ in first[split]]
    assert len(ids) == len(set(ids)) >= case.least
    assert first["train"] and first["val"]


@each_scripted
def test_a_rollout_has_its_whole_record(case: Case, examined: Examined) -> None:
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


@each_scripted
def test_the_reward_is_that_of_how_the_model_played(case: Case, examined: Examined) -> None:
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


@each_scripted
def test_a_seeded_rollout_can_be_had_again(case: Case, examined: Examined) -> None:
    first, _ = examined[str(case)]
    again = first["again"][0]
    assert (
        again["messages"] == first["right"][0]["messages"] and again["reward"] == first["right"][0]["reward"]
    )


@each_scripted
def test_an_endpoint_that_refuses_fails_the_rollout(case: Case, examined: Examined) -> None:
    assert examined[str(case)][0]["without the key"] == "AuthenticationError"


@each_kind
def test_a_run_goes_on_in_another_process(case: Case, examined: Examined) -> None:
    first, second = (done["learned"] for done in examined[str(case)])
    assert first.get("steps") == [1], first
    assert second.get("steps") == [1, 2], second


@each_kind
def test_each_sampled_token_of_a_run_is_one_of_its_rollouts(
    case: Case, examined: Examined, server: dict[str, Any]
) -> None:
    """What the server has sampled for this model, and what the run's rollouts have, are the same samples."""
    sampled, rows, evaluated = tokens_of(case, examined, server)
    assert len(rows) == 2 * ROLLOUTS_OF_A_STEP and evaluated
    for row in rows:
        assert row["tokens"] == sum(sampled[one] for one in row["samples"]) > 0
    trained = [one for row in rows for one in row["samples"]]
    assert len(trained) == len(set(trained))
    assert set(trained) | evaluated == sampled.keys()


def tokens_of(
    case: Case, examined: Examined, server: dict[str, Any]
) -> tuple[dict[str, int], list[dict[str, Any]], set[str]]:
    """Returns the ledger's samples with their tokens, the rows of the steps, and the evaluations' samples."""
    _, second = examined[str(case)]
    run = Path(second["learned"].get("folder", "no such folder"))
    return samples_of(server, case.learner), trained_rollouts(server, case.learner), evaluated_samples(run)


@each_kind
def test_the_reward_is_the_librarys_own(case: Case, examined: Examined) -> None:
    """Where the contract can ask the library: of the same replies to the same scenario."""
    first, _ = examined[str(case)]
    played = [one for player in ("right", "wrong") for one in first.get(player, ())]
    for one in played:
        if one["library"] is not None:
            assert one["library"] == pytest.approx(one["reward"], abs=1e-9)


@each_kind
def test_the_matrix_has_what_the_case_did(case: Case, examined: Examined, server: dict[str, Any]) -> None:
    sampled, rows, evaluated = tokens_of(case, examined, server)
    trained = {one for row in rows for one in row["samples"]}
    counted = all(row["tokens"] == sum(sampled.get(one, -1) for one in row["samples"]) for row in rows)
    exact = bool(rows and counted and trained | evaluated == sampled.keys())
    made = row_of(case, *examined[str(case)], exact=exact)
    if os.environ.get(WRITE):
        write_row(case.kind, made)
    assert read_rows().get(case.kind) == made, (
        "run PYTHONPATH=.:tests python tests/contracts/environment_matrix.py"
    )


@pytest.mark.extension
def test_the_matrix_has_each_kind_and_points_to_what_is_there() -> None:
    kinds = {case.kind: case for case in CASES if case.kind}
    prefixes = {case.name.partition(":")[0] for case in kinds.values()}
    assert {*extension_points(ENVIRONMENT)} <= prefixes, "add a case of the kind, then write the matrix"
    rows = read_rows()
    assert [*rows] == [*kinds], "run PYTHONPATH=.:tests python tests/contracts/environment_matrix.py"
    for case in kinds.values():
        if case.compared_by:
            file, _, test = case.compared_by.partition("::")
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), case.compared_by
    begin, end = f"<!-- {MARK} -->\n", f"<!-- /{MARK} -->"
    assert PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0] == table(), (
        "run PYTHONPATH=.:tests python tests/contracts/environment_matrix.py --page"
    )


@pytest.mark.extension
def test_the_lines_of_an_adapter_are_those_that_no_other_uses() -> None:
    folder = ROOT / "src" / "art_extensions" / "environments"
    lines = {file.name: len(file.read_text().splitlines()) for file in folder.glob("*.py")}
    for kind, files in {
        "openenv": ("openenv.py", "openenv_tools.py"),
        "nemo-gym": tuple(
            f"{name}.py"
            for name in (
                *("nemo_gym", "nemo_gym_items", "nemo_gym_process", "nemo_gym_worker"),
                "environment_server",
            )
        ),
        "tau2": ("tau2.py",),
        "reasoning-gym": ("reasoning_gym.py",),
    }.items():
        assert adapter_lines(kind) == sum(lines[name] for name in files), kind


@pytest.mark.extension
def test_a_curve_is_shown_where_the_task_was_learned() -> None:
    found = table()
    cells = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in found.splitlines()}
    assert cells["`inspect:`"] == "not shown", "its page says that the task was not learned"
    assert cells["`reasoning-gym:`"].count(" to ") == 2


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


REFUSED_ORDERS = [{"name": name, "options": options, "scripted": False} for name, options, _ in REFUSED]


@needs(LIBRARIES)
@pytest.mark.slow
def test_a_wrong_name_or_option_is_refused_with_what_is_known(examined: Examined) -> None:
    assert examined[next(str(case) for case in CASES if case.apart == LIBRARIES)]
    for (name, _, words), told in zip(REFUSED, examined.refused, strict=True):
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
        ("skyrl-gym:gsm8k", "skyrl-gym", "skyrl_gym"),
        ("openenv:http://127.0.0.1:9", "openenv", "openenv"),
        ("inspect:tasks.py@say", "inspect", "inspect_ai"),
        ("tau2:airline", "inspect-evals", "inspect_ai"),
        ("agentdojo:banking", "inspect-evals", "inspect_evals"),
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
