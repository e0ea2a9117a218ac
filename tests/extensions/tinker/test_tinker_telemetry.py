"""Telemetry of the real SDK is taken, so that the SDK is content, and kept nowhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

from counted_paths import counted
from tinker_fixtures import started
from tinker_service import DONE, PYTHON, with_sdk

MARK = "an-event-that-nobody-keeps"
PROGRAM = f"""
import logging, tinker
from tinker import types
logging.basicConfig(level=logging.INFO)
service = tinker.ServiceClient()
sampler = service.create_sampling_client(base_model="art/nano-games").result()
try:
    sampler.sample(types.ModelInput.from_ints([]), 1, types.SamplingParams(max_tokens=1)).result()
except tinker.RequestFailedError as error:
    print("refused", flush=True)
assert service.get_telemetry().log({MARK!r}, event_data={{"text": "x" * 300_000}})
service.close("success").result()
left = len(service.get_telemetry()._queue)
print("sent" if left == 0 else left, flush=True)
"""
pytestmark = with_sdk


def test_events_are_taken_and_thrown_away(tmp_path: Path) -> None:
    with started(tmp_path / "data") as service, counted(service.port) as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        done = subprocess.run(
            [str(PYTHON), "-c", PROGRAM],
            env={**service.variables, "TINKER_TELEMETRY": "1", "TINKER_BASE_URL": address},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        sizes = {file: file.read_bytes() for file in service.data.rglob("*") if file.is_file()}
    assert done.returncode in DONE and done.stdout == "refused\nsent\n", done.stdout + done.stderr[-3000:]
    assert proxy.requests["telemetry"] >= 1
    assert "Dropping telemetry" not in done.stderr and "Timed out" not in done.stderr
    assert len(sizes) > 3 and [str(file) for file, found in sizes.items() if MARK.encode() in found] == []
