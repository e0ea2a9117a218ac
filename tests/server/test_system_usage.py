"""What a machine, its server and its workers do, by real processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from art.server.system_usage import SystemUsage
from art.tracking.names import route

pytestmark = pytest.mark.slow  # it starts processes

BUSY = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\nsys.stdin.read()"


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A child that has used 0.2 s of a core, and waits."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "\n"
        yield child
        child.communicate()


def test_server_and_workers_are_told_apart_and_counted_since_the_last_call(
    worker: subprocess.Popen[str],
) -> None:
    began = time.monotonic()
    usage = SystemUsage()
    usage.take()
    taken = time.monotonic()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    least, found = time.monotonic() - taken, usage.take()
    seconds = time.monotonic() - began
    assert found["system/server_cpu_cores"] * seconds >= 0.04 and found["system/server_memory_bytes"] > 1e6
    assert found["system/workers_memory_bytes"] > 1e6, "the child"
    assert found["system/workers_cpu_cores"] * least < 0.1, "it was busy before"
    assert 0.0 <= found["system/cpu_percent"] <= 100.0 and 0.0 < found["system/memory_percent"] <= 100.0
    assert all(route(name, "train") == name for name in found), "they are no metrics of a split"


def test_a_worker_that_started_since_then_counts_with_all_it_did() -> None:
    usage = SystemUsage()
    usage.take()
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "\n"
        found = usage.take()
        assert found["system/workers_cpu_cores"] * (time.monotonic() - began) >= 0.15
        child.communicate()
    ended = usage.take()
    assert ended["system/workers_cpu_cores"] >= 0.0 and ended.keys() == found.keys()
