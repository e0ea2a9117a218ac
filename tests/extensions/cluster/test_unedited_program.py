"""A program that knows of no cluster trains on one: `art serve --cluster` has its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.nodes.ray_nodes import HEAD, RayNodes
from typer.testing import CliRunner

from art.cli.main import app
from starting import StartedProgram
from waiting import DEADLINE_S

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, sys
import art

async def play(model):
    client = model.openai_client()
    messages = [{"role": "user", "content": "yes, no or maybe?"}]
    reply = await client.chat.completions.create(
        model=model.get_inference_name(), messages=messages, max_tokens=4, temperature=1.0
    )
    choice = reply.choices[0]
    reward = float(len(choice.message.content or ""))
    return art.Trajectory(messages_and_choices=[*messages, choice], reward=reward)

async def main():
    with art.LocalBackend(path=sys.argv[1]) as backend:
        model = art.TrainableModel(name="player", project="games", base_model="art/nano")
        await model.register(backend)
        group = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(play(model) for _ in range(4))], pbar_desc="play"
        )
        result = await backend.train(model, group, learning_rate=1e-3)
        print("step", result.step)

asyncio.run(main())
"""


def test_the_same_program_trains_on_a_cluster_and_the_commands_show_it(
    in_cluster: RayNodes, tmp_path: Path
) -> None:
    node = in_cluster.add(program_slot=2)
    slot = json.dumps({"resources": {"program_slot": 1}})
    data = tmp_path / "data"
    options = [f"engine={slot}", f"trainer={slot}", f"host={HEAD}", f"shelf={tmp_path}/{{node}}"]
    options = [word for option in options for word in ("--cluster-option", option)]
    serve = [
        sys.executable,
        "-c",
        "from art.cli import app; app()",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(data),
    ]
    serve += ["--cluster", f"ray://{in_cluster.address}", *options]
    with StartedProgram(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and "ART serves" in server.stdout.readline()
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(data)],
                capture_output=True,
                text=True,
                timeout=400,
                env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            )
            assert done.returncode == 0, done.stderr[-3000:]
            assert "step 1" in done.stdout
            shown = CliRunner().invoke(app, ["cluster", "status", "--data-dir", str(data)])
            assert shown.exit_code == 0 and "token asked for" in shown.output
            row = next(line for line in shown.output.splitlines() if line.startswith(node))
            assert row.endswith("up\t2 workers")
            lost = CliRunner().invoke(app, ["cluster", "drain", "127.0.0.99", "--data-dir", str(data)])
            assert lost.exit_code == 2 and node in lost.output
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=DEADLINE_S) == 0


def test_a_local_backend_hands_its_cluster_to_its_server(in_cluster: RayNodes, tmp_path: Path) -> None:
    in_cluster.add(program_slot=2)
    slot = {"resources": {"program_slot": 1}}
    cluster = {
        "address": in_cluster.address,
        "host": HEAD,
        "engine": slot,
        "trainer": slot,
        "shelf": f"{tmp_path}/{{node}}",
    }
    program = PROGRAM.replace("path=sys.argv[1]", f"path=sys.argv[1], cluster={cluster!r}")
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 1" in done.stdout
    log = (tmp_path / "data" / "server" / "logs" / "server.log").read_text()
    assert "is ready on node 127.0.0." in log
