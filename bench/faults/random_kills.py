"""Kills at random moments: the program, the server, the engine and the trainer of a run, many times in a run.

Where the program itself was killed, it is started again at once, while its server may still be ending.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.faults.outcome import MOST_MESSAGE, Ended, Outcome, examine, judge
from bench.faults.paid_judge import read_books
from bench.faults.processes import RunProcesses
from bench.faults.records import RandomRecord, append_record
from bench.faults.setups import JudgeAddress, StartedRun
from bench.faults.table import Cell
from bench.faults.trial import END_S, LIMIT_S
from bench.learning.cell_runner import provenance

KINDS = ("client", "server", "engine", "trainer")
OF_A_RUN = 10
"""Kills of one run at most."""
POLL_S = 0.05
PAUSE_S = 1.5
"""The mean between two kills."""
ANY_TIME = Cell(component="client", phase="any", fault="kill-9")


@dataclass
class DisturbedRun:
    """One run and its kills. dice: the kinds and the moments."""

    folder: Path
    address: JudgeAddress
    dice: random.Random
    most: int
    pause_s: float = PAUSE_S
    kills: Counter[str] = field(default_factory=Counter)
    _processes: RunProcesses = field(default_factory=RunProcesses)

    def make(self) -> Outcome:
        """Returns what became of it. A program that ends by an error of its own is not started again."""
        begun = time.monotonic()
        asked = {
            "path": str(self.folder / "run"),
            "judge": self.address.url,
            "judge_key": self.address.key,
            "sent": str(self.folder / "sent_questions.jsonl"),
            "recorded": str(self.folder / "recorded_answers.jsonl"),
            "is_patient": True,
        }
        try:
            while True:
                run = StartedRun.start(asked, self.folder / "program.log")
                status = self._follow(run, begun)
                if status != -signal.SIGKILL or time.monotonic() - begun > LIMIT_S:
                    break
            orphans = self._processes.await_end(END_S)
        finally:
            self._processes.end()
        ended = Ended(
            status=status,
            error=run.last("error") or "",
            is_ours=bool(run.last("ours")),
            message=run.last("message") or "",
            steps=run.last("steps"),
            evaluated=run.last("evaluated") or "",
            seconds=round(time.monotonic() - begun, 1),
        )
        books = read_books(
            self.address.log, Path(str(asked["sent"])), Path(str(asked["recorded"])), since=begun
        )
        return Outcome(
            hit=True, first=ended, found=examine(self.folder / "run"), books=books, orphans=orphans
        )

    def _follow(self, run: StartedRun, begun: float) -> int:
        due = time.monotonic() + self.dice.expovariate(1 / self.pause_s)
        while not run.ended():
            self._processes.look(run.process)
            run.hear()
            if time.monotonic() - begun > LIMIT_S:
                run.process.kill()
            elif time.monotonic() > due and self.kills.total() < self.most and run.told:
                kind = self.dice.choice(KINDS)
                target = psutil.Process(run.process.pid) if kind == "client" else self._processes.find(kind)
                if target is not None:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        target.send_signal(signal.SIGKILL)
                        self.kills[kind] += 1
                due = time.monotonic() + self.dice.expovariate(1 / self.pause_s)
            time.sleep(POLL_S)
        return run.finish()


def disturbed_runs(
    count: int, seed: int, folder: Path, address: JudgeAddress, *, pause_s: float = PAUSE_S
) -> Iterator[tuple[int, DisturbedRun, Outcome]]:
    """Yields the seed of each run, the run and its outcome, until there were `count` kills."""
    while count > 0:
        home = folder / f"random-{seed}"
        home.mkdir()
        run = DisturbedRun(home, address, random.Random(seed), min(count, OF_A_RUN), pause_s)
        outcome = run.make()
        yield seed, run, outcome
        count -= run.kills.total()
        seed += 1


def kill_at_random(
    count: int, seed: int, folder: Path, address: JudgeAddress, calm: Outcome, path: Path
) -> int:
    """Makes the runs, prints and records each, and returns how many do not end as the undisturbed one."""
    failed = 0
    for number, run, outcome in disturbed_runs(count, seed, folder, address):
        verdict = judge(ANY_TIME, outcome, calm, bound_s=LIMIT_S)
        flaws = verdict.flaws
        if outcome.first.error:  # nothing that was killed is a reason for one
            flaws += (f"ended by {outcome.first.error}: {outcome.first.message[:MOST_MESSAGE]}",)
        record = RandomRecord(
            seed=number,
            kills=dict(sorted(run.kills.items())),
            ending=verdict.ending,
            flaws=flaws,
            seconds=outcome.first.seconds,
            **provenance(),
        )
        append_record(path, record)
        failed += not record.holds
        kills = ", ".join(f"{many} of {kind}" for kind, many in record.kills.items())
        held = "holds" if record.holds else "FAILS: " + " | ".join(flaws)
        print(f"seed {number}: {held}; {record.ending}, {record.seconds:.0f} s; kills: {kills}", flush=True)
    return failed
