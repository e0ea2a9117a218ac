"""A real S3 server (moto's, over HTTP), and a model's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_folders import credentials, write_step

from waiting import DEADLINE_S


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment as a user sets it; an empty server at that address."""
    credentials(monkeypatch, s3_server)
    import httpx

    httpx.post(f"{s3_server}/moto-api/reset", trust_env=False, timeout=DEADLINE_S)
    return s3_server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder with two steps, a history and what must not leave this machine."""
    folder = tmp_path / "here" / "games" / "models" / "agent"
    for step in (0, 1):
        write_step(folder, step)
    (folder / "history.jsonl").write_text('{"step": 1}\n')
    (folder / "registration.json").write_text("{}")
    (folder / "model.json").write_text(json.dumps({"name": "agent", "inference_api_key": "sk-secret"}))
    (folder / "trajectories" / "train").mkdir(parents=True)
    (folder / "trajectories" / "train" / "0001.parquet").write_bytes(b"PAR1")
    (folder / ".hidden").write_text("no")
    (folder / "checkpoints" / ".0002.saving").mkdir()
    return folder
