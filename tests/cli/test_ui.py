"""`art ui`: a process that prints an address, serves the pages behind it, and ends by Ctrl-C."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import art
from art.cli import app
from art.tracking.trajectory_log import append_groups


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["ui", str(tmp_path / "nothing")])
    assert result.exit_code == 2 and "there is no folder" in result.output and "nothing" in result.output


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["ui", str(tmp_path), "--port", str(port)])
    assert result.exit_code == 2 and f"port {port} cannot be used" in result.output


@pytest.mark.slow
def test_the_printed_address_opens_the_pages_and_the_process_ends_by_ctrl_c(tmp_path: Path) -> None:
    log = tmp_path / "games" / "models" / "player" / "trajectories" / "train" / "0001.parquet"
    one = art.Trajectory(messages_and_choices=[{"role": "user", "content": "hello there"}], reward=1.0)
    append_groups(log, [art.TrajectoryGroup([one])])
    command = [str(Path(sys.executable).with_name("art")), "ui", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=\S+", process.stdout.readline())
            assert found is not None
            with httpx.Client(timeout=60) as browser:
                assert browser.get(found[1]).status_code == 401
                assert browser.get(found[0]).status_code == 200
                assert "hello there" in browser.get(f"{found[1]}/runs/-/games/player/train/1/0/0").text
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
            rest = process.stdout.read()
        finally:
            process.kill()
    assert "For another browser: http://127.0.0.1" in rest
