"""The environments of the contract: each kind, the players that the test scripts, and where they run.

Those of other libraries run, with the real ones, in an environment of their own: `make test-all` makes it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_extensions.testing import ToolCalls
from library_programs import PROGRAMS, ROOT, python_of

HERE = Path(__file__).parent
LIBRARIES, VERIFIERS, TASKSETS = ".venv-environments", ".venv-verifiers", ".venv-verifiers-tasksets"
OPENENV, BFCL, NEMO_GYM = ".venv-openenv", ".venv-bfcl", ".venv-nemo-gym"
"""Environments of Python with other libraries, which do not go with each other."""
EVALS = "tests/extensions/environments/test_inspect_evals.py"
TASKSET_TESTS = "tests/extensions/environments/test_verifiers_tasksets.py"
NEMO_GYM_TESTS = "tests/extensions/environments/test_nemo_gym.py"
INSPECT_TASKS = "tests/extensions/environments/programs/inspect_tasks.py"


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
    needs: str = ""
    """The environment of Python whose programs it starts."""
    better: bool = True
    """Whether the good player beats the bad one in each scenario."""
    kind: str = ""
    """The row of the matrix that this case is for: it is trained on. "": of none."""
    is_own: bool = False
    """Whether no other library gives its rewards."""
    compared_by: str = ""
    """The test that compares its rewards with the library's, where this contract does not."""
    curves: tuple[str, ...] = ()
    """Its jobs in `bench/learning/environments.py`; the table has the committed curves that rise."""
    sizes: Mapping[str, int] = field(default_factory=lambda: {"train": 20, "val": 10})
    least: int = 20
    """Scenarios of both splits."""
    scripted: bool = True
    """Whether the players can be scripted; not where a server of ours has to have what was sampled."""

    def order(self, worlds: str, tasks: str) -> dict[str, Any]:
        """worlds: the address of a server of OpenEnv. tasks: the folder of Harbor's tasks."""
        name = self.name.replace("WORLDS", worlds).replace("TASKS", tasks)
        options = {**self.sizes, **self.options}
        return {"name": name, "options": options, "scripted": self.scripted, "learner": self.learner}

    @property
    def learner(self) -> str:
        """The name of the model that is trained on it."""
        return re.sub(r"[^\w.]+", "-", self.kind).strip("-")

    def __str__(self) -> str:
        place = "0.10" if self.apart == OPENENV else ""
        return " ".join(part for part in (self.name, str(self.options or ""), place) if part)


TURNS = frozenset({"turns"})
GUESS = frozenset({"turns", "truncated", "right", "distance"})
GAME = TURNS | {"score", "won", "draw", "not_lost", "invalid"}
CASES = [
    Case(
        name="tic-tac-toe",
        rewards=(-1, 1),
        parts=frozenset({"won", "draw", "invalid", "not_lost"}),
        better=False,
        kind="built-in",
        is_own=True,
    ),
    Case(name="yes-no-maybe", rewards=(0, 1), parts=frozenset(), better=False),
    Case(
        name="gymnasium:worlds:Guess",
        rewards=(-0.5, 1),
        parts=GUESS,
        kind="gymnasium:MODULE:CLASS",
        is_own=True,
        curves=("corners",),
    ),
    Case(name="gymnasium:worlds:OlderGuess", rewards=(-0.5, 1), parts=GUESS),
    Case(
        name="gymnasium:worlds:Guess", options={"max_turns": 2}, rewards=(-0.2, 1), parts=GUESS, better=False
    ),
    Case(name="python:worlds:Echo", rewards=(0, 1), parts=frozenset({"right"}), kind="python:", is_own=True),
    Case(
        name="gymnasium:registered_world:Guess-v0",
        rewards=(-0.5, 1),
        parts=GUESS,
        apart=LIBRARIES,
        kind="gymnasium:ID",
    ),
    Case(
        name="reasoning-gym:letter_counting",
        options={"min_words": 2, "max_words": 4},
        rewards=(0, 1),
        parts=frozenset({"score", "solved", "tagged"}),
        apart=LIBRARIES,
        kind="reasoning-gym:",
        curves=("letter-counting", "needle"),
    ),
    Case(
        name="textarena:TicTacToe-v0",
        rewards=(-1, 1),
        parts=GAME,
        apart=LIBRARIES,
        better=False,
    ),
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
        kind="textarena:",
        curves=("tic-tac-toe",),
    ),
    Case(
        name="verifiers:play-hub",
        rewards=(0, 1),
        parts=frozenset({"exact", "num_turns", "truncated"}),
        apart=VERIFIERS,
        kind="verifiers: (0.1)",
    ),
    Case(
        name="verifiers:play-hub",
        options={"kind": "multi"},
        rewards=(0, 1),
        parts=frozenset({"right", "num_turns", "truncated"}),
        apart=VERIFIERS,
    ),
    Case(
        name="skyrl-gym:gsm8k",
        options={"data": "tests/extensions/environments/programs/sums.jsonl"},
        rewards=(0, 1),
        parts=TURNS | {"truncated", "rewritten"},
        apart=LIBRARIES,
        kind="skyrl-gym:",
        curves=("lookup",),
    ),
    Case(
        name=f"inspect:{INSPECT_TASKS}@say",
        rewards=(0, 1),
        parts=TURNS | {"exact", "truncated"},
        apart=LIBRARIES,
        kind="inspect:",
        curves=("popularity",),
        compared_by="tests/extensions/environments/test_inspect_ai.py::test_the_scores_are_those_of_inspect_itself",
    ),
    Case(
        name="openenv:WORLDS/guess",
        rewards=(-0.5, 1),
        parts=TURNS | {"truncated", "invalid_actions"},
        apart=VERIFIERS,
        kind="openenv: (0.3)",
    ),
    Case(
        name="openenv:WORLDS/guess",
        rewards=(-0.5, 1),
        parts=TURNS | {"truncated", "invalid_actions"},
        apart=OPENENV,
        kind="openenv: (0.10)",
    ),
    Case(
        name="verifiers:say_words",
        options={"harness": "null"},
        rewards=(0, 2),
        parts=frozenset({"length", "truncated"}),
        apart=TASKSETS,
        kind="verifiers: (0.4)",
        compared_by=f"{TASKSET_TESTS}::test_rewards_are_what_verifiers_alone_gives",
        least=6,
        scripted=False,
    ),
    Case(
        name="bfcl:irrelevance",
        rewards=(0, 1),
        parts=TURNS | {"right", "calls"},
        apart=BFCL,
        kind="bfcl:",
        compared_by="tests/extensions/environments/test_bfcl.py::test_rewards_are_what_the_package_s_own_evaluation_gives",
        curves=("tool-calls",),
    ),
    Case(
        name="harbor:TASKS",
        options={"max_turns": 2},
        rewards=(0.25, 1),
        parts=TURNS | {"commands", "malformed", "submitted", "agent_timed_out", "tests/reward"},
        kind="harbor:",
        curves=("coding-agent",),
        compared_by="tests/extensions/harbor/test_trials.py::test_the_solution_and_nothing_give_what_harbor_says",
        sizes={"val": 10},
    ),
    Case(
        name="nemo-gym:mcqa",
        options={
            "python": f"{NEMO_GYM}/bin/python",
            "data": "tests/extensions/environments/programs/choices.jsonl",
        },
        rewards=(0, 1),
        parts=TURNS | {"truncated"},
        needs=NEMO_GYM,
        kind="nemo-gym:",
        compared_by=f"{NEMO_GYM_TESTS}::test_what_the_package_recorded_has_the_same_results_and_rewards_here",
    ),
    Case(
        name="tau2:telecom",
        options={"max_turns": 2},
        rewards=(0, 1),
        parts=TURNS | {"telecom_scorer", "evaluate_required_actions", "env_assertions", "truncated"},
        apart=LIBRARIES,
        kind="tau2:",
        compared_by=f"{EVALS}::test_a_model_that_does_nothing_gets_what_the_package_gives",
        better=False,
    ),
    Case(
        name="agentdojo:workspace",
        options={"max_turns": 2},
        rewards=(0, 1),
        parts=TURNS | {"utility", "truncated"},
        apart=LIBRARIES,
        kind="agentdojo:",
        compared_by=f"{EVALS}::test_a_model_that_does_nothing_gets_what_the_package_gives",
        better=False,
    ),
]


