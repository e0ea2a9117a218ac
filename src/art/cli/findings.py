"""What `art doctor` looks at before it tries anything: versions, torch's build, memory, disk."""

from __future__ import annotations

import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

NEEDED = (
    "torch",
    "transformers",
    "peft",
    "renderers",
    "tokenizers",
    "starlette",
    "uvicorn",
    "websockets",
    "openai",
)
GIB = 1024**3
MEMORY_GIB = 2.0
"""What the server, an engine and a trainer need for a nano model."""
DISK_GIB = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the examination."""

    level: Literal["good", "note", "bad"]
    subject: str
    what: str
    remedy: str = ""


def look(folder: Path) -> Iterator[Finding]:
    """Everything that can be seen without starting anything."""
    yield python_finding()
    yield from package_findings()
    yield from torch_findings()
    yield from memory_findings()
    yield disk_finding(folder)
    yield sqlite_finding()


def python_finding() -> Finding:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return Finding(
        level="good", subject="python", what=f"{python} on {platform.system()} {platform.machine()}"
    )


def package_findings() -> Iterator[Finding]:
    missing = []
    for name in NEEDED:
        try:
            yield Finding(level="good", subject=name, what=version(name))
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding(
            level="bad",
            subject="packages",
            what=f"not installed: {', '.join(missing)}",
            remedy='pip install "agent-reinforcement-trainer[local]"',
        )


def torch_findings() -> Iterator[Finding]:
    """torch is asked in a process of its own: the client must not load it."""
    from subprocess import TimeoutExpired, run

    program = (
        "import torch; usable = torch.cuda.is_available(); "
        "name = torch.cuda.get_device_name(0).replace(' ', '_') if usable else 'none'; "
        "print(torch.version.cuda or 'none', usable, torch.get_num_threads(), name)"
    )
    try:
        done = run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    except TimeoutExpired:
        yield Finding(
            level="bad", subject="torch", what="did not load within 60 s", remedy="look at the disk's speed"
        )
        return
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        yield Finding(
            level="bad", subject="torch", what=lines[-1], remedy="install torch again for this machine"
        )
        return
    cuda, usable, threads, device = done.stdout.split()
    if usable == "True":
        yield Finding(level="good", subject="device", what=f"{device.replace('_', ' ')}, CUDA {cuda}")
    elif cuda != "none":
        yield Finding(
            level="note",
            subject="device",
            what=f"CPU, {threads} threads; this torch was built for CUDA {cuda}, but no GPU answers",
            remedy="if there is a GPU, check its driver; if not, a CPU build of torch saves gigabytes",
        )
    else:
        yield Finding(level="good", subject="device", what=f"CPU, {threads} threads")


def memory_findings() -> Iterator[Finding]:
    try:
        import psutil
    except ImportError:
        return  # named among the missing packages already, as part of the extra
    available = psutil.virtual_memory().available / GIB
    if available < MEMORY_GIB:
        yield Finding(
            level="bad",
            subject="memory",
            what=f"{available:.1f} GiB available",
            remedy=f"close something: the smallest model needs about {MEMORY_GIB:g} GiB",
        )
    else:
        yield Finding(level="good", subject="memory", what=f"{available:.1f} GiB available")


def disk_finding(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / GIB
    what = f"{free:.1f} GiB free at {folder}"
    if free < DISK_GIB:
        return Finding(
            level="bad", subject="disk", what=what, remedy="free some space, or run from another folder"
        )
    return Finding(level="good", subject="disk", what=what)


def sqlite_finding() -> Finding:
    if sqlite3.sqlite_version_info < (3, 35):
        return Finding(
            level="bad",
            subject="sqlite",
            what=sqlite3.sqlite_version,
            remedy="use a Python whose SQLite is 3.35 or newer",
        )
    return Finding(level="good", subject="sqlite", what=sqlite3.sqlite_version)
