"""A fault of an environment costs its rollout, with a reason, whatever kind of environment it is.

It hangs, ends its program, floods the model with 50 MB, rewards with NaN or a word, or begins with 10 MB.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from environment_cases import LIBRARIES, TASKSETS, VERIFIERS, run_apart

import art
from library_programs import ROOT, is_missing, needs, python_of

HERE = Path(__file__).parent
FAULTS = ("hangs", "dies", "floods", "nan", "word", "prompt")
SHORT = {"deadline_s": 2.0}
TIMED_OUT = r"EnvironmentTimeoutError: .*within [\d.]+ s"
DIED = r"EnvironmentFailedError: .*SystemExit"
TOO_LONG = r"(BadRequest|APIStatus)Error.*(context|large|long|bytes)"
NO_NUMBER = r"nan, not a finite number|no finite number|no number"
NO_WORD = r"great"
REASONS = {
    "hangs": TIMED_OUT,
    "dies": DIED,
    "floods": TOO_LONG,
    "nan": NO_NUMBER,
    "word": NO_WORD,
    "prompt": TOO_LONG,
}


FAULTY = "tests/contracts/faulty"


def nemo_rows(fault: str) -> list[dict[str, Any]]:
    text = "word " * 2_000_000 if fault == "prompt" else "Guess."
    asked = [{"responses_create_params": {"input": f"{number}: {text}"}} for number in range(2)]
    return [{**row, "fault": fault} for row in asked]


SUMS = [
    {"prompt": [{"role": "user", "content": f"{number}?"}], "reward_spec": {"ground_truth": "1"}}
    for number in range(10)
]
NEMO = ".venv-nemo-gym"
MODULES = {LIBRARIES: ["faulty_libraries"]}
"""Registered before the environments are found."""


@dataclass(frozen=True, kw_only=True)
class FaultyCase:
    """An environment with a fault by name."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    option: str = "fault"
    """The option that takes the fault."""
    wrapped: str = ""
    """The option that takes {option: fault}, if it is not the environment's own."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the option is given for a fault, if not its name."""
    apart: str = ""
    faults: tuple[str, ...] = FAULTS
    """Those that it can have."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Reasons that differ from those of the other kinds."""

    harmless: tuple[str, ...] = ()
    """Faults that cost nothing: the rollout has its reward."""
    short: Mapping[str, Any] = field(default_factory=lambda: SHORT)
    """The options with which it does not wait for long."""
    needs: str = ""
    """An environment of Python that it needs beside."""

    def order(self, tasks: str, port: str) -> dict[str, Any]:
        """tasks: the folder of Harbor's tasks with a fault, by its name. port: of NeMo-Gym's server."""
        faults: dict[str, Any] = {}
        for fault in (*self.faults, *self.harmless, ""):
            if "TASKS" in self.name:
                faults[fault] = {"name": self.name.replace("TASKS", f"{tasks}/{fault or 'none'}")}
                continue
            given = {self.option: self.values.get(fault, fault)}
            more = {self.wrapped: given} if self.wrapped else given
            faults[fault] = {**more, **(self.short if fault == "hangs" else {})}
        name = self.name.replace("PORT", port)
        return {"name": name, "options": {**self.options}, "with": faults}

    def marks(self) -> list[pytest.MarkDecorator]:
        return [needs(place) for place in (self.apart, self.needs) if place]


