from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from art_extensions.testing import LlmServer, TruthfulJudge

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HEAVY = [
    "torch",
    "transformers",
    "vllm",
    "litellm",
    "wandb",
    "starlette",
    "numpy",
    "openai",
    "httpx",
    "pydantic",
    "rich",
    "polars",
    "fsspec",
]


def run(code: str, *, python: str = sys.executable) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_importing_art_loads_nothing_prints_nothing_and_changes_no_environment():
    told = json.loads(
        run(
            "import os, sys, json, warnings\nbefore, filters = dict(os.environ), list(warnings.filters)\n"
            "import art\n"
            f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
            "print(json.dumps([heavy, dict(os.environ) == before, warnings.filters == filters]))"
        )
    )
    assert told == [[], True, True]


def test_every_public_name_is_loaded_on_first_use_and_stays_light():
    code = (
        "import sys, art\n"
        "for name in art.__all__: getattr(art, name)\n"
        "print([n for n in ('torch', 'transformers', 'numpy', 'starlette', 'yaml') if n in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_vocabulary_without_openai():
    code = "import sys, art; art.Trajectory(reward=1.0); art.TrainConfig(); print('openai' in sys.modules)"
    assert run(code).strip() == "False"


def test_unknown_name_lists_the_known():
    import art

    with pytest.raises(AttributeError, match="TrainableModel"):
        art.TrainableModle  # noqa: B018


def test_import_paths_that_users_know():
    import art
    from art.client.backends.local_backend import LocalBackend
    from art.gather import GatherContext, get_gather_context, set_gather_context
    from art.trajectories import History, PydanticException, Trajectory, TrajectoryGroup, get_messages
    from art.types import Choice, Message, Messages, MessagesAndChoices, Tools, TrainConfig, TrainResult

    assert art.LocalBackend is LocalBackend and art.Trajectory is Trajectory
    assert all(
        (GatherContext, get_gather_context, set_gather_context, History, PydanticException, TrajectoryGroup)
    )
    assert all((get_messages, Choice, Message, Messages, MessagesAndChoices, Tools, TrainConfig, TrainResult))


def test_a_judged_loop_loads_nothing_heavy_while_it_runs(tmp_path):
    """With a judge whose price nobody knows, where litellm is installed and takes for ever to load."""
    stub = tmp_path / "installed" / "litellm"
    stub.mkdir(parents=True)
    stub.joinpath("__init__.py").write_text("raise AssertionError('litellm was loaded')")
    said, judge = count(1), TruthfulJudge(lambda messages: float(messages[-1]["content"]))

    def answer(body):
        return next(said) / 10 if body["model"] == "player" else judge(body)

    with LlmServer(answer) as server:
        done = subprocess.run(
            [sys.executable, HERE / "client" / "programs" / "judged_loop.py", server.base_url, server.key],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": f"{HERE / 'promises' / 'watched_imports'}{os.pathsep}{stub.parent}",
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[0.1, 0.2, 0.3]", "[0.4, 0.5, 0.6]"]
    assert "stalled by" not in done.stderr and "litellm was loaded" not in done.stderr


def test_the_watch_sees_what_is_loaded_under_a_running_loop():
    code = (
        "import asyncio, fsspec\n"
        "async def main(): import polars; await asyncio.to_thread(__import__, 'wandb')\n"
        "asyncio.run(main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE / "promises" / "watched_imports")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert "stalled by polars" in done.stderr
    assert "stalled by fsspec" not in done.stderr and "stalled by wandb" not in done.stderr
