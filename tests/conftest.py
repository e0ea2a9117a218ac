"""What tests of more than one room need."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import certifi
import psutil
import pytest
from hypothesis import HealthCheck, settings

import fork_server
from art.process import failures

VLLM_ENVIRONMENT = Path(__file__).parents[1] / ".venv-vllm"

# How long an example takes says nothing of the code on a machine that others use as well.
settings.register_profile("art", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("art")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a script's background has its children ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["OMP_NUM_THREADS"] = "1"  # before anything reads it: a fork has one thread, as `make test` asks
fork_server.install()

gc.disable()  # until all is imported: none of that is garbage, and looking through it takes seconds


kept: list[functools._lru_cache_wrapper[object]] = []
"""What functions of tests and their helpers keep."""


def pytest_collection_finish() -> None:
    kept[:] = find_caches()
    gc.freeze()
    gc.enable()
    file_began_at[:] = [core_seconds()]


_authority = tempfile.NamedTemporaryFile("w", suffix=".pem")  # as long as this process
_authority.write(Path(certifi.where()).read_text().partition("-----END")[0] + "-----END CERTIFICATE-----\n")
_authority.flush()
# Each client reads all authorities, 20 ms of a core; no test speaks to a server that they know.
os.environ.setdefault("SSL_CERT_FILE", _authority.name)
fork_server.read_few_authorities()

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system"}
"""Audit events. `make test-fast` starts no process: that would cost more than the tests it runs."""
started: list[str] = []
CORE_SECONDS, MOST_CORE_SECONDS = "core_seconds", 0.5
"""What a test takes, and from where on the summary of a run says that it is no quick one."""
FILE_SECONDS, FILES_SHOWN, LEAST_SHOWN = "file_seconds", 10, 5.0
"""What a file takes with all the processes that it starts: the summary names the dearest."""
file_began_at: list[float] = []
platform.processor()  # asks `uname -p`, once a process: openai's client would do so in the middle of a test
sys.addaudithook(lambda event, given: started.append(f"{event}{given[:2]}") if event in STARTS else None)


def find_caches() -> list[functools._lru_cache_wrapper[object]]:
    """Returns the caches of functions of `tests`."""
    folder = f"{Path(__file__).parent}{os.sep}"
    values = [
        value
        for module in [*sys.modules.values()]
        if str(getattr(module, "__file__", "")).startswith(folder)
        for value in vars(module).values()
        if isinstance(value, functools._lru_cache_wrapper)
        and not value.__module__.startswith(("art.", "art_extensions."))
    ]
    return [*{id(one): one for one in values}.values()]


def forget() -> None:
    """Empties the caches of tests when a file has ended, and gives the free pages back.

    Six tokenizers, or the syntax of all files, take as much as all else.
    """
    full = [one for one in kept if one.cache_info().currsize]
    for one in full:
        one.cache_clear()
    if full:
        gc.collect()  # what names itself would stay for a while
        with contextlib.suppress(AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    started.clear()
    failures._seen_kinds.cache_clear()  # each test is a program that has logged no failure yet
    return (yield)


def core_seconds() -> float:
    """What this process has taken until now, with all that it has started."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # its children's that have ended, too
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    yield
    if nextitem is None or nextitem.path != item.path:
        forget()
        now = core_seconds()
        item.user_properties.append((FILE_SECONDS, now - file_began_at[0]))
        file_began_at[:] = [now]
    # On a GPU torch compiles in processes of its own.
    if started and not (item.get_closest_marker("slow") or item.get_closest_marker("gpu")):
        pytest.fail(f"it starts a process, so mark it with pytest.mark.slow: {started[0][:300]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    before = time.process_time()
    try:
        yield
    finally:
        item.user_properties.append((CORE_SECONDS, time.process_time() - before))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names what `make test-fast` should not run: a machine that is busy makes no test appear here."""
    took = [
        (dict(report.user_properties)[CORE_SECONDS], report.nodeid)
        for report in terminalreporter.getreports("passed")
        if CORE_SECONDS in dict(report.user_properties) and "slow" not in report.keywords
    ]
    for seconds, name in sorted(took, reverse=True):
        if seconds > MOST_CORE_SECONDS:
            terminalreporter.write_line(f"{seconds:.1f} s of a core, mark it with pytest.mark.slow: {name}")
    show_dearest_files(terminalreporter)


def show_dearest_files(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells what the tests took of the cores, and where: the budget is in CONTRIBUTING.md."""
    files: Counter[str] = Counter()
    for report in terminalreporter.getreports(""):  # of ends of tests
        files[report.nodeid.partition("::")[0]] += dict(report.user_properties).get(FILE_SECONDS, 0.0)
    dearest = [(name, took) for name, took in files.most_common(FILES_SHOWN) if took > LEAST_SHOWN]
    if dearest:
        terminalreporter.write_line(f"the tests took {files.total() / 60:.1f} minutes of a core; of it")
    for name, took in dearest:
        terminalreporter.write_line(f"{took:7.1f} s  {name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without vLLM's environment its tests are skipped, with the remedy; `make test-all` makes it, and asks
    for all of them."""
    if VLLM_ENVIRONMENT.exists() or os.environ.get("ART_TEST_EVERYTHING"):
        return
    missing = pytest.mark.skip(reason="no vLLM: run `art runtime install --at .venv-vllm`, `make test-all`")
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(missing)


@pytest.fixture
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real file system of its own: `@pytest.mark.parametrize("small_disk", ["64k"], indirect=True)`."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


@pytest.fixture
def fresh_wandb() -> Iterator[None]:
    """wandb reads the environment once in a process: other tests' must not stay, nor this one's."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture
def real_starts() -> Iterator[None]:
    """Every process of the test is a fresh interpreter, none a fork of one that is warm."""
    with fork_server.real_starts():
        yield
