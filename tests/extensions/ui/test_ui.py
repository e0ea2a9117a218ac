"""`art ui`: a process that prints an address, serves the pages behind it, and ends by Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
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
from starting import StartedProgram
from waiting import DEADLINE_S


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["ui", str(tmp_path / "nothing")])
    assert result.exit_code == 2 and "there is no folder" in result.output and "nothing" in result.output


def test_the_data_folder_is_named_as_in_other_commands(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for folder in ("mine", "nothing"):
        words = ["ui", "--data-dir", str(tmp_path / folder), "--export", str(tmp_path / f"pages of {folder}")]
        result = CliRunner().invoke(app, words)
        assert ("there is no folder" in result.output) == (folder == "nothing"), result.output


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["ui", str(tmp_path), "--port", str(port)])
    assert result.exit_code == 2 and f"port {port} cannot be used" in result.output


@pytest.mark.slow
def test_the_link_of_a_server_opens_its_pages_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        model = art.TrainableModel(name="player", project="games", base_model="art/nano")
        with caplog.at_level(logging.INFO, logger="art"):
            async with art.LocalBackend(path=tmp_path) as backend:
                await model.register(backend)
                assert model.inference_base_url is not None and model.inference_api_key is not None
                url, key = model.inference_base_url.removesuffix("/v1"), model.inference_api_key
                found = re.findall(r"in a browser: (http://\S+)", caplog.text)
                assert len(found) == 1 and found[0].startswith(f"{url}/ui/?token=")
                assert key not in caplog.text
                monkeypatch.setenv("ART_API_KEY", key)
                command = [str(Path(sys.executable).with_name("art")), "ui", "--url", url]
                process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
                printed, _ = await process.communicate()
                link = re.search(r"http://\S+token=\S+", printed.decode())
                assert process.returncode == 0 and link is not None and key not in printed.decode()
                for address in (found[0], link[0]):
                    async with (
                        httpx.AsyncClient(timeout=60) as browser,
                        httpx.AsyncClient(timeout=DEADLINE_S) as late,
                    ):
                        assert (await browser.get(address)).status_code == 200
                        assert "games/player" in (await browser.get(f"{url}/ui/")).text
                        assert (await late.get(address)).status_code == 401

    asyncio.run(scenario())


def test_the_pages_of_a_server_need_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ART_API_KEY", raising=False)
    result = CliRunner().invoke(app, ["ui", "--url", "http://127.0.0.1:9"])
    assert result.exit_code == 2 and "set ART_API_KEY" in result.output


@pytest.mark.slow
def test_the_printed_address_opens_the_pages_and_the_process_ends_by_ctrl_c(tmp_path: Path) -> None:
    log = tmp_path / "games" / "models" / "player" / "trajectories" / "train" / "0001.parquet"
    one = art.Trajectory(messages_and_choices=[{"role": "user", "content": "hello there"}], reward=1.0)
    append_groups(log, [art.TrajectoryGroup([one])])
    command = [str(Path(sys.executable).with_name("art")), "ui", str(tmp_path)]
    with StartedProgram(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=\S+", process.stdout.readline())
            assert found is not None
            with httpx.Client(timeout=60) as browser:
                assert browser.get(found[1]).status_code == 401
                assert browser.get(found[0]).status_code == 200
                assert "hello there" in browser.get(f"{found[1]}/runs/-/games/player/train/1/0/0").text
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=DEADLINE_S) == 0
            rest = process.stdout.read()
        finally:
            process.kill()
    assert "For another browser: http://127.0.0.1" in rest
