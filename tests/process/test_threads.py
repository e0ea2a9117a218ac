"""The cores that may be used, and what workers are told of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from art.process.threads import (
    SMALL_MODEL_PARAMETERS,
    THREAD_BUDGET,
    WAITS,
    cpu_quota,
    cpu_threads,
    thread_variables,
    usable_cores,
)
from art.process.worker import Worker, WorkerSpec

BUDGET = {"OMP_NUM_THREADS": "2", THREAD_BUDGET: "2"}


def group(root: Path, files: Mapping[str, str]) -> Path:
    """Writes a tree of control groups; returns its root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "300000 100000\n"}, 3.0),
        ("0::/of/the/host\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "something else\n"}, None),
        ("3:cpu:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("3:memory:/\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_quota_of_either_version_is_read(
    tmp_path: Path, membership: str, files: Mapping[str, str], quota: float | None
) -> None:
    own = tmp_path / "cgroup"
    own.write_text(membership)
    assert cpu_quota(own, group(tmp_path / "root", files)) == quota


def test_where_there_are_no_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "cgroup", tmp_path) is None


def test_a_quota_and_the_cores_a_process_is_bound_to_limit_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/\n")
    monkeypatch.setattr("art.process.threads.PROC", tmp_path)
    monkeypatch.setattr("art.process.threads.CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    cores = {"max 100000": 8, "1600000 100000": 8, "250000 100000": 3, "10000 100000": 1}
    for limit, expected in cores.items():
        (tmp_path / "cpu.max").write_text(limit)
        assert usable_cores() == expected, limit


def test_copies_divide_the_cores_and_threads_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("art.process.threads.usable_cores", lambda: 6)
    told = {copies: thread_variables({}, copies=copies)["OMP_NUM_THREADS"] for copies in (1, 2, 4, 9)}
    assert told == {1: "6", 2: "3", 4: "1", 9: "1"}
    assert thread_variables({}).items() >= WAITS.items()


def test_what_the_user_chose_stays() -> None:
    assert thread_variables({"OMP_NUM_THREADS": "3"}) == WAITS
    assert set(thread_variables({"OMP_WAIT_POLICY": "ACTIVE"})) == {"OMP_NUM_THREADS", THREAD_BUDGET}
    assert set(thread_variables({"GOMP_SPINCOUNT": "9"})) == {"OMP_NUM_THREADS", THREAD_BUDGET}


def test_a_small_model_gets_one_thread_unless_another_number_is_chosen() -> None:
    small, large = SMALL_MODEL_PARAMETERS - 1, SMALL_MODEL_PARAMETERS
    assert cpu_threads(None, small, {}) == cpu_threads(None, small, BUDGET) == 1
    assert cpu_threads(4, small, BUDGET) == 4
    assert cpu_threads(None, large, BUDGET) is None
    assert cpu_threads(None, small, {"OMP_NUM_THREADS": "2"}) is None


ENDLESS = (
    'import sys; print(\'{"ready": true, "port": 1}\', flush=True); sys.stdin.readline(); sys.stdin.read()'
)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, "3"])
async def test_a_worker_has_the_budget_and_this_process_keeps_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    for name in (*WAITS, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    before = dict(os.environ)
    spec = WorkerSpec(name="one", command=[sys.executable, "-c", ENDLESS], log_path=tmp_path / "one.log")
    worker = await Worker.start(spec)
    told = psutil.Process(worker.pid).environ()
    await worker.stop()
    assert told.items() >= WAITS.items()
    assert told["OMP_NUM_THREADS"] == (chosen or str(usable_cores()))
    assert (THREAD_BUDGET in told) == (chosen is None)
    assert dict(os.environ) == before
