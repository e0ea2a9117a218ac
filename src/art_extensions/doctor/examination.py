"""`art doctor`: look at the installation, then do one complete miniature step through the real server.

It looks at versions, torch's build, memory and disk. `--plan` computes what a model needs instead.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import shutil
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

import art
from art.errors import EXTRAS, ARTError, install_command, is_installed

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


def look_at_installation(folder: Path) -> Iterator[Finding]:
    """Yields all findings that need no running process."""
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
    for name in ("openai", *EXTRAS["local"]):  # modules named as their distributions are
        try:
            yield Finding(level="good", subject=name, what=version(name))
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding(
            level="bad",
            subject="packages",
            what=f"not installed: {', '.join(missing)}",
            remedy=install_command("local"),
        )


def torch_findings() -> Iterator[Finding]:
    """torch is asked in a process of its own: the client must not load it."""
    from subprocess import TimeoutExpired, run

    if not is_installed("torch"):
        return  # named among the missing packages
    program = (
        "import torch; usable = torch.cuda.is_available(); "
        "name = torch.cuda.get_device_name(0).replace(' ', '_') if usable else 'none'; "
        "print(torch.version.cuda or 'none', usable, torch.get_num_threads(), name)"
    )
    try:
        done = run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    except TimeoutExpired:
        yield Finding(
            level="bad",
            subject="torch",
            what="did not load within 60 s",
            remedy="check whether the disk is slow or the machine is busy",
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
            remedy=f"close other programs: the smallest model needs about {MEMORY_GIB:g} GiB",
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


def show_memory_plan(model: str, *, rank: int, context: int | None, engine: str, bits: int) -> int:
    """Prints the memory that training a model needs, and the cards that have it. Returns 2 where the model
    is unknown.
    """
    from rich.table import Table

    console = Console()
    # Notices of libraries, of no use to who asks for a figure.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            from art_extensions.doctor.hardware import cards, memory_parts, plan_hardware

            on_gpu, on_cpu = (
                plan_hardware(model, rank=rank, context=context, engine=engine, bits=bits, cuda=cuda)
                for cuda in (True, False)
            )
    except ARTError as error:
        console.print(escape(str(error)), style="red", highlight=False)
        return 2
    table = Table("part", "GiB", title=escape(on_gpu.title), title_justify="left")
    for part, size in memory_parts(on_gpu):
        table.add_row(part, f"{size / GIB:.1f}")
    table.add_section()
    table.add_row("one GPU for trainer and engine, at least", f"{on_gpu.needed / GIB:.1f}")
    table.add_row("one CPU, in float32: main memory, at least", f"{on_cpu.needed / GIB:.1f}")
    console.print(table)
    for card in cards(on_gpu):
        console.print(f"fits a GPU of {card.gib} GB: {card}", highlight=False)
    console.print("Computed from the model's configuration, not measured on a GPU: docs/guides/hardware.md.")
    return 0


FINDING_MARKS = {"good": "[green]good[/green]", "note": "[yellow]note[/yellow]", "bad": "[red]bad [/red]"}
ATTEMPTS = 4
STEP_DEADLINE = 600.0
"""Seconds for the whole miniature step, on a machine that does other work as well."""


def examine(base_model: str) -> int:
    """Print every finding with its remedy. Returns 0 when the installation can train, else 1."""
    console = Console()
    findings = []
    for finding in look_at_installation(Path.cwd()):
        findings.append(finding)
        show_finding(console, finding)
    if any(finding.level == "bad" for finding in findings):
        console.print("The small training step was skipped. Fix the findings above first.")
        return 1
    healthy = asyncio.run(try_step(console, base_model))
    console.print(
        "[bold green]Ready to train.[/bold green]" if healthy else "[bold red]Not ready.[/bold red]"
    )
    return 0 if healthy else 1


def show_finding(console: Console, finding: Finding) -> None:
    remedy = f"\n       -> {finding.remedy}" if finding.remedy else ""
    line = escape(f"{finding.subject:<14} {finding.what}{remedy}")  # `[local]` is no style
    # Not wrapped: a remedy is copied into a shell as it stands.
    console.print(f"{FINDING_MARKS[finding.level]}  {line}", highlight=False, soft_wrap=True)


async def try_step(console: Console, base_model: str) -> bool:
    """The miniature step, each of its stations a finding; the first that fails ends it."""
    with tempfile.TemporaryDirectory(prefix="art-doctor-") as folder:
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(STEP_DEADLINE):
                async for subject, what in miniature_step(base_model, Path(folder)):
                    seconds = time.perf_counter() - begin
                    show_finding(
                        console, Finding(level="good", subject=subject, what=f"{what} ({seconds:.1f} s)")
                    )
        except TimeoutError:
            what, remedy = (
                f"took more than {STEP_DEADLINE:g} s",
                "is the machine busy? try again, then report it",
            )
        except ARTError as error:
            what, remedy = (
                f"{type(error).__name__}: {error}",
                "the message says where; `art serve` shows the server's log",
            )
        else:
            return True
        show_finding(console, Finding(level="bad", subject="step", what=what, remedy=remedy))
        return False


async def miniature_step(base_model: str, folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Generate, train, publish, generate again. Yields (station, what was seen)."""
    model = art.TrainableModel(name="doctor", project="doctor", base_model=base_model)
    async with art.LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        yield "server", f"serves {base_model} as {model.get_inference_name()}"
        attempts = [await one_reply(model) for _ in range(ATTEMPTS)]
        yield "generate", f"{len(attempts)} replies from step {step_of(attempts[0])}"
        for number, attempt in enumerate(attempts):
            attempt.reward = float(number)  # any difference will do: the step must move the weights
        result = await model.train(
            [art.TrajectoryGroup(attempts)], config=art.TrainConfig(learning_rate=1e-3)
        )
        yield "train", f"step {result.step}, loss {result.metrics['loss/train']:+.3f}"
        reply = await one_reply(model)
        if step_of(reply) != result.step:
            raise art.errors.TrainingError(
                f"step {result.step} was trained, but step {step_of(reply)} answers"
            )
        yield "generate again", f"a reply from step {step_of(reply)}"


async def one_reply(model: art.TrainableModel) -> art.Trajectory:
    trajectory = art.Trajectory(
        messages_and_choices=[{"role": "user", "content": "yes, no or maybe?"}], reward=0.0
    )
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=8
    )
    trajectory.messages_and_choices.append(completion.choices[0])
    return trajectory


def step_of(trajectory: art.Trajectory) -> int:
    choice: Any = trajectory.messages_and_choices[-1]
    return int(choice.model_extra["step"])
