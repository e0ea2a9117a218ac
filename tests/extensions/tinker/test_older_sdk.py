"""Older releases of the real client: 0.16 sends and takes JSON, 0.20 protobuf where it is told to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tinker_fixtures import DONE, PROGRAMS, TORCH, started
from tinker_service import PYTHON, Service, with_sdk

RELEASES = (Path(__file__).parent / "older_releases.txt").read_text().split()
pytestmark = with_sdk


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with started(tmp_path_factory.mktemp("older")) as made:
        yield made


@pytest.mark.parametrize("release", RELEASES)
def test_an_older_client_trains_samples_downloads_and_ends(service: Service, release: str) -> None:
    # The SDK's environment has no torch; the older release stands before the newer one.
    path = os.pathsep.join((str(PYTHON.parents[1] / "older" / release), TORCH))
    done = subprocess.run(
        [str(PYTHON), "-W", "ignore", str(PROGRAMS / "older_client.py")],
        env={**service.variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode in DONE and done.stdout, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    first, second = told["scored"]
    assert told["trained"] == told["loaded"] == told["custom"] == told["scored"] != told["after"]
    assert {*first} == {"logprobs", "elementwise_loss"} and first["logprobs"][:2] == ["float32", [5]]
    assert first["elementwise_loss"][2][:2] == [0.0, 0.0]
    assert second["elementwise_loss"][2] == [-one for one in second["logprobs"][2]]
    summed = sum(sum(one["elementwise_loss"][2]) for one in told["scored"])
    assert told["metrics"]["loss:sum"] == pytest.approx(summed, rel=1e-5) and told["moved"]
    assert len(told["samples"]) == 2 and all(one[0] == one[1] >= 1 for one in told["samples"])
    assert told["prompt"] == [True, *[False] * 5] and told["top"] == [None, *[2] * 5]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {*told["archive"]}
    assert told["unloaded"] == {"type": "unload_model", "model_id": told["run"]}
    assert "was unloaded" in told["refused"]
