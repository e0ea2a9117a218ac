"""`art models`, and the same in Python: a folder, and the server that runs in it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import art
from art.cli import app
from art.errors import NotFoundError
from art.server.checkpoints.checkpoints import JobNote
from art.server.checkpoints.registered_models import RegisteredModels
from art.server.data_folder import DataLayout
from art.server.ledger.ledger import Ledger
from art.tracking.model_files import append_history_row
from art.wire.jobs import BalanceSheet, TrainResultInfo
from art.wire.models import RegisterRequest

pytestmark = pytest.mark.slow

REWARDS = {1: 0.25, 2: 0.5}


@pytest.fixture
async def data_dir(tmp_path: Path) -> Path:
    """Two trained models of one name, and one without a checkpoint."""
    folder = tmp_path / "data"
    known = RegisteredModels(DataLayout(folder))
    for project, name in (("games", "player"), ("mail", "player"), ("games", "fresh")):
        request = RegisterRequest(project=project, name=name, base_model="art/nano-games")
        checkpoints = known.checkpoints(known.register(request, "art/nano-games"))
        for step, reward in REWARDS.items() if name == "player" else ():
            saving = checkpoints.fresh_folder(step)
            saving.mkdir()
            (saving / "adapter_model.safetensors").write_bytes(bytes(1_500_000))
            result = TrainResultInfo(step=step, metrics={}, sheet=BalanceSheet())
            checkpoints.commit(step, JobNote(job_id=f"j{step}", result=result, reward=reward))
        append_history_row(folder / project / "models" / name / "history.jsonl", {"step": 1})
    await Ledger(folder / "server" / "ledger.sqlite").close()
    return folder


def run(*words: str, **variables: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["models", *words], env={"COLUMNS": "160", **variables})
    return done.exit_code, done.stdout, done.stderr


def test_a_folder_is_listed_without_a_server(data_dir: Path) -> None:
    code, table, _ = run("list", "--data-dir", str(data_dir))
    row = next(line for line in table.splitlines() if line.startswith("mail/player")).split()
    assert code == 0 and row[:7] == ["mail/player", "art/nano-games", "2", "2", "0.5", "3.0", "MB"]
    code, listed, _ = run("list", "--json", "--data-dir", str(data_dir))
    assert [(one["name"], one["last_reward"]) for one in json.loads(listed)] == [
        ("fresh", None),
        ("player", 0.5),
        ("player", 0.5),
    ]
    assert not (data_dir / "server" / "lock").exists()

    code, shown, _ = run("show", "mail/player", "--data-dir", str(data_dir))
    assert code == 0 and "step 1: 0.25, step 2: 0.5" in shown and "art chat mail/player" in shown
    assert "checkpoints:  none" in run("show", "fresh", "--data-dir", str(data_dir))[1]
    code, _, said = run("show", "player", "--data-dir", str(data_dir))
    assert code == 1 and "in several projects: games/player, mail/player" in said
    code, _, said = run("show", "mail/plaier", "--data-dir", str(data_dir))
    assert code == 1 and "did you mean 'mail/player'?" in said
    # The home says where GGUF files are converted to, which the list names too.
    code, listed, said = run("list", "--data-dir", str(data_dir / "none"), HOME=str(data_dir))
    assert code == 0 and not listed and "No models in" in said


def test_the_card_of_a_base_is_printed_and_a_base_without_one_says_where_it_is(tmp_path: Path) -> None:
    code, card, _ = run("card", "art/nano-words")
    first = card.split("\n\n")[1]
    assert code == 0 and card.startswith("# art/nano-words\n") and "A base for small tasks" in first
    assert "art/smollm2" in first, "for what it is not, at once"
    (tmp_path / "README.md").write_text("# mine\n")
    assert run("card", str(tmp_path))[1] == "# mine\n"
    for name, told in (
        ("Qwen/Qwen3-0.6B", "https://huggingface.co/Qwen/Qwen3-0.6B"),
        ("art/nano-wrds", "did you mean 'art/nano-words'?"),
        ("art/smollm2", "`art audit-model art/smollm2` makes a folder of it"),
    ):
        code, _, said = run("card", name, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
        assert code == 2 and told in said.replace("\n", " "), said


def test_a_model_is_deleted_only_with_yes(data_dir: Path) -> None:
    where, folder = ("--data-dir", str(data_dir)), data_dir / "mail" / "models" / "player"
    code, said, _ = run("delete", "mail/player", *where)
    assert code == 0 and said == "Would delete mail/player: 2 checkpoints, 3.0 MB. Add --yes to delete it.\n"
    assert len(list((folder / "checkpoints").iterdir())) == 2

    command = [str(Path(sys.executable).with_name("art")), "models", "delete", "mail/player"]
    said = subprocess.run(
        [*command, "--logs", "--yes", *where], capture_output=True, text=True, timeout=240, check=True
    ).stdout
    assert said == "Deleted mail/player: 2 checkpoints, 3.0 MB, and its logs.\n"
    assert not (folder / "checkpoints").exists() and not (folder / "history.jsonl").exists()
    assert "mail/player" not in run("list", *where)[1]
    assert (data_dir / "games" / "models" / "player" / "history.jsonl").exists()
    assert run("delete", "mail/player", "--yes", *where)[0] == 1


async def test_the_same_in_python_and_of_a_server_that_runs(data_dir: Path) -> None:
    async with art.LocalBackend(path=data_dir) as backend:
        listed = await backend.list_models()
        assert [(one.key, one.step, one.last_reward) for one in listed] == [
            ("games/fresh", 0, None),
            ("games/player", 2, 0.5),
            ("mail/player", 2, 0.5),
        ]
        assert listed[1].rewards == REWARDS and listed[1].size_bytes and listed[1].size_bytes > 3_000_000
        url, key = await backend._address()

        assert "mail/player" in (await asyncio.to_thread(run, "list", "--url", url, ART_API_KEY=key))[1]
        code, _, said = await asyncio.to_thread(run, "list", "--url", url, ART_API_KEY="")
        assert code == 2 and "set ART_API_KEY" in said
        assert (await asyncio.to_thread(run, "list", "--url", url, ART_API_KEY="wrong"))[0] == 1
        code, said, _ = await asyncio.to_thread(
            run, "delete", "mail/player", "--yes", "--url", url, ART_API_KEY=key
        )
        assert code == 0 and "Deleted mail/player" in said
        # A command on the folder of a running server goes through that server.
        assert (await asyncio.to_thread(run, "delete", "fresh", "--yes", "--data-dir", str(data_dir)))[0] == 0

        player = art.TrainableModel(name="player", project="games", base_model="art/nano-games")
        assert (await backend.delete_model(player, dry_run=True)).key == "games/player"
        assert [one.key for one in await backend.list_models()] == ["games/player"]
        assert (await backend.delete_model(player)).checkpoints == [1, 2]
        assert await backend.list_models() == []
        with pytest.raises(NotFoundError, match="no model 'games/player' is registered"):
            await backend.delete_model("games/player")
    assert (data_dir / "games" / "models" / "player" / "history.jsonl").exists()