def reply(body: Mapping[str, Any]) -> str | ToolCalls:
    """Plays all the games: model "right" well and "wrong" badly; other games, the first move on offer."""
    texts = [str(message["content"]) for message in body["messages"]]
    good = body["model"] == "right"
    told = texts[-1]
    if body.get("tools"):
        tool = body["tools"][0]["function"]["name"]
        calls = body["messages"][0]["role"] == "user" and not good  # BFCL's right reply has no call
        return ToolCalls([(tool, "{}")]) if calls else "Done."
    if "Linux shell" in texts[0]:
        if len(texts) > 2 or not good:
            return "```bash\nsubmit\n```"
        return "```bash\necho hello > hello.txt\n```"
    if counting := re.search(r'letter "(.)" appear in the text: "(.*)"', told):
        return f"<answer>{counting[2].lower().count(counting[1]) if good else -1}</answer>"
    if number := re.match(r"Add 0 to (\d+)", told):
        return f"#### {number[1] if good else -1}"
    if sum_of := re.match(r"Reply with the letter of the sum of (\d+) and (\d+)", told):
        right = next(
            line for line in told.splitlines() if line.endswith(f": {int(sum_of[1]) + int(sum_of[2])}")
        )
        return f"\\boxed{{{right[0] if good else 'E'}}}"
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


def run_apart(
    order: Mapping[str, Any], seed: int, place: str, program: str = "environment_program.py"
) -> list[dict[str, Any]]:
    programs = str(python_of(place).parent)  # a harness of verifiers is a program that is found by its name
    variables = {
        **(os.environ if place == TASKSETS else {}),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        **{"HOME": os.environ.get("HOME", "/"), "PYTHONHASHSEED": str(seed)},
        **{"PYTHONPATH": f"{ROOT / 'src'}:{HERE}:{HERE / 'faulty'}:{PROGRAMS}", "HF_HUB_OFFLINE": "1"},
    }
    python = str(python_of(place)) if place else sys.executable
    done = subprocess.run(
        [python, "-W", "ignore", str(HERE / program)],
        input=json.dumps(order),
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def write_tasks(folder: Path, count: int = 24) -> str:
    """Writes task folders of Harbor. Returns the folder of all of them."""
    files = {
        "task.toml": "[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
        "tests/test.sh": """#!/bin/bash
reward=0.25
if [ "$(cat /app/hello.txt 2>/dev/null)" = hello ]; then reward=1; fi
echo $reward > /logs/verifier/reward.txt
""",
    }
    for number in range(count):
        files["instruction.md"] = f"Task {number}: write the word hello to the file hello.txt."
        for name, text in files.items():
            path = folder / f"task-{number:02}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return str(folder)
