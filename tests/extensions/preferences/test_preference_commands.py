"""`art dpo` and `art kto`: a file of lines makes the next step of a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

QUESTION = "respond with yes, no or maybe"


def art(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from art.cli import app; app()", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_files_make_steps(tmp_path: Path) -> None:
    pairs = [{"prompt": QUESTION, "chosen": "maybe", "rejected": word} for word in ("yes", "no")]
    replies = [
        {"prompt": QUESTION, "completion": word, "label": word == "maybe"} for word in ("yes", "no", "maybe")
    ]
    for name, rows in (("pairs", pairs), ("replies", replies)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ("--base-model", "art/nano-games", "--name", "agent", "--learning-rate", "2e-3")
    first = art("dpo", "pairs.jsonl", *common, "--epochs", "2", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "objective/accuracy" in first.stdout and "step 1 of preferences/agent: " in first.stdout
    second = art("kto", "replies.jsonl", *common, "--reference", "1", folder=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "objective/reference_point" in second.stdout and "step 2 of preferences/agent: " in second.stdout
    assert (tmp_path / ".art" / "preferences" / "models" / "agent" / "checkpoints" / "0002").is_dir()


def test_a_wrong_line_and_a_wrong_option_are_named(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b"}\n')
    wrong = art("dpo", "pairs.jsonl", "--base-model", "art/nano-games", folder=tmp_path)
    assert wrong.returncode == 1 and "pairs.jsonl, line 1 has no 'rejected'" in wrong.stderr
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    wrong = art("dpo", "pairs.jsonl", "--base-model", "art/nano-games", "--beta", "0", folder=tmp_path)
    assert wrong.returncode == 1 and "beta is 0.0; it is a finite number above 0" in wrong.stderr
