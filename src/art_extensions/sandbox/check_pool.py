"""Limited processes that have a library loaded and are asked again and again."""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

from art.errors import ConfigurationError, VerifierError
from art_extensions.sandbox.limited_process import (
    GRACE_S,
    LimitedProcess,
    ProcessIsolation,
    module_folders,
    process_count,
)
from art_extensions.sandbox.limits import IsolationLevel, Limits

log = logging.getLogger(__name__)
LOAD_S = 60.0
"""How long a library may take to load."""


class IsolationGuard:
    """Sees to it that walls are as wanted. isolation: "required" refuses to run with less than namespaces,
    "best" takes what the kernel gives and warns once, saying what is open.
    """

    def __init__(self, name: str, isolation: IsolationLevel) -> None:
        if isolation not in get_args(IsolationLevel):
            raise ConfigurationError(
                f"isolation={isolation!r}: known are {', '.join(get_args(IsolationLevel))}"
            )
        self._name, self._isolation, self._warned = name, isolation, False

    def check(self, walls: ProcessIsolation) -> None:
        """Raises VerifierError where more is required."""
        if walls.is_complete:
            return
        walls_left = ", ".join(
            f"{what}: {getattr(walls, what) or 'open'}" for what in ("files", "network", "processes")
        )
        said = f"{self._name}: no namespaces here ({walls.refused}), so less holds it back: {walls_left}"
        if self._isolation == "required":
            raise VerifierError(f'{said}; isolation="best" accepts that')
        if not self._warned:
            log.warning('%s. isolation="required" refuses to run so', said)
        self._warned = True


class CheckPool:
    """Children that do one kind of check, at most `at_once`. They start when first needed, and live on."""

    def __init__(
        self, check: str, limits: Limits, *, at_once: int | None, name: str, isolation: IsolationLevel
    ) -> None:
        self._check, self._limits, self._name = check, limits, name
        self._guard = IsolationGuard(name, isolation)
        self._threads = ThreadPoolExecutor(process_count(at_once), thread_name_prefix=f"art-{check}")
        self._idle: queue.SimpleQueue[LimitedProcess] = queue.SimpleQueue()
        # Also when the interpreter ends.
        self.close = weakref.finalize(self, _close_all, self._idle, self._threads)

    async def ask(self, answer: str, expected: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the result of the check. Raises VerifierError if the process was lost."""
        try:
            asked = json.dumps({"answer": answer, "expected": expected, "options": options}).encode()
        except (TypeError, ValueError) as error:
            raise VerifierError(f"expected {expected!r} is no JSON: {error}") from error
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, asked)

    def _ask(self, asked: bytes) -> dict[str, Any]:
        try:
            child = self._idle.get_nowait()
        except queue.Empty:
            child = self._start()
        reply = child.ask(asked, time.monotonic() + self._limits.wall_s + GRACE_S)
        if reply is None:
            said = child.errors.decode(errors="replace")[-1000:]
            child.close()
            raise VerifierError(f"the process that checks was lost {said}")
        self._idle.put(child)
        if not self.close.alive:  # closed meanwhile
            _close_all(self._idle, self._threads)
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def _start(self) -> LimitedProcess:
        order = {"check": self._check, "check_s": self._limits.wall_s, **module_folders(packages=True)}
        child = LimitedProcess("checks", self._limits, wall_s=None, **order)
        try:
            self._guard.check(child.walls)
            if child.ask(b"", time.monotonic() + LOAD_S) is None:
                child.end_input()
                said = child.errors.decode(errors="replace")[-2000:]
                raise VerifierError(f"the library of the check {self._check!r} could not be loaded: {said}")
        except BaseException:
            child.close()
            raise
        return child


def _close_all(idle: queue.SimpleQueue[LimitedProcess], threads: ThreadPoolExecutor) -> None:
    # Without waiting: the collector may call this in one of the threads themselves.
    threads.shutdown(wait=False, cancel_futures=True)
    while not idle.empty():
        idle.get_nowait().close()
