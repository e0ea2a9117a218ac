"""The judge of `bench.soak` finds what grows, at the limit that it has, and nothing where nothing grows."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bench.soak.findings import Finding, Soak, count_of, memory_of
from bench.soak.flatness import has_outgrown, slope_of, warm_looks
from bench.soak.points import RECORDS, Logbook, Point, read_points
from bench.soak.processes import Usage, look_at_family
from bench.soak.tables import PAGE, write_tables

from art.runs.comparison import t_975

LEAKING = """
import os, sys, threading
kept = []
for line in sys.stdin:
    for number in range(100):
        work = [bytes(1000) for _ in range(50)]  # a step allocates, and gives back
        if sys.argv[1] == "memory":
            kept.append(bytes(1967))  # 2 kB with its header
    if sys.argv[1] == "descriptors":
        kept.append(os.dup(0))
    if sys.argv[1] == "threads":
        kept.append(threading.Thread(target=threading.Event().wait, daemon=True))
        kept[-1].start()
    print("done", flush=True)
"""
SOAK = Soak(kind="steps", unit=1000, checkpoints=0, tokens=0, samples=0, kept=0)


def look_at_5000_steps(leak: str, path: Path) -> list[Point]:
    """A real process, looked at each hundred steps as a soak does."""
    book = Logbook(path / "records.jsonl", "steps", path)
    child = subprocess.Popen(
        [sys.executable, "-c", LEAKING, leak], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        for look in range(1, 51):
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            seen = {"client": Usage.of(psutil.Process(child.pid))}
            book.add(100 * look, processes=seen, disk={}, seconds=0.0, views={})
        child.stdin.close()
    return read_points(path / "records.jsonl", "steps")


def judged(points: list[Point]) -> dict[str, Finding]:
    return {
        "memory": memory_of(points, "client", SOAK),
        **{name: count_of(points, "client", name) for name in ("descriptors", "threads")},
    }


@pytest.mark.slow
@pytest.mark.parametrize("leak", ["nothing", "memory", "descriptors", "threads"])
def test_a_leak_of_a_real_process_is_found_and_named(leak: str, tmp_path: Path) -> None:
    found = judged(look_at_5000_steps(leak, tmp_path))
    met = {name: one.met for name, one in found.items()}
    if leak == "threads":  # each has a stack
        assert met.pop("memory") is not None
    expected = {name: name != leak for name in met}
    assert met == expected, [one.line() for one in found.values()]
    if leak == "memory":
        assert found["memory"].growth.startswith(("+1.9", "+2.0")), found["memory"].growth


@pytest.mark.slow
def test_the_processes_that_are_looked_at_are_a_family(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()']); input()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        from waiting import eventually

        eventually(lambda: len(psutil.Process(child.pid).children(recursive=True)) == 1)
        assert sorted(look_at_family(child.pid)) == ["other", "other 2"]
    finally:
        child.communicate(b"\n\n")


def test_the_interval_covers_the_slope_as_often_as_it_says() -> None:
    """Errors that hang on from look to look, as those of an allocator do."""
    draw, inside, rounds = random.Random(0), 0, 400
    for _ in range(rounds):
        level, looks = 0.0, []
        for at in range(100):
            level = 0.6 * level + draw.gauss(0, 1)
            looks.append((at, 50 + 0.1 * at + level))
        slope = slope_of([looks])
        assert slope is not None
        inside += slope.low <= 0.1 <= slope.high
    assert inside / rounds > 0.88


def test_each_start_has_a_level_of_its_own_and_a_warm_up() -> None:
    first = [(at, 100.0 + 5 * (at < 10) + at * 0.5) for at in range(40)]
    second = [(at, 300.0 + at * 0.5) for at in range(40, 80)]
    slope = slope_of([first, second])
    assert slope is not None and slope.value == pytest.approx(0.5) and slope.high == pytest.approx(0.5)
    assert warm_looks(first)[0] == (16, 108.0)
    assert slope_of([first[:3], second[:2]]) is None, "too few"
    one = slope_of([[(0, 0), (1, 0.9), (2, 2), (3, 3.2), (4, 4.1)]])
    assert one is not None and one.high - one.value > 0 and t_975(1) > 12


@pytest.mark.parametrize(
    ("counts", "leaks"),
    [
        ([50] * 40, False),
        ([50 + number % 7 for number in range(40)], False),
        ([30] * 9 + [55] * 31, False),
        ([50 + number // 4 for number in range(40)], True),
        ([50 + number // 2 + number % 3 for number in range(40)], True),
    ],
)
def test_counts_that_only_rise_leak(counts: list[int], leaks: bool) -> None:
    assert has_outgrown([list(enumerate(counts))]) is leaks


def test_the_page_has_the_tables_of_the_records(tmp_path: Path) -> None:
    page, text = tmp_path / "page.md", PAGE.read_text(encoding="utf-8")
    page.write_text(text, encoding="utf-8")
    write_tables(RECORDS, page)
    assert page.read_text(encoding="utf-8") == text, "run python -m bench.soak tables"
    newest = read_points(RECORDS, "steps")[-1]
    assert f"| {newest.at:,} steps | first | last |" in text
    page.write_text(text.replace("| client: memory |", "| client: memory | 1 MB |"), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != text
    write_tables(RECORDS, page)
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.slow  # asks git for the revision
def test_a_folder_goes_on_with_its_run_and_another_begins_one(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"

    def book(name: str) -> Logbook:
        (tmp_path / name).mkdir(exist_ok=True)
        return Logbook(records, "steps", tmp_path / name)

    usage = Usage(memory=1, descriptors=2, threads=3, cpu=0.5)
    told = {"processes": {"client": usage}, "disk": {"ledger": 4}, "seconds": 0.1, "views": {}}
    first = book("a")
    assert (first.start, first.done) == (0, 0)
    made = [first.add(at, **told) for at in (10, 20)]
    again = book("a")
    assert (again.run, again.start, again.done) == (first.run, 1, 20)
    assert read_points(records, "steps") == made and read_points(records, "requests") == []
    other = book("b")
    assert other.run != first.run and other.start == 0
    newest = other.add(5, **told)
    assert read_points(records, "steps") == [newest] and read_points(records, "steps", first.run) == made
    assert [json.loads(line)["at"] for line in records.read_text().splitlines()] == [10, 20, 5]
