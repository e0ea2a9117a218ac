"""A real server on a real disk without room."""

from __future__ import annotations

from pathlib import Path

import pytest
from server_process import ServerProcess, running_server

from waiting import DEADLINE_S

pytestmark = pytest.mark.slow


def message(reply: object) -> str:
    assert reply.status_code == 507, reply.text  # type: ignore[attr-defined]
    error = reply.json()["error"]  # type: ignore[attr-defined]
    assert error["code"] == "disk_error"
    return str(error["message"])


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
        while True:
            filler.write(b"x" * 4096)


def refused_chat(server: ServerProcess) -> str:
    """The log of SQLite has some room left: chat until it is used up."""
    for _ in range(500):
        reply = server.chat(text="hello " * 60)
        if reply.status_code != 200:
            return message(reply)
    raise AssertionError("every chat was written down on a full disk")


@pytest.mark.parametrize("small_disk", ["16m"], indirect=True)
def test_every_answer_names_the_full_disk_and_all_goes_on_afterwards(small_disk: Path, base: Path) -> None:
    with running_server(small_disk / "data", base) as server:
        server.train("first")
        job = server.job("second")
        kept = server.choice()["sample_id"]
        folder = small_disk / "data" / "games" / "models" / "player" / "checkpoints"
        before = {path.name for path in folder.iterdir()}
        server.submit(job)
        server.workers()["trainer"].suspend()
        fill(small_disk / "filler")
        server.workers()["trainer"].resume()
        last = server.events("second")[-1]
        assert last["type"] == "result" or "the disk is full" in last["error"], last
        if last["type"] == "error":
            assert last["error_code"] == "DiskError"
            assert {path.name for path in folder.iterdir()} == before, "nothing of it is left"
        assert "the disk is full" in refused_chat(server)
        other = server.http.post(
            "/art/models",
            json={"project": "games", "name": "other", "base_model": str(base), "lora": {"r": 4, "alpha": 8}},
            timeout=DEADLINE_S,
        )
        assert "the disk is full" in message(other)
        (small_disk / "filler").unlink()
        assert server.choice()["sample_id"]
        assert server.http.get(f"/v1/samples/{kept}").status_code == 200
        step = server.model()["step"]
        assert server.train("third")["step"] == step + 1
        assert not [path for path in folder.iterdir() if path.name.endswith((".partial", ".saving"))]
