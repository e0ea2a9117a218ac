"""Runs one cell: the program up to the phase, the fault, the end, and the program again where it has to."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from bench.faults import program
from bench.faults.disks import SmallDisk
from bench.faults.links import Relay
from bench.faults.outcome import Ended, Outcome, contents, examine
from bench.faults.paid_judge import JudgeBooks, read_books
from bench.faults.processes import RunProcesses
from bench.faults.setups import (
    DISKS,
    KEY,
    LINKS,
    JudgeAddress,
    OwnServer,
    Setup,
    StartedChild,
    StartedRun,
    environment_server,
    free_port,
    judge_server,
    mcp_server,
    relayed,
)
from bench.faults.table import Cell

POLL_S, LOOK_S = 0.01, 0.2
JOB_POLL_S = 0.001
"""While a phase of a job is waited for, of which some take milliseconds."""
PAUSED_S = 30.0
STOPPED_CLIENT_S = 10.0
"""A program that is stopped for ever is ended by its user, after so long."""
LIMIT_S = 300.0
"""A run that takes longer after the fault has hung."""
END_S = 60.0
"""Until all processes of a run have ended after it."""
JOB_PHASES = {"train": ("training",), "save": ("saving",), "promote": ("loading", "checking")}
SIGNALS = {
    "kill-9": signal.SIGKILL,
    "sigterm": signal.SIGTERM,
    "stop-for-ever": signal.SIGSTOP,
    "stop-30-s": signal.SIGSTOP,
}


@dataclass(frozen=True)
class Remedy:
    """What ends a fault, `due` by the monotonic clock; None: when the program has ended."""

    due: float | None
    act: Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """An undisturbed run whose folder is kept."""

    path: Path
    outcome: Outcome


class Trial:
    """One cell in an empty folder; without a cell, the program undisturbed."""

    def __init__(
        self,
        cell: Cell | None,
        setup: Setup,
        folder: Path,
        judge: JudgeAddress,
        *,
        limit_s: float = LIMIT_S,
        finished: FinishedRun | None = None,
    ) -> None:
        """finished: the run that the phase `replay` has a copy of."""
        self._cell, self._setup, self._folder, self._judge = cell, setup, folder, judge
        self._limit_s, self._finished = limit_s, finished
        self._stack = contextlib.ExitStack()
        self._processes = RunProcesses()
        self._disk: SmallDisk | None = None
        self._server: OwnServer | None = None
        self._beside: StartedChild | None = None
        self._port = 0
        self._relay: Relay | None = None
        self._remedies: list[Remedy] = []
        self._struck_at: float | None = None
        self._was_struck = self._missed = False
        self.path = folder / "run"
        self._sent, self._recorded = folder / "sent_questions.jsonl", folder / "recorded_answers.jsonl"
        self._begun = time.monotonic()

    def run(self) -> Outcome:
        """Raises RuntimeError when something beside the run does not start, OSError where no disk is made."""
        with self._stack:
            self._stack.callback(self._processes.end)
            asked = self._prepare()
            finished = self._finished if self._cell is not None and self._cell.phase == "replay" else None
            replays = finished is not None
            before = self._copy_run(finished, asked) if finished is not None else {}
            first = self._follow(StartedRun.start(asked, self._folder / "program.log", replays=replays))
            orphans = self._await_end()
            self._make_good()
            again = None
            if first.status != 0:
                self._struck_at = None
                started = StartedRun.start(asked, self._folder / "again.log", replays=replays)
                again = self._follow(started, undisturbed=True)
                orphans += self._await_end()
            if self._server is not None:
                self._server.stop()
                orphans += self._await_end()
            after = contents(self.path) if replays else {}
            hit = self._cell is None or (self._was_struck and not self._missed)
            return Outcome(
                hit=hit,
                first=first,
                again=again,
                found=examine(self.path),
                books=finished.outcome.books if finished is not None else self._read_books(),
                orphans=sorted(set(orphans)),
                changed=sorted(name for name, _ in before.items() ^ after.items()),
            )

    def _read_books(self) -> JudgeBooks:
        return read_books(self._judge.log, self._sent, self._recorded, since=self._begun)

    def _copy_run(self, finished: FinishedRun, asked: dict[str, object]) -> dict[str, str]:
        """Returns the files of the copy, in which a replay shall change nothing."""
        shutil.copytree(finished.path, self.path)
        asked["evaluated"] = finished.outcome.last.evaluated
        return contents(self.path)

    def _prepare(self) -> dict[str, object]:
        """Start what is beside the program. Returns what the program is asked."""
        setup, address, server = self._setup, "", None
        if setup.disk:
            self._disk = SmallDisk(self._folder)
            self._disk.open()
            self._stack.callback(self._disk.close)
            self.path = self._disk.folder / "run"
        if setup.own_judge or setup.mcp or setup.environment:
            self._port = free_port()
            beside = self._start_beside()
            if isinstance(beside, JudgeAddress):
                self._judge = replace(beside, url=self._behind_relay(beside.url))
            else:
                address = self._behind_relay(beside)
        if setup.remote:
            self._server = OwnServer(self.path, self._folder / "server.log")
            self._stack.callback(self._server.stop)
            self._server.start()
            server = (self._behind_relay(self._server.url), KEY)
        return {
            "path": str(self.path),
            "judge": self._judge.url,
            "judge_key": self._judge.key,
            "sent": str(self._sent),
            "recorded": str(self._recorded),
            "server": server,
            "mcp": address if setup.mcp else None,
            "environment": address if setup.environment else None,
            "ranks": setup.ranks,
        }

    def _start_beside(self) -> JudgeAddress | str:
        """Start the judge, the MCP server or the environment of this cell, or start it again there."""
        if self._beside is not None:
            self._beside.end()
        address: JudgeAddress | str
        setup = self._setup
        start = judge_server if setup.own_judge else mcp_server if setup.mcp else environment_server
        self._beside, address = self._stack.enter_context(start(self._folder, self._port))
        return address

    def _behind_relay(self, address: str) -> str:
        if self._cell is None or self._cell.fault not in LINKS:
            return address
        self._relay, through = relayed(address)
        self._stack.callback(self._relay.close)
        return through

    def _follow(self, run: StartedRun, *, undisturbed: bool = False) -> Ended:
        """Watch the program to its end, and disturb it once."""
        begun, looked = time.monotonic(), 0.0
        killed = False
        while not run.ended():
            now = time.monotonic()
            if now - looked > LOOK_S:
                self._look(run)
                looked = time.monotonic()
            run.hear()
            is_calm = undisturbed or self._cell is None or self._was_struck
            if not is_calm and self._is_in_phase(run):
                self._strike(run)
            self._apply_remedies(now)
            if now - (self._struck_at or begun) > self._limit_s:
                self._look(run)
                run.process.kill()
                killed = True
            time.sleep(POLL_S if is_calm or not self._waits_for_job(run) else JOB_POLL_S)
        seconds = time.monotonic() - (self._struck_at or begun)
        status = run.finish()
        return Ended(
            status=None if killed else status,
            error=run.last("error") or "",
            is_ours=bool(run.last("ours")),
            message=run.last("message") or "",
            steps=run.last("steps"),
            evaluated=run.last("evaluated") or "",
            phases=tuple(line["phase"] for line in run.told if "phase" in line),
            seconds=round(seconds, 1),
        )

    def _look(self, run: StartedRun) -> None:
        self._processes.look(run.process)
        if self._server is not None and self._server.child is not None:
            self._processes.look(self._server.child.process)

    def _await_end(self) -> list[str]:
        """Returns what lives on. What was stopped for a while goes on at once; a server on its own stays."""
        for one in [one for one in self._remedies if one.due is not None]:
            one.act()
            self._remedies.remove(one)
        if self._server is not None and self._server.is_alive:
            return []
        return self._processes.await_end(END_S)

    def _make_good(self) -> None:
        """End the fault: whoever starts the program again has seen to that."""
        for one in self._remedies:
            one.act()
        self._remedies.clear()

    def _apply_remedies(self, now: float) -> None:
        for one in [one for one in self._remedies if one.due is not None and one.due <= now]:
            one.act()
            self._remedies.remove(one)

    # -- the phase --

    def _is_in_phase(self, run: StartedRun) -> bool:
        assert self._cell is not None
        phase = self._cell.phase
        if phase == "register":
            return run.has_begun("register") and self._is_registering(self._cell)
        if phase in JOB_PHASES:
            return run.has_begun("train") and self._job_phase() in JOB_PHASES[phase]
        return run.has_begun("mcp" if self._cell.component == "mcp" else phase)

    def _waits_for_job(self, run: StartedRun) -> bool:
        assert self._cell is not None
        return self._cell.phase in JOB_PHASES and run.has_begun("train")

    def _is_registering(self, cell: Cell) -> bool:
        if self._relay is not None:
            return self._relay.connections > 0
        seen = cell.component if cell.component in ("server", "trainer", "rank") else "engine"
        return self._processes.find(seen) is not None

    def _job_phase(self) -> str:
        """Returns the phase of the last step's job; empty before it is there."""
        path = self.path / "server" / "jobs.sqlite"
        try:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
                rows = file.execute("SELECT phase FROM jobs ORDER BY number").fetchall()
        except sqlite3.Error:
            return ""
        return str(rows[-1][0]) if len(rows) == program.STEPS else ""

    # -- the fault --

    def _strike(self, run: StartedRun) -> None:
        """While all stands still, so that the phase is not over before the fault is there."""
        assert self._cell is not None
        self._look(run)
        target = self._target(run)
        if target is None and self._cell.fault in SIGNALS:
            return
        still = [one for one in self._processes.alive() if self._cell.phase in JOB_PHASES or self._disk]
        for one in still:
            _send(one, signal.SIGSTOP)
        self._was_struck = True
        self._missed = self._cell.phase in JOB_PHASES and not self._is_in_phase(run)
        if not self._missed:
            self._struck_at = time.monotonic()
            self._harm(target)
        for one in still:
            if one != target or SIGNALS.get(self._cell.fault) != signal.SIGSTOP or self._missed:
                _send(one, signal.SIGCONT)

    def _target(self, run: StartedRun) -> psutil.Process | None:
        assert self._cell is not None
        component = self._cell.component
        if component == "client":
            return psutil.Process(run.process.pid)
        if component in ("judge", "mcp", "environment"):
            assert self._beside is not None
            return psutil.Process(self._beside.process.pid)
        return self._processes.find(component)

    def _harm(self, target: psutil.Process | None) -> None:
        assert self._cell is not None
        fault, now = self._cell.fault, time.monotonic()
        if fault in SIGNALS:
            assert target is not None
            _send(target, SIGNALS[fault])
            if self._beside is not None and fault != "stop-30-s":
                self._remedies.append(Remedy(None, self._start_beside))
            if fault == "stop-30-s":
                self._remedies.append(Remedy(now + PAUSED_S, lambda: _send(target, signal.SIGCONT)))
            elif fault == "stop-for-ever" and self._cell.component == "client":
                self._remedies.append(Remedy(now + STOPPED_CLIENT_S, lambda: _send(target, signal.SIGKILL)))
        elif fault in DISKS:
            assert self._disk is not None
            self._disk.fill() if fault == "full-disk" else self._disk.make_read_only()
            self._remedies.append(Remedy(None, self._disk.heal))
        elif fault in LINKS:
            assert self._relay is not None
            if fault == "half-open":
                self._relay.lose_connections()
            else:
                self._relay.stall()
                self._remedies.append(Remedy(now + PAUSED_S, self._relay.resume))
        elif fault == "server-restart":
            assert self._server is not None
            self._server.ask_to_end()
            self._remedies.append(Remedy(now, self._server.restart))  # once it runs again, to hear of it
        else:
            raise ValueError(f"nobody has built the fault {fault!r}")


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
