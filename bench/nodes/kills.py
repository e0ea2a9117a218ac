"""Runs of tic-tac-toe that somebody disturbs: processes and nodes are killed at random moments.

    python -m bench kills                       50 kills on a Ray cluster of this machine (about 15 minutes)
    python -m bench.nodes.kills --kills 6 --local     the same without a cluster: engine, trainer and server

Each kill is a SIGKILL, of a kind and after a wait that the seed draws: of an engine's node, the trainer's
node, a rank of the trainer alone, the placer, the server with its gateway, and the head node with the
whole cluster. A dead node is replaced by one with another address. The program (`kill_program.py`) has no
line for any of this. Kills begin once the server has served. Counted: rollouts that failed, steps that were
trained twice or not at all, and runs whose last adapter differs in a byte from that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.nodes.kill_program import NAME, PROJECT
from bench.nodes.ray_nodes import RayNodes, ray_nodes
from bench.rows import Row, write_rows

LOCAL_KINDS = ("engine", "trainer", "server")
CLUSTER_KINDS = ("engine node", "trainer node", "rank", "placer", "server", "head")
MOST_RUN_SECONDS = 1800
NODES, NODE_CPUS = 3, 4
"""A worker takes one: any two nodes have room for two engines and two ranks on one node."""


@dataclass
class Outcome:
    """What became of one run."""

    rollouts: int = 0
    failed: int = 0
    steps: list[int] = field(default_factory=list)
    digest: str = ""
    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Victims:
    """The processes of a run, found by what the server says of itself and by their command lines."""

    def __init__(self, folder: Path, program: psutil.Process) -> None:
        self._folder, self._program = folder, program

    def pid(self, module: str) -> int | None:
        """Returns a process of the program or of its children that runs a module."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in self._program.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if module in one.cmdline():
                        return one.pid
        return None

    def workers(self) -> list[dict[str, Any]]:
        """Returns the workers that serve, as the server's health says; none while there is no server."""
        try:
            at = json.loads((self._folder / "server" / "address.json").read_text())
            headers = {"Authorization": f"Bearer {at['key']}"}
            health = f"http://{at['host']}:{at['port']}/health"
            reply = httpx.get(health, headers=headers, timeout=5.0, trust_env=False).json()
        except (OSError, ValueError, httpx.HTTPError):
            return []
        rows = (reply.get("cluster") or {}).get("workers", [])
        return [row for row in rows if row["pid"]]  # one that starts has none, and 0 is this process's group


def strike(kind: str, victims: Victims, nodes: RayNodes | None) -> bool:
    """Kills what the kind names. Returns False when there is none of it at the moment."""
    if kind == "head":
        assert nodes is not None
        nodes.restart_head()
        for _ in range(NODES):
            nodes.add(cpus=NODE_CPUS)
        return True
    if kind.endswith(" node"):
        assert nodes is not None
        named = [one["node"] for one in victims.workers() if one["name"].startswith(kind.split()[0])]
        there = [node for node in named if node in nodes.alive]
        if not there:
            return False
        nodes.kill(there[0])
        nodes.add(cpus=NODE_CPUS)
        return True
    if kind == "rank":
        pids = [one["pid"] for one in victims.workers() if one["name"].startswith("trainer")]
        pid = pids[-1] if pids else None
    else:
        module = {
            "engine": "art.engine.builtin.worker",
            "trainer": "art.training.worker",
            "placer": "art_extensions.cluster.placer",
            "server": "art.server",
        }[kind]
        pid = victims.pid(module)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def run(
    folder: Path,
    arguments: Sequence[str],
    *,
    nodes: RayNodes | None,
    kinds: Sequence[str],
    dice: random.Random,
    most_kills: int,
    pause: float,
) -> Outcome:
    """One run of the program to its end, disturbed `most_kills` times at most."""
    folder.mkdir(parents=True)
    outcome, begun, served = Outcome(), time.monotonic(), False
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **(nodes.environment if nodes else {})}
    command = [sys.executable, "-m", "bench.nodes.kill_program", "--path", str(folder), *arguments]
    log = folder / "program.log"
    with log.open("wb") as told, (folder / "lines.jsonl").open("w+") as lines:
        program = subprocess.Popen(command, stdout=lines, stderr=told, env=variables)
        victims = Victims(folder, psutil.Process(program.pid))
        while program.poll() is None:
            if time.monotonic() - begun > MOST_RUN_SECONDS:
                program.kill()
                raise RuntimeError(
                    f"a run took over {MOST_RUN_SECONDS} s after {dict(outcome.kills)}; see {log}"
                )
            until = time.monotonic() + dice.expovariate(1 / pause)
            while time.monotonic() < until and program.poll() is None:
                time.sleep(0.05)
            # Before that, nothing was sampled that could be lost.
            served = served or (folder / "server" / "address.json").exists()
            if served and program.poll() is None and outcome.kills.total() < most_kills:
                kind = dice.choice(kinds)
                if strike(kind, victims, nodes):
                    outcome.kills[kind] += 1
                    print(f"  {time.monotonic() - begun:6.1f} s  killed: {kind}", flush=True)
        if program.returncode:
            raise RuntimeError(f"the program ended with {program.returncode}:\n{log.read_text()[-3000:]}")
        lines.seek(0)
        for line in map(json.loads, lines):
            outcome.rollouts += line["rollouts"]
            outcome.failed += line["failed"]
            outcome.steps.append(line["step"])
    outcome.seconds = time.monotonic() - begun
    outcome.digest = last_adapter(folder)
    return outcome


