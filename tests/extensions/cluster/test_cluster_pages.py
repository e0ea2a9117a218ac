"""The page of now beside a real Ray: its nodes, the workers on them, their leases."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from bench.nodes.ray_nodes import ECHO_FOLDER, HEAD, RayNodes
from made_run import made_run
from starlette.testclient import TestClient

from art.process.files import take_lock
from art.process.worker import WorkerSpec, module_command
from art.server.cluster_settings import ClusterSettings
from art_extensions.cluster.launcher import ClusterLauncher
from art_extensions.ui.app import RunPages
from waiting import until

pytestmark = pytest.mark.slow


def live_rows(root: Path, name: str) -> list[list[str]]:
    pages = RunPages(root)
    try:
        found = json.loads(TestClient(pages.app()).get("/live.json").text)
    finally:
        pages.reader.close()
    return [row["cells"] for row in found[name]]


async def test_the_page_shows_where_a_worker_runs(
    in_cluster: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ECHO_FOLDER), prepend=os.pathsep)
    address = in_cluster.add(cpus=4, page_slot=1)
    made_run(tmp_path)
    lock = take_lock(tmp_path / "server" / "lock")
    assert lock is not None
    settings = ClusterSettings.model_validate(
        {
            "address": in_cluster.address,
            "host": HEAD,
            "shelf": str(tmp_path / "{node}"),
            "engine": {"resources": {"page_slot": 1}},
        }
    )
    launcher = await ClusterLauncher.start(settings, tmp_path / "server", tmp_path / "logs")
    try:
        spec = WorkerSpec(
            name="engine-echo",
            command=module_command("echo_worker"),
            config={"behaviour": "serve"},
            log_path=tmp_path / "echo.log",
        )
        worker = await launcher.launch(spec)
        await until(lambda: live_rows(tmp_path, "placements"))
        (placed,) = live_rows(tmp_path, "placements")
        assert placed[:2] == ["engine-echo", address] and placed[3].endswith(" ago")
        assert [row for row in live_rows(tmp_path, "nodes") if row[0] == address] == [
            [address, "up", "4", "0", "1"]
        ]
        await worker.stop()
        await until(lambda: not live_rows(tmp_path, "placements"))
    finally:
        await launcher.close()
        os.close(lock)
    assert live_rows(tmp_path, "nodes") == []
