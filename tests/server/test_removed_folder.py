"""A server that is started in a folder which was removed: libraries that it imports ask for its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="it removes the current folder, and looks at /proc"),
]


def test_a_server_starts_in_a_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    start = 'cd "$1" && rmdir "$1" && exec "$2" -m art.server'
    with subprocess.Popen(
        ["bash", "-c", start, "bash", str(gone), sys.executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            server.stdin.write(json.dumps({"key": "k" * 32, "data_dir": str(tmp_path / "data")}) + "\n")
            server.stdin.flush()
            ready = json.loads(server.stdout.readline())
            assert ready["ready"], ready
            assert os.readlink(f"/proc/{server.pid}/cwd") == "/", "workers begin there, too"
        finally:
            server.stdin.close()
            server.wait(60)
