"""Tinker's API before a server of its own process, which samples with a real vLLM: `art tinker --server`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from statistics import fmean

import pytest
from test_tinker_learns import run_guide
from tinker_service import ROOT, serving, with_sdk

from art.process.resources import find_free_tcp_port
from waiting import DEADLINE_S, eventually

KEY = "a-key-of-the-server-below"
pytestmark = [*with_sdk, pytest.mark.vllm]


@contextmanager
def vllm_server(data: Path) -> Iterator[str]:
    """The address of `art serve`, whose engine is vLLM."""
    port, log = find_free_tcp_port(), data / "serve.log"
    data.mkdir()
    art = str(Path(sys.executable).with_name("art"))
    options = [f"environment={ROOT / '.venv-vllm'}", "threads=1"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [art, "serve", "--engine", "vllm", "--data-dir", str(data), "--port", str(port)]
            + [word for option in options for word in ("--engine-option", option)],
            stdout=output,
            stderr=output,
            env={**environ, "ART_API_KEY": KEY},
        )
    try:
        eventually(lambda: b"ART serves" in log.read_bytes())
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(DEADLINE_S)


def test_the_program_of_the_guide_learns_with_vllm(tmp_path: Path) -> None:
    with (
        vllm_server(tmp_path / "server") as address,
        serving(tmp_path / "data", "--server", address, ART_API_KEY=KEY) as service,
    ):
        rewards = run_guide(service)
    assert rewards[0] < 0.6 and fmean(rewards[-3:]) > 0.8
    assert (tmp_path / "server" / "tinker" / "models").is_dir(), "the runs are models of the server below"
