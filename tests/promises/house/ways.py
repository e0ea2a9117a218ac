"""The ways through the house, counted while a real client, server, engine and trainer walk them.

    python tests/promises/house/ways.py             the figures, and each station of each way

- `chat`: files of `src/art` in which a function is entered between the question and the reply of one chat
  completion.
- `to_the_job`: calls that stand on each other between `model.train()` and the row of the job, in client and
  server.
- `to_the_gradient`: the same between taking the job and `loss.backward()`, in server and trainer.

Each process counts by itself (`sys.setprofile`); what goes on in another thread or task belongs to who asked
for it. A call is a function of ours on the stack; those that stand before a route's handler are not counted.
"""

from __future__ import annotations

import asyncio
import json
import linecache
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = str(Path(__file__).parents[3] / "src" / "art") + os.sep
FOLDER = "ART_WAYS"
"""The variable that names the folder of the counts; a process that has it counts."""
CHATS = 5
"""Counted questions. What is not entered by each, as a look after a worker's health, is not of the way."""
TAKES_THE_JOB = "TrainingJobs._work"
MOST_CHAT_FILES, MOST_CALLS_TO_THE_JOB, MOST_CALLS_TO_THE_GRADIENT = 45, 8, 8
"""What was reached; CONTRIBUTING.md says the same."""


@dataclass(frozen=True)
class Ways:
    """What the walk found; the stations in their order."""

    chat: tuple[str, ...]
    chat_to_the_engine: tuple[str, ...]
    """Those of client and server."""
    to_the_job: tuple[str, ...]
    to_the_gradient: tuple[str, ...]


# -- in each process of the walk --


@dataclass
class Counter:
    """What one process counts."""

    entered: dict[str, list[float]] = field(default_factory=dict)
    """File -> when a function of it was entered, to the millisecond."""
    chains: dict[str, list[str]] = field(default_factory=dict)
    """Mark -> the calls that lead to it."""
    sent_on: dict[int, list[str]] = field(default_factory=dict)
    """What another thread or task will run -> the calls that asked for it."""

    def see(self, frame: FrameType, event: str, callee: Any) -> None:
        """The profiler."""
        code = frame.f_code
        if event == "c_call":
            if callee.__name__ == "execute" and code.co_filename.startswith(SOURCE):
                if "INSERT INTO jobs" in linecache.getline(code.co_filename, frame.f_lineno):
                    self.chains["job"] = self.calls(frame)
        elif event == "call":
            if code.co_filename.startswith(SOURCE):
                now = time.time()
                times = self.entered.setdefault(code.co_filename, [])
                if not times or now - times[-1] > 0.001:
                    times.append(now)
            elif (mark := MARKS.get(code.co_qualname)) is not None:
                mark(self, frame)

    def sends(self, frame: FrameType) -> None:
        path = frame.f_locals["request"].url.path
        if path.endswith("/train"):
            self.chains["train" if path == "/train" else "ask"] = self.calls(frame)

    def learns(self, frame: FrameType) -> None:
        self.chains["backward"] = self.calls(frame)

    def hands_to_thread(self, frame: FrameType) -> None:
        self.sent_on[id(frame.f_locals["self"])] = self.calls(frame)

    def hands_to_task(self, frame: FrameType) -> None:
        coroutine = frame.f_locals["coro"]
        if getattr(coroutine, "cr_frame", None) is not None:
            self.sent_on[id(coroutine.cr_frame)] = self.calls(frame)

    def calls(self, frame: FrameType | None) -> list[str]:
        """The functions of ours on the stack, outermost first, from a handler or the taking of a job on."""
        found: list[str] = []
        outermost = frame
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(SOURCE):
                found.append(f"{code.co_filename.removeprefix(SOURCE)}: {code.co_qualname}")
                outermost = frame
                if code.co_qualname == TAKES_THE_JOB:
                    break
            elif code.co_filename.endswith("starlette/routing.py"):
                break
            elif code.co_qualname == "_WorkItem.run":
                return self.sent_on.get(id(frame.f_locals["self"]), []) + found[::-1]
            elif code.co_qualname == "Handle._run":
                return self.sent_on.get(id(outermost), []) + found[::-1]
            frame = frame.f_back
        return found[::-1]

    def write(self, folder: Path) -> None:
        """Again and again: nobody knows when a process is ended."""
        path = folder / f"{os.getpid()}.json"
        while True:
            time.sleep(0.1)
            text = json.dumps({"entered": self.entered.copy(), "chains": self.chains.copy()})
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)


