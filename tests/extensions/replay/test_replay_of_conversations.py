"""Steps that learned from examples and from preferences are done again, to the bit, or a record is named."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result
from replayed_run import BY_CONVERSATIONS, KEY, make_run_of_conversations
from typer.testing import CliRunner

from art.cli.main import app

pytestmark = [pytest.mark.slow, pytest.mark.extension]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned") / "run"
    asyncio.run(make_run_of_conversations(folder))
    return folder


def replay(data_dir: Path, step: int, *options: str) -> Result:
    return CliRunner().invoke(app, ["replay", KEY, str(step), "--data-dir", str(data_dir), *options])


def digests(data_dir: Path) -> dict[str, str]:
    files = (path for path in data_dir.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("step", BY_CONVERSATIONS, ids=BY_CONVERSATIONS.get)
def test_each_kind_is_bit_equal_and_the_run_untouched(learned: Path, step: int) -> None:
    before = digests(learned)
    done = replay(learned, step)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"step {step} of {KEY}: bit-equal, 168 tensors")
    assert digests(learned) == before


def test_another_precision_is_told_with_its_effect(learned: Path) -> None:
    done = replay(learned, 2, "--dtype", "float64", "--json")
    found = json.loads(done.output)
    assert done.exit_code == 0 and 0 < found["update_error"] < 1e-2 and not found["bit_equal"]


@pytest.mark.parametrize("options", [("--without", "0.0"), ("--algorithm", "grpo"), ("--shares",)])
def test_what_is_of_rollouts_is_refused(learned: Path, options: tuple[str, ...]) -> None:
    done = replay(learned, 1, *options)
    assert done.exit_code == 2 and "learned from conversations" in done.output
    assert options[0] in done.output and "leave it out" in done.output


def test_a_request_without_its_conversations_is_named(learned: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    kept = run / "games" / "models" / "player" / "steps" / "0002" / "request.json.gz"
    cut = "UPDATE jobs SET request = json_remove(request, '$.conversations', '$.batches') WHERE step = 2"
    with closing(sqlite3.connect(run / "server" / "jobs.sqlite")) as jobs:
        assert jobs.execute(cut).rowcount == 1
        jobs.commit()
    assert "bit-equal" in replay(run, 2).output, "the server kept the request"
    kept.unlink()
    done = replay(run, 2)
    assert done.exit_code == 2 and "not its groups or conversations" in done.output
    assert "--keep-replay" in done.output


def test_a_sample_that_a_conversation_names_and_nobody_has_is_told(learned: Path, tmp_path: Path) -> None:
    """Its message is rendered: by chance to the same ids, or to others."""
    run = Path(shutil.copytree(learned, tmp_path / "run"))
    with closing(sqlite3.connect(run / "server" / "ledger.sqlite")) as ledger:
        assert ledger.execute("DELETE FROM samples").rowcount
        ledger.commit()
    done = replay(run, 1)
    assert done.exit_code in (0, 1) and "has no sample" in done.output and "was rendered" in done.output
