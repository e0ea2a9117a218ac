"""Prints what the pages say of GPUs from the committed results, `bench/records/gpu.jsonl`.

    python -m bench.gpu.tables                               writes the parts between the marks of three pages
    python -m bench.gpu.tables build/gpu/gpu.jsonl           prints a run's tables
    python -m bench.gpu.tables build/gpu/gpu.jsonl --keep    adds the run to the committed ones, then writes

Without committed results the pages say that their figures are computed. A figure is the newest one of its
name. Dry runs are refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bench.gpu.parts import PARTS
from bench.gpu.results import Result, figure, read_lines

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "bench" / "records" / "gpu.jsonl"
BEGIN, END = "<!-- gpu -->", "<!-- /gpu -->"
Lines = Sequence[dict[str, Any]]


def newest_results(lines: Lines) -> dict[str, list[Result]]:
    """Returns the newest result of each name, by part, in the order in which parts run. A run that measured
    no ceilings has no limits: the limit is then the one before.
    """
    known = {one.name for one in fields(Result)}
    newest: dict[tuple[str, str], Result] = {}
    for line in lines:
        if line["kind"] == "result":
            key = line["part"], line["name"]
            made = Result(**{name: value for name, value in line.items() if name in known})
            before = newest.get(key)
            if made.limit is None and before is not None:
                made = replace(made, limit=before.limit, limit_how=before.limit_how)
            newest[key] = made
    by_part: dict[str, list[Result]] = {part.name: [] for part in PARTS}
    for (part, _), result in newest.items():
        by_part.setdefault(part, []).append(result)
    return {part: results for part, results in by_part.items() if results}


def machine_of(lines: Lines) -> str:
    """Returns the machine in words."""
    machine = [line for line in lines if line["kind"] == "machine"][-1]
    return f"one {machine['gpu']}, torch {machine['torch']}, transformers {machine['transformers']}"


def table_rows(results: Sequence[Result]) -> Iterator[str]:
    yield "| | ours | beside | limit | |"
    yield "|---|---|---|---|---|"
    for one in results:
        beside = [] if one.peer is None else [f"{figure(one.peer)} ({one.peer_name})"]
        beside += [] if one.published is None else [f"{figure(one.published)} ({one.published_by})"]
        limit = "" if one.limit is None else f"{figure(one.limit)} ({one.limit_how})"
        value = f"{figure(one.value)} {one.unit}".strip()
        cells = (one.name, value, ", ".join(beside), limit, one.note)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def benchmarks_text(lines: Lines) -> str:
    """Returns the section of docs/internals/benchmarks.md."""
    if not lines:
        return (
            "Nothing has been measured yet: every figure about GPUs in this documentation is computed. The "
            "script compares\nQwen3-0.6B and 4B shapes with the 13,340 and 6,230 tokens/s that prime-rl "
            "publishes for one H100.\n"
        )
    parts = [f"Measured on {machine_of(lines)}.\n"]
    ends = {line["part"]: line for line in lines if line["kind"] == "part"}
    for part, results in newest_results(lines).items():
        parts.append("\n".join([f"### {part}\n", *table_rows(results)]) + "\n")
    others = [end for end in ends.values() if end["status"] != "done"]
    parts += [f"The part {end['part']} was {end['status']}: {end['said']}.\n" for end in others]
    return "\n".join(parts)


def hardware_text(lines: Lines) -> str:
    """Returns what docs/guides/hardware.md says of measurements: the plan beside the peak."""
    results = newest_results(lines).get("memory", [])
    if not results:
        return "**All figures of this page are computed, none was measured on a GPU.**\n"
    head = (
        f"The tables are computed. These peaks of one training step were measured on {machine_of(lines)}:\n"
    )
    rows = ["| step | measured | planned | |", "|---|---|---|---|"]
    for one in results:
        planned = "" if one.peer is None else f"{figure(one.peer)} GiB"
        rows.append(f"| {one.name} | {figure(one.value)} GiB | {planned} | {one.note} |")
    return "\n".join([head, *rows]) + "\n"


def readme_text(lines: Lines) -> str:
    """Returns the sentence of README.md under its table of machines."""
    results = newest_results(lines)
    if not results.get("memory"):
        return "The GPU rows are computed for a context of 8,192 tokens, not measured.\n"
    speeds = [
        f"{figure(one.value)} tokens/s for {one.name.partition(':')[0]} ({one.peer_name} {figure(one.peer)})"
        for part in ("trainer-0.6b", "trainer-4b")
        for one in results.get(part, [])[:1]
        if one.value is not None
    ]
    trains = f" It trained at {' and '.join(speeds)}." if speeds else ""
    return (
        f"The GPU rows are computed for a context of 8,192 tokens. Measured on {machine_of(lines)}.{trains}\n"
    )


PAGES = {
    ROOT / "docs" / "internals" / "benchmarks.md": benchmarks_text,
    ROOT / "docs" / "guides" / "hardware.md": hardware_text,
    ROOT / "README.md": readme_text,
}


def printed(page: str, text: str) -> str:
    """Returns the page with this text between its marks. Raises ValueError where it lacks them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} or {END}, between which its figures of GPUs stand")
    return f"{before}{begin}\n{text}{end}{after}"


def measured_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a run on a GPU. Raises SystemExit for a dry run, which measures nothing."""
    lines = list(read_lines(path))
    if any(line.get("dry") for line in lines) or any("gpu" not in x for x in lines if x["kind"] == "machine"):
        raise SystemExit(f"{path} is of a dry run or of a CPU: its figures are no measurements of a GPU")
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", help="of one run; default: none is added")
    parser.add_argument("--keep", action="store_true", help="add them to bench/records/gpu.jsonl")
    asked = parser.parse_args(arguments)
    if asked.results is not None:
        lines = measured_lines(asked.results)
        if not asked.keep:
            print(benchmarks_text(lines))
            return 0
        RECORDS.parent.mkdir(exist_ok=True)
        with RECORDS.open("a", encoding="utf-8") as stream:
            stream.write(asked.results.read_text(encoding="utf-8"))
    committed = measured_lines(RECORDS)
    for path, make_text in PAGES.items():
        page = path.read_text(encoding="utf-8")
        path.write_text(printed(page, make_text(committed)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