MARKS = {
    "AsyncClient.send": Counter.sends,
    "Tensor.backward": Counter.learns,
    "_WorkItem.__init__": Counter.hands_to_thread,
    "BaseEventLoop.create_task": Counter.hands_to_task,
}


def count() -> None:
    """Count in this process from now on."""
    counter = Counter()
    threading.Thread(target=counter.write, args=[Path(os.environ[FOLDER])], daemon=True).start()
    threading.setprofile(counter.see)
    sys.setprofile(counter.see)


# -- the walk --


async def walk(folder: Path) -> list[tuple[float, float]]:
    """A few chat completions, then a step. Returns when each counted completion began and ended."""
    import art

    async def rollout(reward: float) -> art.Trajectory:
        name = model.get_inference_name()
        began = time.time()
        reply = await client.chat.completions.create(model=name, messages=messages, max_tokens=4)
        spans.append((began, time.time()))
        return art.Trajectory(messages_and_choices=[*messages, reply.choices[0]], reward=reward)

    spans: list[tuple[float, float]] = []
    messages: list[Any] = [{"role": "user", "content": "yes, no or maybe?"}]
    model = art.TrainableModel(name="walker", project="ways", base_model="art/nano")
    async with art.LocalBackend(path=str(folder)) as backend:
        await model.register(backend)
        client = model.openai_client()
        rollouts = []
        for number in range(3 + CHATS):  # the first ones load what is loaded once
            await asyncio.sleep(0.2)
            rollouts.append(await rollout(float(number)))
        await model.train([art.TrajectoryGroup(rollouts)])
        await asyncio.sleep(0.3)
    return spans[-CHATS:]


def measure() -> Ways:
    """Walk once, in processes of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        counts = folder / "counts"
        counts.mkdir()
        start = f"import runpy\nrunpy.run_path({__file__!r}, run_name='ways')['count']()\n"
        (folder / "sitecustomize.py").write_text(start)
        variables = {**os.environ, FOLDER: str(counts), "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "walk", str(folder / "art")]
        walked = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=240, check=False, cwd=folder
        )
        if walked.returncode:
            raise RuntimeError(f"the walk failed:\n{walked.stdout}\n{walked.stderr}")
        spans = json.loads(walked.stdout.splitlines()[-1])
        return _merge([json.loads(path.read_text()) for path in counts.glob("*.json")], spans)


def _merge(processes: Sequence[dict[str, Any]], spans: Sequence[tuple[float, float]]) -> Ways:
    chains: dict[str, list[str]] = {}
    for process in processes:
        chains |= process["chains"]
    to_the_engine = [
        one for one in processes if any(file.endswith("server/app.py") for file in one["entered"])
    ]
    client = [
        one for one in processes if any(file.endswith("client/local_backend.py") for file in one["entered"])
    ]
    return Ways(
        chat=_files(processes, spans),
        chat_to_the_engine=_files([*client, *to_the_engine], spans),
        to_the_job=(*chains["ask"], *chains["job"]),
        to_the_gradient=(*chains["train"], *chains["backward"]),
    )


def _files(processes: Sequence[dict[str, Any]], spans: Sequence[tuple[float, float]]) -> tuple[str, ...]:
    """What was entered in each of the spans, in the order of the last one."""
    seen: dict[str, list[float]] = {}
    for process in processes:
        for file, times in process["entered"].items():
            seen.setdefault(file.removeprefix(SOURCE), []).extend(times)
    first = {
        file: min((t for t in times if spans[-1][0] <= t <= spans[-1][1]), default=0.0)
        for file, times in seen.items()
        if all(any(began <= t <= ended for t in times) for began, ended in spans)
    }
    return tuple(sorted(first, key=lambda file: first[file]))


def main() -> None:
    if sys.argv[1:2] == ["walk"]:
        print(json.dumps(asyncio.run(walk(Path(sys.argv[2])))))
        return
    ways = measure()
    print(f"{len(ways.chat):>4}  files of one chat completion")
    print(f"{len(ways.chat_to_the_engine):>4}  of these in client and server")
    print(f"{len(ways.to_the_job):>4}  calls from train() to the job's row")
    print(f"{len(ways.to_the_gradient):>4}  calls from taking the job to the gradient")
    for title, stations in (
        ("chat", ways.chat),
        ("to the job", ways.to_the_job),
        ("to the gradient", ways.to_the_gradient),
    ):
        for station in stations:
            print(f"{title}: {station}")


if __name__ == "__main__":
    main()
