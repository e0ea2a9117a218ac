"""The loop that every page shows makes exactly its steps and logs each once, killed while it trains."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, os, signal, sys
import art
from art.client.http.connection import model_path
from art.wire.models import ModelInfo

folder, base, deadly = sys.argv[1:]
OPTIONS = {name: {"options": {"threads": 1}} for name in ("engine", "trainer")}


async def die_when_the_job_is_accepted(backend, model):
    while not (await backend._connection.call("GET", model_path(model), ModelInfo)).unfinished_jobs:
        await asyncio.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


async def rollout(model, number):
    client = model.openai_client()
    messages = [{"role": "user", "content": "hi"}]
    name = model.get_inference_name()
    reply = await client.chat.completions.create(model=name, messages=messages, max_tokens=4)
    return art.Trajectory(messages_and_choices=[*messages, reply.choices[0]], reward=number)


async def main():
    model = art.TrainableModel(
        name="agent", project="games", base_model=base, base_path=folder, report_metrics=[]
    )
    async with art.LocalBackend(path=folder, server_options=OPTIONS) as backend:
        await model.register(backend)
        for step in range(await model.get_step(), 2):
            groups = await art.gather_trajectory_groups(
                [art.TrajectoryGroup(rollout(model, number) for number in range(2))], pbar_desc=None
            )
            if deadly == "deadly":
                task = asyncio.create_task(die_when_the_job_is_accepted(backend, model))
            await model.train(groups)
        print(await model.get_step(), flush=True)


asyncio.run(main())
"""


def test_a_loop_that_is_killed_while_it_trains_makes_its_steps(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "art"
    program = [sys.executable, "-c", PROGRAM, str(folder), str(base)]
    killed = subprocess.run([*program, "deadly"], capture_output=True, text=True, timeout=2 * DEADLINE_S)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run([*program, ""], capture_output=True, text=True, timeout=2 * DEADLINE_S)
    assert done.stdout == "2\n", done.stderr
    home = folder / "games" / "models" / "agent"
    rows = [json.loads(line) for line in (home / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "data/sheet/started_rollouts" in row] == [1, 2], rows
    assert sorted(file.stem for file in home.glob("trajectories/train/*.parquet")) == ["0001", "0002"]
    assert not list(home.glob("under_way/*"))
    private = {one: oct(one.lstat().st_mode) for one in (folder, *folder.rglob("*"))}
    assert not {one: mode for one, mode in private.items() if not mode.endswith("00")}, "for nobody else"
