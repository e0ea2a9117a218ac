"""The file from which the pages know the cluster."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from art.errors import DiskError, StorageError
from art_extensions.cluster.cluster_record import ClusterRecord, DrainedNodes
from waiting import until


async def test_the_file_follows_the_cluster_and_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_extensions.cluster.cluster_record._EVERY_S", 0.01)
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
    monkeypatch.setattr("art_extensions.cluster.cluster_record._EVERY_S", 0.001)
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


def test_drained_nodes_are_known_to_the_next_server(tmp_path: Path) -> None:
    drained = DrainedNodes(tmp_path)
    assert list(drained) == []
    for node in ("b", "a", "c"):
        drained.change(node, drained=True)
    drained.change("b", drained=False)
    later = DrainedNodes(tmp_path)
    assert list(later) == ["a", "c"] and "a" in later and "b" not in later


def test_drained_nodes_that_cannot_be_stored_or_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("a file where a folder should be")
    drained = DrainedNodes(tmp_path)
    drained._path = tmp_path / "server" / "drained.json"
    with pytest.raises(DiskError, match="which nodes are drained could not be stored"):
        drained.change("a", drained=True)
    assert "a" not in drained
    (tmp_path / "drained.json").write_text('{"a": 1}')
    with pytest.raises(StorageError, match=r"drained\.json is no list of nodes; remove it"):
        DrainedNodes(tmp_path)