CASES = [
    FaultyCase(name="gymnasium:faulty_worlds:FaultyGuess"),
    FaultyCase(name="python:faulty_worlds:FaultyEcho", faults=("hangs", "nan", "prompt")),
    FaultyCase(
        name="harbor:TASKS",
        options={"max_turns": 1},
        faults=("hangs", "dies", "nan", "word", "prompt"),
        harmless=("floods",),
        reasons={"hangs": "the tests did not end within 3 s", "dies": "wrote no reward"},
    ),
    FaultyCase(name="gymnasium:Faulty-v0", apart=LIBRARIES),
    FaultyCase(
        name="reasoning-gym:faulty",
        options={"train": 2, "val": 1},
        faults=("hangs", "dies", "nan", "word", "prompt"),
        apart=LIBRARIES,
    ),
    FaultyCase(name="textarena:Faulty-v0", apart=LIBRARIES),
    FaultyCase(name="skyrl-gym:faulty", options={"data": SUMS}, wrapped="config", apart=LIBRARIES),
    FaultyCase(
        name=f"inspect:{FAULTY}/faulty_tasks.py@faulty",
        options={"train": 10, "val": 10},
        faults=("dies", "floods", "nan", "word", "prompt"),
        reasons={"nan": "gave no number", "word": "gave no number", "prompt": "too long"},
        apart=LIBRARIES,
    ),
    FaultyCase(
        name="tau2:telecom",
        options={"train": 1, "max_turns": 3},
        option="user",
        values={
            "hangs": "faulty_tasks:hanging",
            "dies": "faulty_tasks:dying",
            "floods": "faulty_tasks:flooding",
            "": "faulty_tasks:plain",
        },
        faults=("dies", "floods"),
        harmless=("hangs",),
        short={"time_limit_s": 20},
        apart=LIBRARIES,
    ),
    FaultyCase(
        name="nemo-gym:http://127.0.0.1:PORT",
        option="data",
        values={fault: nemo_rows(fault) for fault in (*FAULTS, "")},
        reasons={
            "dies": "EnvironmentFailedError: .*/step failed",
            "floods": "/step failed: its answer cannot be read",
            "nan": "its reward is None, no number",
            "word": "/step failed with status 500: .*unable to parse string",
        },
        needs=NEMO,
    ),
    FaultyCase(
        name="verifiers:faulty_hub", reasons={"prompt": "before the model said .*too_long"}, apart=VERIFIERS
    ),
    FaultyCase(
        name="verifiers:faulty_words",
        wrapped="taskset",
        options={"harness": "null"},
        faults=("hangs", "dies", "nan", "word", "prompt"),
        reasons={"prompt": "before the model said anything"},
        apart=TASKSETS,
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with art.LocalBackend(path=str(tmp_path_factory.mktemp("server"))) as backend:
        model = art.TrainableModel(name="address", project="matrix", base_model="art/nano-words")
        art.run(model.register(backend))
        url = str(model.inference_base_url).removesuffix("/v1")
        yield {"url": url, "key": str(model.inference_api_key)}


TESTS = {
    "hangs": "sleep 300",
    "dies": "kill -9 -1",
    "floods": "head -c 200000000 /dev/zero | tr '\\0' x; echo 1 > /logs/verifier/reward.txt",
    "nan": "echo nan > /logs/verifier/reward.txt",
    "word": "echo great > /logs/verifier/reward.txt",
    "prompt": "echo 1 > /logs/verifier/reward.txt",
    "none": "echo 1 > /logs/verifier/reward.txt",
}
"""What the tests of a task of Harbor do, by the fault."""


def write_faulty_tasks(folder: Path) -> str:
    for fault, tests in TESTS.items():
        seconds = 3.0 if fault == "hangs" else 120.0
        files = {
            "task.toml": f"[agent]\ntimeout_sec = 120.0\n[verifier]\ntimeout_sec = {seconds}\n",
            "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
            "instruction.md": "word " * 2_000_000 if fault == "prompt" else "Write something.",
            "tests/test.sh": f"#!/bin/bash\n{tests}\n",
        }
        for name, text in files.items():
            path = folder / fault / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return str(folder)


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    """The port of NeMo-Gym's server, where the package is installed."""
    if is_missing(NEMO):
        yield "0"
        return
    command = [str(python_of(NEMO)), "-P", "-W", "ignore", str(HERE / "faulty" / "faulty_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def outcomes(port: str, server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    found: dict[str, dict[str, Any]] = {}
    tasks = write_faulty_tasks(tmp_path_factory.mktemp("tasks"))

    def look(case: FaultyCase) -> dict[str, Any]:
        if case.name not in found:
            missing = {one for one in (NEMO,) if is_missing(one)}
            cases = [one for one in CASES if one.apart == case.apart and one.needs not in missing]
            modules = MODULES.get(case.apart, [])
            order = {**server, "modules": modules, "cases": [one.order(tasks, port) for one in cases]}
            done = run_apart(order, 1, case.apart, program="faulty_program.py")
            found.update({one.name: told for one, told in zip(cases, done, strict=True)})
        return found[case.name]

    return look


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "fault"),
    [
        pytest.param(case, fault, id=f"{case.name} {fault}", marks=case.marks())
        for case in CASES
        for fault in (*case.faults, *case.harmless)
    ],
)
def test_a_fault_costs_its_rollout_with_a_reason(case: FaultyCase, fault: str, outcomes: Any) -> None:
    told = outcomes(case)[fault]
    if fault in case.harmless:
        assert told.get("reward", -1.0) >= 0, told
        return
    reason = told.get("error") or told.get("unscored")
    assert reason and re.search(case.reasons.get(fault, REASONS[fault]), reason, re.DOTALL), told


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=case.marks()) for case in CASES],
)
def test_a_rollout_without_a_fault_follows_in_the_same_program(case: FaultyCase, outcomes: Any) -> None:
    assert "reward" in outcomes(case)[""], outcomes(case)[""]


