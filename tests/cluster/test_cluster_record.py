"""The file from which the pages know the cluster."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from art.cluster.cluster_record import ClusterRecord
from waiting import until


async def test_the_file_follows_the_cluster_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art.cluster.cluster_record._EVERY_S", 0.01)
    health = {"nodes": ["a"], "workers": []}
    record, path = ClusterRecord(tmp_path, lambda: health), tmp_path / "cluster.json"
    await until(path.exists)
    first = json.loads(path.read_bytes())
    assert {**health, "written_at": first["written_at"]} == first
    assert path.stat().st_mode & 0o077 == 0
    health["nodes"] = ["a", "b"]
    await until(lambda: json.loads(path.read_bytes())["nodes"] == ["a", "b"])
    assert json.loads(path.read_bytes())["written_at"] > first["written_at"]
    await record.close()
    assert not path.exists()


async def test_a_folder_that_takes_no_file_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("art.cluster.cluster_record._EVERY_S", 0.001)
    (tmp_path / "server").write_text("no folder")
    looked: list[int] = []

    def read_health() -> dict[str, int]:
        looked.append(1)
        return {}

    with caplog.at_level(logging.WARNING):
        record = ClusterRecord(tmp_path / "server", read_health)
        await until(lambda: len(looked) > 5)
        await record.close()
    assert [one.getMessage()[:35] for one in caplog.records] == ["the pages do not see the cluster: /"[:35]]