def last_adapter(folder: Path) -> str:
    """Returns the SHA-256 of the newest adapter's weights."""
    checkpoints = folder / PROJECT / "models" / NAME / "checkpoints"
    newest = max((one for one in checkpoints.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    weights = newest / "adapter_model.safetensors"
    return f"{int(newest.name)}:{hashlib.sha256(weights.read_bytes()).hexdigest()}"


def compare(outcomes: Sequence[Outcome], calm: Outcome, steps: int) -> list[Row]:
    """Returns the rows of all disturbed runs."""
    kills = sum((one.kills for one in outcomes), Counter[str]())
    print("kills:", ", ".join(f"{count} of {kind}" for kind, count in sorted(kills.items())))
    twice = sum(one.steps != list(range(1, steps + 1)) for one in outcomes)
    return [
        Row(name="kills", ours=kills.total(), unit="kills"),
        Row(name="rollouts", ours=sum(one.rollouts for one in outcomes), unit="rollouts"),
        Row(
            name="rollouts that failed",
            ours=sum(one.failed for one in outcomes),
            unit="rollouts",
            goal=0,
            at_most=True,
        ),
        Row(name="runs with a step twice or not at all", ours=twice, unit="runs", goal=0, at_most=True),
        Row(
            name="runs whose last adapter differs from the undisturbed run's",
            ours=sum(one.digest != calm.digest for one in outcomes),
            unit="runs",
            goal=0,
            at_most=True,
        ),
        Row(
            name="seconds of a disturbed run, beside the undisturbed one",
            ours=sum(one.seconds for one in outcomes) / len(outcomes),
            peer=calm.seconds,
            unit="s",
        ),
    ]


def measure(options: argparse.Namespace, folder: Path, nodes: RayNodes | None) -> list[Row]:
    """The undisturbed run, then disturbed ones until there were enough kills."""
    where = ["--cluster", nodes.address] if nodes is not None else []
    ranks = options.ranks or (1 if nodes is None else 2)
    arguments = [*where, "--steps", str(options.steps), "--ranks", str(ranks)]
    kinds = options.kinds or (LOCAL_KINDS if nodes is None else CLUSTER_KINDS)
    dice = random.Random(options.seed)

    def once(name: str, most: int) -> Outcome:
        print(f"run {name}", flush=True)
        done = run(
            folder / name,
            arguments,
            nodes=nodes,
            kinds=kinds,
            dice=dice,
            most_kills=most,
            pause=options.pause,
        )
        print(
            f"  {done.seconds:.0f} s, {done.failed} of {done.rollouts} rollouts failed, {done.digest[:14]}",
            flush=True,
        )
        return done

    calm, outcomes, left = once("calm", 0), [], options.kills
    while left > 0:
        outcomes.append(once(f"disturbed-{len(outcomes)}", left))
        left -= outcomes[-1].kills.total()
    return compare(outcomes, calm, options.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=12, help="of each run")
    parser.add_argument("--ranks", type=int, help="of the trainer; default: 2 on a cluster, else 1")
    parser.add_argument("--pause", type=float, default=12.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", help="what is killed; default: everything")
    parser.add_argument("--local", action="store_true", help="without a cluster")
    parser.add_argument("--keep", type=Path, help="a new folder that the runs are left in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="art-kills-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.local:
            write_rows("kills_local", measure(options, folder, None))
            return
        with ray_nodes(folder) as nodes:
            for _ in range(NODES):
                nodes.add(cpus=NODE_CPUS)
            write_rows("kills", measure(options, folder, nodes))


if __name__ == "__main__":
    main()
