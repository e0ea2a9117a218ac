"""Replays that a page of a step started: `art replay` as a process of its own, one at a time for a run.

The process reads the run and changes nothing of it. What it writes lies in a temporary folder, which is gone
when it ends. A thread waits for each: it started the process, which the kernel ends with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Literal

from art.process.environment import inherited_variables
from art_extensions.ui.conversation import visible
from art_extensions.ui.run_files import RunFiles

DEADLINE_S = 3600.0
"""Seconds that a replay may take."""
MOST_TOGETHER = 2
"""Replays of different runs at a time: each holds a base model in memory."""
MOST_ENDED = 64
"""Replays whose result is kept; the oldest give way."""
MOST_SHOWN = 8000
"""Characters of what a replay says."""
LOOK_S = 0.2
MODULE = "art_extensions.ui.replay_child"

State = Literal["none", "running", "same", "differs", "refused", "failed"]
ENDS: Mapping[int, tuple[State, str]] = MappingProxyType(
    {
        0: ("same", "The replayed step is bit-equal to the recorded one."),
        1: ("differs", "The replayed step differs from the recorded one."),
        2: ("refused", "The step cannot be replayed."),
    }
)
"""Exit code of `art replay` -> what it means."""


class ReplayBusyError(Exception):
    """Another replay has to end first."""


@dataclass(kw_only=True, slots=True)
class PageReplay:
    """A replay, and how far it is."""

    run: RunFiles
    step: int
    state: State = "running"
    words: str = ""
    text: str = ""
    """The output of the command."""
    began: float = field(default_factory=time.monotonic)
    thread: threading.Thread | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns plain values for the page's script."""
        words = self.words
        if self.state == "running":
            words = f"Running for {time.monotonic() - self.began:.0f} s. {words}".rstrip()
        return {"state": self.state, "words": visible(words), "text": visible(self.text)}


NO_REPLAY: Mapping[str, Any] = MappingProxyType({"state": "none", "words": "", "text": ""})


class ReplayJobs:
    """The replays of some pages. Any thread may call."""

    def __init__(self, *, deadline: float = DEADLINE_S) -> None:
        """deadline: seconds that a replay may take."""
        self.key = secrets.token_urlsafe(24)
        """A request that starts a replay has it from a page."""
        self._deadline = deadline
        self._lock = threading.Lock()
        self._replays: dict[tuple[str, int], PageReplay] = {}
        self._closed = threading.Event()

    def start(self, run: RunFiles, step: int) -> PageReplay:
        """Starts a replay; of a step that is being replayed, returns that one.

        Raises ReplayBusyError where another step of the run is replayed, or too many runs are.
        """
        with self._lock:
            running = [one for one in self._replays.values() if one.state == "running"]
            own = next((one for one in running if one.run.key == run.key), None)
            if own is not None and own.step == step:
                return own
            if own is not None:
                raise ReplayBusyError(f"Step {own.step} of this run is being replayed: wait for its end.")
            if len(running) >= MOST_TOGETHER or self._closed.is_set():
                raise ReplayBusyError(
                    f"{len(running)} steps of other runs are being replayed: wait for the end of one."
                )
            self._replays.pop((run.key, step), None)
            ended = [key for key, one in self._replays.items() if one.state != "running"]
            for key in ended[: max(0, len(ended) - MOST_ENDED + 1)]:
                del self._replays[key]
            replay = self._replays[run.key, step] = PageReplay(run=run, step=step)
            replay.thread = threading.Thread(
                target=self._replay, args=(replay,), name=f"replay {run.key}", daemon=True
            )
            replay.thread.start()
            return replay

    def find(self, run: RunFiles, step: int) -> Mapping[str, Any]:
        """Returns the newest replay of a step as plain values."""
        with self._lock:
            replay = self._replays.get((run.key, step))
            return NO_REPLAY if replay is None else replay.to_json()

    def close(self) -> None:
        """Ends the processes, and removes what they wrote."""
        self._closed.set()
        with self._lock:
            threads = [one.thread for one in self._replays.values() if one.thread is not None]
        for thread in threads:
            thread.join()

    def _replay(self, replay: PageReplay) -> None:
        try:
            with TemporaryDirectory(prefix="art-ui-replay-", ignore_cleanup_errors=True) as folder:
                self._finish(replay, *self._run(replay, Path(folder)))
        except OSError as error:
            self._finish(replay, "failed", f"The replay could not be started: {error}", "")

    def _finish(self, replay: PageReplay, state: State, words: str, text: str) -> None:
        with self._lock:
            replay.words, replay.text, replay.state = words, text[-MOST_SHOWN:], state

    def _run(self, replay: PageReplay, folder: Path) -> tuple[State, str, str]:
        """Runs the process. Returns how it ended, in words too, and what it said."""
        output, errors = folder / "output", folder / "errors"
        with output.open("wb") as said, errors.open("wb") as complained:
            process = subprocess.Popen(
                _command(replay),
                env={**inherited_variables(), "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
                start_new_session=True,
            )
        try:
            while (code := process.poll()) is None:
                if time.monotonic() - replay.began > self._deadline:
                    words = f"The replay took more than {self._deadline:.0f} s and was ended."
                    return "failed", words, _read_end(errors)
                if self._closed.wait(LOOK_S):
                    return "failed", "The pages were closed.", ""
                replay.words = _last_line(errors)
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code not in ENDS:
            return "failed", f"The replay ended with code {code}.", _read_end(errors)
        state, words = ENDS[code]
        return state, words, _read_end(errors if state == "refused" else output)


def _command(replay: PageReplay) -> list[str]:
    named = f"{replay.run.project}/{replay.run.name}"
    options = ["--data-dir", str(replay.run.data_dir), "--progress"]
    return [sys.executable, "-m", MODULE, "replay", *options, "--", named, str(replay.step)]


def _read_end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * MOST_SHOWN))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if not _is_progress(line)).strip()


def _last_line(path: Path) -> str:
    """Returns how far the process is, by its own words."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 200))
        lines = file.read().decode(errors="replace").splitlines()
    found = next((line for line in reversed(lines) if _is_progress(line)), "")
    return f"It {found}." if found else "It loads the model."


def _is_progress(line: str) -> bool:
    return line.startswith("forwarded ") and line.endswith(" tokens")