TRAINED: dict[str, dict[str, Any]] = {"AllFaults": {}, "WordAsReward": {}, "HalfHangs": {"deadline_s": 15.0}}
"""Environment -> its options."""


@pytest.fixture(scope="module")
def rows(server: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Environment -> the row of its step. They train one after the other, in one process of their own."""
    folder = tmp_path_factory.mktemp("runs")
    program = f"""
import art, asyncio

async def train(name, options):
    model = art.TrainableModel(
        name=name, project="matrix", base_model="art/nano-words", base_path={str(folder)!r}
    )
    await art.train_environment(
        "python:faulty_worlds:" + name, model, environment_options=options,
        backend=art.RemoteBackend({server["url"]!r}, api_key={server["key"]!r}), steps=1,
        groups_per_step=8, group_size=2, eval_scenarios=1, max_tokens=4, max_failed=1.0, learning_rate=1e-4,
    )

for name, options in {TRAINED!r}.items():
    asyncio.run(train(name, options))
"""
    paths = os.pathsep.join([str(ROOT / "src"), str(HERE), str(HERE / "faulty")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = {}
    for name in TRAINED:
        (row,) = (folder / "matrix" / "train" / name / "steps.jsonl").read_text().splitlines()
        found[name] = json.loads(row)
    return found


@pytest.mark.slow
def test_a_run_goes_on_and_its_sheet_has_the_reasons(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["AllFaults"]
    assert row["step"] == 1 and (row["rollouts"], row["failed"], row["unscored"]) == (6, 10, 2)
    reasons = " ".join(row["failures"])
    for words in ("did not answer within 2 s", "SystemExit: 3", "413", "'great'", "context length"):
        assert words in reasons, row["failures"]


@pytest.mark.slow
def test_a_word_as_the_reward_of_a_users_own_rollout_costs_that_rollout(
    rows: dict[str, dict[str, Any]],
) -> None:
    row = rows["WordAsReward"]
    assert row["step"] == 1 and row["failed"] and row["rollouts"] == 16 - row["failed"], row
    assert "the reward of a rollout is 'great', a str, not a number" in " ".join(row["failures"])


@pytest.mark.slow
def test_a_users_own_rollout_that_never_ends_costs_that_rollout(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["HalfHangs"]
    assert row["step"] == 1 and row["failed"] and row["rollouts"] == 16 - row["failed"] > 0, row
    (reason,) = row["failures"]
    assert reason.startswith("EnvironmentTimeoutError") and "a rollout did not end within 15 s" in reason
