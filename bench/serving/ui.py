"""What the pages of `art ui` cost in a real Chromium: CPU of the page's main thread, not time of the clock.

The main thread's CPU is that of Chromium's own metrics (`TaskDuration` in thread ticks), so that other work
on the machine says little: from the navigation, with which they begin anew, until the network is quiet. Each
figure is the median of several visits. The index is measured in this process, over steps as a run logs them:
Parquet and record.
"""

from __future__ import annotations

import json
import random
import shutil
import socket
import sqlite3
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import uvicorn
from openai.types.chat.chat_completion import Choice
from playwright.sync_api import sync_playwright
from safetensors.numpy import save_file

import art
from art.server.ledger.schema import CREATE, INSERT, SampleRecord, to_row
from art.tracking.model_files import append_history_row
from art.tracking.trajectory_log import append_groups
from art.wire.rollout_record import RolloutRecord
from art.wire.training import TokenFileHeader
from art_extensions.ui.app import guarded_pages
from art_extensions.ui.index import RolloutIndex
from art_extensions.ui.run_files import find_runs
from bench.rows import Row, write_rows

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

STEPS, GROUPS, SIZE = 50, 256, 8
"""102,400 rollouts."""
TOKENS = 8000
VISITS, JUMPS, CHANGES = 5, 60, 10
LIVE_STEPS, LIVE_GROUPS = 20, 16
RUN = "runs/-/bench/agent"


def write_list(folder: Path) -> None:
    """A run with its record alone: the index reads nothing else of a list."""
    draw = random.Random(0)
    model = folder / "bench" / "models" / "agent"
    for step in range(1, STEPS + 1):
        lines = [
            RolloutRecord(
                rollout=f"{step}.{group}.{place}", group=group, place=place, fate="trained",
                scenario=f"scenario {group} of a list that is long", reward=draw.random(),
                advantage=draw.gauss(0, 1),
                tokens=draw.randrange(400), samples=["s"], seconds=draw.random(),
            ).line()
            for group in range(GROUPS)
            for place in range(SIZE)
        ]  # fmt: skip
        path = model / "steps" / f"{step:04d}" / "rollouts.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(lines))
        row = {"train/reward": draw.random(), "loss/entropy": 1 / step, "step": step, "training_step": step}
        append_history_row(model / "history.jsonl", row)


