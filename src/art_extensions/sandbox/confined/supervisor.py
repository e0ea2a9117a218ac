"""The first process of a child: it builds the walls, forks the one that runs behind them, ends it in time.

control socket   in: one line, the order; its end means "stop". out: lines of JSON
                 {"walls": {...}}, and when all is over {"fate", "code", "cpu_s", "memory_bytes"}
stdin, stdout, stderr   belong to the child alone
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any

from . import kernel
from .isolation import BuiltIsolation, isolate, leave_namespaces
from .kernel import used_up_cpu
from .work import Job, job_of

CONFUSED = 97
"""Exit code of a child that could not be confined; its stderr says why."""


def main() -> None:
    control = int(sys.argv[1])
    order = json.loads(_line(control))
    job = job_of(order)  # before the walls close: behind them, this file cannot be read
    walls = BuiltIsolation()
    leave_namespaces(walls)
    if sys.platform == "linux":
        kernel.set_process(kernel.PR_SET_CHILD_SUBREAPER, 1)  # whatever leaves its parent becomes ours to end
    gc.freeze()
    built, built_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(control)
        os.close(built)
        _run(walls, order, job, built_end)
    os.close(built_end)
    os.set_blocking(control, False)
    _write_message(control, {"walls": json.loads(_line(built) or b"null")})
    for descriptor in (0, 1):
        os.close(descriptor)  # their ends must be the child's alone; stderr stays for an error of our own
    deadline = None if order["wall_s"] is None else time.monotonic() + order["wall_s"]
    fate = _await(child, control, deadline)
    _, status, usage = os.wait4(child, 0)
    _end_orphans()
    _remove(order["base"])
    code = os.waitstatus_to_exitcode(status)
    if fate == "ended" and used_up_cpu(code, usage, order["cpu_s"]):
        fate = "cpu"
    seconds = round(usage.ru_utime + usage.ru_stime, 4)
    _write_message(
        control, {"fate": fate, "code": code, "cpu_s": seconds, "memory_bytes": usage.ru_maxrss * 1024}
    )
    os._exit(0)


def _run(walls: BuiltIsolation, order: dict[str, Any], job: Job, channel: int) -> None:
    """The child: behind the walls, then under its limits, then what was ordered. It never returns."""
    code, confined = CONFUSED, False
    try:
        os.setsid()  # kill(0, ...) reaches a whole group, beyond the walls too: the supervisor is in another
        folder = isolate(
            walls, base=order["base"], readable=order["readable"], disk_bytes=order["disk_bytes"]
        )
        os.chdir(folder)
        order["processes"] += walls.others
        limit(order, cpu=order["work"] != "checks")
        os.write(channel, json.dumps(walls.report()).encode() + b"\n")
        os.close(channel)
        confined = True
        code = job(order)
    except SystemExit as ended:
        code = _exit_code(ended)
    except BaseException:  # noqa: BLE001 - the program's own error: told on stderr, as Python does
        code = 1 if confined else CONFUSED
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):  # a stream that the program closed
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def limit(order: dict[str, Any], *, cpu: bool) -> None:
    """The limits of this process and of those it starts. Each holds for one process, `processes` for all."""
    import resource

    wanted = {
        "RLIMIT_AS": order["memory_bytes"],
        "RLIMIT_FSIZE": order["file_bytes"],
        "RLIMIT_NPROC": order["processes"],
        "RLIMIT_NOFILE": order["open_files"],
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        **({"RLIMIT_CPU": order["cpu_s"]} if cpu else {}),
    }
    for name, value in wanted.items():
        if hasattr(resource, name):  # a Mac lacks some
            kind = getattr(resource, name)
            _, hard = resource.getrlimit(kind)
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    sys.stderr.write(f"{ended.code}\n")
    return 1


def _await(child: int, control: int, deadline: float | None) -> str:
    """Waits until the child ended, its time is up or its result is not needed any more. The child is dead
    afterwards.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN | select.POLLHUP)
    watched = os.pidfd_open(child) if hasattr(os, "pidfd_open") else -1
    if watched >= 0:
        poll.register(watched, select.POLLIN)
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        # Without a descriptor of the child (a Mac) it is looked at a hundred times a second.
        wait = (None if left is None else left * 1e3) if watched >= 0 else 10.0
        ready = dict(poll.poll(wait))
        if watched in ready or (watched < 0 and _has_ended(child)):
            return "ended"
        if control in ready or left == 0.0:
            # The first process of its namespace takes all others with it.
            os.kill(child, signal.SIGKILL)
            return "cancelled" if control in ready else "deadline"


def _has_ended(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_orphans() -> None:
    """Kills all processes of the child without namespaces, also those that left its group."""
    mine = f"/proc/self/task/{os.getpid()}/children"
    while os.path.exists(mine):
        with open(mine) as file:
            children = [int(number) for number in file.read().split()]
        if not children:
            return
        for number in children:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(number, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(number, 0)


def _remove(folder: str) -> None:
    """Here, too: whoever asked for this process may have been killed."""
    try:
        os.rmdir(folder)  # behind namespaces nothing was written to it
    except OSError:
        from shutil import rmtree

        rmtree(folder, ignore_errors=True)


def _line(descriptor: int) -> bytes:
    """One line, read byte-wise past nothing: what follows is not ours."""
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(descriptor, 1 << 16)
        if not part:
            break
        text += part
    return text


def _write_message(descriptor: int, words: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(descriptor, json.dumps(words).encode() + b"\n")
