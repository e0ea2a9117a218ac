"""`art autorl` as it is typed, from the sentence to the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from art.environments.tasks import yes_no_maybe as task
from art.process import environment
from art_extensions.testing import LlmServer, ScriptedGenerator, TruthfulJudge, either

KEY = "sk-only-for-the-oracle"
LIMIT_S = 240


def quality(messages: Sequence[Mapping[str, Any]]) -> float:
    return task.worth(str(messages[-1].get("content") or ""))


@pytest.mark.slow
def test_a_sentence_becomes_a_model_and_a_report(tmp_path: Path) -> None:
    inputs = [text for text in task.phrasings() if "'" not in text]
    generator = ScriptedGenerator(inputs=inputs, rubric="- maybe is the best word")
    env = {**os.environ, environment.JUDGE_API_KEY: KEY, environment.GENERATOR_API_KEY: KEY}
    with LlmServer(either(judge=TruthfulJudge(quality), generator=generator), key=KEY) as oracle:
        command = [
            *(str(Path(sys.executable).with_name("art")), "autorl", "Answer with one of the words."),
            *("--base-model", "art/nano-games", "--system-prompt", "", "--similarity", "1.0"),
            *("--judge", "truth", "--judge-base-url", oracle.base_url),
            *("--generator", "writer", "--generator-base-url", oracle.base_url),
            *("--num-train", "8", "--num-test", "4", "--groups-per-step", "4", "--group-size", "8"),
            *("--epochs", "1", "--learning-rate", "1e-3", "--max-tokens", "4", "--eval-group-size", "2"),
        ]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step 2/2" in done.stdout and done.stdout.rstrip().endswith("report.md")
    folder = tmp_path / ".art" / "autorl" / "autorl" / "autorl"
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(0.0 < row["reward"] < 1.0 for row in steps), "the judge told the attempts apart"
    report = json.loads((folder / "report.json").read_text())
    assert report["step"] == 2 and set(report["inputs"]["train"]).isdisjoint(report["inputs"]["test"])
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert kept == [], "a key stays with whoever gave it"
