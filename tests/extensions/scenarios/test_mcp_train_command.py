"""`art mcp train` as it is typed, killed after its first step, and typed again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from art.process import environment
from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either
from art_extensions.testing.mcp_servers.weather.tasks import SYSTEM_PROMPT, quality, scenarios
from starting import StartedProgram
from waiting import eventually

ART = str(Path(sys.executable).with_name("art"))
KEY = "sk-only-for-the-oracle"
TOKEN = "sk-only-for-the-server"
LIMIT_S = 240
SERVER = ("--", sys.executable, "-m", "art_extensions.testing.mcp_servers.weather")


@pytest.fixture(scope="module")
def oracle() -> Iterator[LlmServer]:
    written = [one.to_dict() for one in scenarios(train=8, test=1).train]
    judge, generator = TruthfulJudge(quality), ScriptedGenerator(scenarios=written)
    with LlmServer(either(judge=judge, generator=generator), key=KEY) as server:
        yield server


def living_in(folder: Path) -> set[int]:
    """Processes whose current folder it is, as that of all that a command starts is."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                found.add(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile, or is another user's
    return found


def holds(folder: Path, text: str) -> list[str]:
    """Files in which the text is."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="what is left is looked up in /proc")
def test_killed_after_a_step_it_goes_on(oracle: LlmServer, tmp_path: Path) -> None:
    variables = {environment.JUDGE_API_KEY: KEY, environment.GENERATOR_API_KEY: KEY}
    env = {**os.environ, **variables, "THE_TOKEN": TOKEN}
    command = [
        *(
            ART,
            "mcp",
            "train",
            "--base-model",
            "art/nano-mcp",
            "--name",
            "w",
            "--system-prompt",
            SYSTEM_PROMPT,
        ),
        *("--judge", "truth", "--judge-base-url", oracle.base_url),
        *("--generator", "writer", "--generator-base-url", oracle.base_url),
        *("--num-train", "2", "--num-test", "1", "--eval-group-size", "1", "--difficulty-rollouts", "0"),
        *(
            "--steps",
            "2",
            "--groups-per-step",
            "1",
            "--group-size",
            "2",
            "--max-turns",
            "6",
            "--max-tokens",
            "48",
        ),
        *("--env", "THE_TOKEN", *SERVER),
    ]
    with StartedProgram(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        told = []
        for line in first.stdout:
            told.append(line)
            if line.startswith("step 1/2"):
                break
        started = {child.pid for child in psutil.Process(first.pid).children(recursive=True)}
        assert len(started) >= 4 and started <= living_in(tmp_path), "else none that is left would be seen"
        first.kill()
    assert told and told[-1].startswith("step 1/2"), "".join(told)
    asked = len(oracle.requests)

    again = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert again.returncode == 0, again.stderr[-2000:]
    assert again.stdout.startswith("going on with the run in ") and "step 1/2" not in again.stdout
    assert "step 2/2" in again.stdout and again.stdout.rstrip().endswith("report.md")
    folder = tmp_path / ".art" / "mcp" / "mcp" / "w"
    steps = [json.loads(line)["step"] for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert steps == [1, 2] and json.loads((folder / "report.json").read_text())["step"] == 2
    later = [json.dumps(body["messages"]) for body in oracle.requests[asked:]]
    assert all("<trajectory" in messages for messages in later), "the generator was asked again"
    eventually(lambda: not living_in(tmp_path))
    assert holds(tmp_path, KEY) == holds(tmp_path, TOKEN) == []