def write_tokens(folder: Path) -> None:
    """A step with one rollout of 8,000 sampled tokens, each with all signals."""
    model, step, draw = folder / "bench" / "models" / "agent", STEPS + 1, np.random.default_rng(0)
    (folder / "server").mkdir()
    vocabulary = {f"w{number}": number for number in range(500)}
    checkpoint = model / "checkpoints" / "0001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    record = SampleRecord(
        sample_id="long", rollout_id="long", project="bench", model="agent", base_model="b", step=1,
        adapter=None, parent_id=None, fork_reason=None, prompt_ids=array("i", range(100)),
        completion_ids=array("i", draw.integers(0, 500, TOKENS).tolist()),
        completion_logprobs=array("f", (-draw.exponential(1, TOKENS)).tolist()), sampling={},
        finish_reason="stop", turn_key=b"", tools_key=b"", created_at=1.0,
    )  # fmt: skip
    with sqlite3.connect(folder / "server" / "ledger.sqlite") as connection:
        connection.executescript(CREATE)
        connection.execute(INSERT, to_row(record))
    line = RolloutRecord(
        rollout="long", group=0, place=0, fate="trained", samples=["long"], tokens=TOKENS
    ).line()
    path = model / "steps" / f"{step:04d}"
    path.mkdir()
    (path / "rollouts.jsonl").write_text(line)
    header = TokenFileHeader(
        job_id="j", step=step, entries=TOKENS, samples=["long"], rollouts=["long"], groups=[0]
    )
    columns = {
        "logprob": draw.normal(-1, 1, TOKENS).astype(np.float32),
        "entropy": draw.exponential(1, TOKENS).astype(np.float16),
        "advantage": draw.normal(0, 1, TOKENS).astype(np.float32),
        "ratio": draw.normal(1, 0.2, TOKENS).astype(np.float32),
        "clipped": draw.random(TOKENS) < 0.1,
        "masked": draw.random(TOKENS) < 0.1,
        "rollout": np.zeros(TOKENS, np.uint8),
        "sample": np.zeros(TOKENS, np.uint8),
        "place": np.arange(TOKENS, dtype=np.uint16),
    }
    save_file(columns, path / "tokens.safetensors", metadata={"header": header.model_dump_json()})


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address that opens the pages."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    pages = guarded_pages(folder, port=port, on_use=lambda token: None)
    server = uvicorn.Server(uvicorn.Config(pages, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/?token={pages.access.token}"
    finally:
        server.should_exit = True
        thread.join()
        pages.close()


class MeteredPage:
    """A page whose main thread is metered."""

    def __init__(self, page: Page, door: str) -> None:
        self.page, self.address = page, door.partition("?")[0]
        page.goto(door)
        page.wait_for_url(self.address)
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu(self) -> float:
        """Milliseconds of the main thread since the navigation."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def visit(self, path: str) -> float:
        """Milliseconds of opening a page."""
        spent = []
        for _ in range(VISITS):
            self.page.goto(f"{self.address}nothing")
            self.page.wait_for_load_state("networkidle")
            self.page.goto(self.address + path)
            self.page.wait_for_load_state("networkidle")
            spent.append(self.cpu())
        return statistics.median(spent)

    def each(self, count: int, act: Callable[[int], None]) -> float:
        """Milliseconds of one of so many acts, with what is drawn after it."""
        spent = []
        for number in range(count):
            before = self.cpu()
            act(number)
            self.page.wait_for_load_state("networkidle")
            self.page.evaluate(
                "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
            )
            spent.append(self.cpu() - before)
        return statistics.median(spent)


def browser_rows(door: str) -> list[Row]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise SystemExit("no Chromium is installed: run tests/install_programs.sh")
    draw = random.Random(1)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = MeteredPage(browser.new_page(viewport={"width": 1280, "height": 800}), door)
        curve = page.visit(RUN)
        listed = page.visit(f"{RUN}/rollouts")
        jump = page.each(JUMPS, lambda _: _jump(page.page, draw.random()))
        tokens = page.visit(f"{RUN}/train/{STEPS + 1}/0/0")
        names = ("ratio", "advantage", "entropy", "mask", "logprob")
        change = page.each(CHANGES, lambda n: page.page.get_by_label(names[n % 5], exact=True).check())
        browser.close()
    count = STEPS * GROUPS * SIZE
    return [
        Row(name=f"a run of {STEPS} steps: curve and table", ours=curve, unit="ms CPU"),
        Row(name=f"a list of {count:,} rollouts", ours=listed, unit="ms CPU", goal=150, at_most=True),
        Row(name="a jump in it", ours=jump, unit="ms CPU", goal=16, at_most=True),
        Row(name=f"a rollout of {TOKENS:,} tokens", ours=tokens, unit="ms CPU", goal=350, at_most=True),
        Row(name="another colour for its tokens", ours=change, unit="ms CPU", goal=100, at_most=True),
    ]


def _jump(page: Page, share: float) -> None:
    page.evaluate(
        "s => { const b = document.querySelector('.list-body'); b.scrollTop = s * b.scrollHeight; }", share
    )


def index_rows(folder: Path) -> list[Row]:
    """The index after each step of a run that goes on."""
    model = folder / "live" / "models" / "agent"
    model.mkdir(parents=True)
    (run,) = find_runs(folder).values()
    index, spent = RolloutIndex(folder), []
    for step in range(1, LIVE_STEPS + 1):
        groups = [
            art.TrajectoryGroup([_trajectory(f"{step}.{g}.{t}") for t in range(SIZE)])
            for g in range(LIVE_GROUPS)
        ]
        append_groups(model / "trajectories" / "train" / f"{step:04d}.parquet", groups)
        lines = [
            RolloutRecord(rollout=f"{step}.{g}.{t}", group=g, place=t, fate="trained", samples=["s"]).line()
            for g in range(LIVE_GROUPS)
            for t in range(SIZE)
        ]
        path = model / "steps" / f"{step:04d}" / "rollouts.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(lines))
        begin = time.process_time()
        index.refresh(run)
        spent.append(1000 * (time.process_time() - begin))
    index.close()
    name = f"the index, for a step of {LIVE_GROUPS * SIZE} rollouts"
    return [Row(name=name, ours=statistics.median(spent), unit="ms CPU", goal=40, at_most=True)]


def _trajectory(name: str) -> art.Trajectory:
    turns = []
    for turn in range(3):
        message = {"role": "assistant", "content": "an answer of some words " * 5}
        turns += [
            {"role": "user", "content": "a question of some words " * 10},
            Choice.construct(
                index=0, finish_reason="stop", message=message, logprobs=None, sample_id=f"{name}.{turn}"
            ),
        ]
    return art.Trajectory(messages_and_choices=turns, reward=1.0, rollout_id=name, metrics={"right": 1.0})


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        rows = index_rows(Path(name))
    with tempfile.TemporaryDirectory(prefix="art-bench-") as name:
        folder = Path(name)
        write_list(folder)
        write_tokens(folder)
        (run,) = find_runs(folder).values()
        index = RolloutIndex(folder)
        begin = time.process_time()
        index.refresh(run)
        rows.append(Row(name="the index, from nothing", ours=time.process_time() - begin, unit="s CPU"))
        index.close()
        with served(folder) as door:
            rows += browser_rows(door)
    write_rows("ui", rows)


if __name__ == "__main__":
    main()
