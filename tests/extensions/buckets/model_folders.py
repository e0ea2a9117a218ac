"""Folders that look like a model's, and what the tests of storage have in common."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from art_extensions.buckets.store import StorageLimits

QUICK = StorageLimits(attempts=2, pause_s=0.01, requests=1, connect_s=10.0, read_s=30.0, total_s=240.0)
"""Failures are known soon."""


def credentials(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)


def write_step(folder: Path, step: int, weights: bytes | None = None) -> Path:
    """A checkpoint as the trainer leaves it."""
    path = folder / "checkpoints" / f"{step:04d}"
    path.mkdir(parents=True)
    files = {
        "adapter_model.safetensors": weights or f"weights of {step}".encode() * 1000,
        "adapter_config.json": b"{}",
        "optimizer.safetensors": f"moments of {step}".encode(),
        "trainer_state.json": json.dumps({"step": step}).encode(),
    }
    for name, content in files.items():
        (path / name).write_bytes(content)
    entries = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in files.items()
    }
    (path / "manifest.json").write_text(json.dumps({"files": entries}, indent=2))
    (path / "job.json").write_text(json.dumps({"job_id": f"job-{step}"}))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
