"""Reward curves of the examples: runs each and draws its progress, step by step.

    python -m bench curves          all of them, several minutes; writes docs/assets/curves.json and .svg
    python -m bench.curves --draw   only the picture, from docs/assets/curves.json

The picture follows the reader's light or dark theme.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA, PICTURE = ROOT / "docs" / "assets" / "curves.json", ROOT / "docs" / "assets" / "curves.svg"
MOST_SECONDS = 1500
WIDTH, HEIGHT, LEFT, TOP, GAP, COLUMNS = 310, 130, 42, 34, 42, 2
ROW = HEIGHT + TOP + 44
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 }
  .small { font-size: 11px; fill: #57606a }
  .frame { fill: none; stroke: #d0d7de }
  .grid { stroke: #d0d7de; stroke-dasharray: 2 4 }
  .curve { fill: none; stroke: #0969da; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .small { fill: #9198a1 }
    .frame, .grid { stroke: #3d444d }
    .curve { stroke: #58a6ff }
  }
"""


@dataclass(frozen=True)
class ExampleRun:
    """A program, and where its lines have the step and the figure that is drawn."""

    title: str
    program: str
    arguments: tuple[str, ...]
    line: str
    percent: bool = False


RUNS = {
    "first_agent": ExampleRun(
        "First agent: mean reward", "examples/first_agent.py", ("20",), r"step (\d+): mean reward (\S+)"
    ),
    "yes_no_maybe": ExampleRun(
        "Yes, no, maybe: mean reward",
        "examples/yes_no_maybe/yes_no_maybe.py",
        ("--steps", "20"),
        r"step (\d+): mean reward (\S+)",
    ),
    "tic_tac_toe": ExampleRun(
        "Tic-tac-toe: games not lost",
        "examples/tic_tac_toe/tic_tac_toe.py",
        ("--steps", "50"),
        r"step (\d+): ([\d.]+)%",
        percent=True,
    ),
    "langgraph_mail": ExampleRun(
        "LangGraph mail agent: answers right",
        "examples/langgraph_mail.py",
        ("12",),
        r"step (\d+): (\d+)%",
        percent=True,
    ),
}


def run_example(run: ExampleRun) -> list[list[float]]:
    """Returns `[step, figure]` of each line that the program printed."""
    with tempfile.TemporaryDirectory(prefix="art-curves-") as folder:
        command = [sys.executable, str(ROOT / run.program), *run.arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{run.program} ended with {done.returncode}: {done.stderr[-2000:]}")
    scale = 100 if run.percent else 1
    found = re.findall(rf"^{run.line}", done.stdout, re.M)
    return [[float(step), float(figure) / scale] for step, figure in found]


def picture(curves: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Returns an SVG with one panel per curve, by title; every figure is between 0 and 1."""
    width, height = COLUMNS * (WIDTH + GAP) + LEFT, -(-len(curves) // COLUMNS) * ROW
    panels = "".join(panel(title, curve, at) for at, (title, curve) in enumerate(curves.items()))
    said = "; ".join(
        f"{title} from {curve[0][1]:.2f} to {curve[-1][1]:.2f}" for title, curve in curves.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        ' role="img">\n'
        f"<title>{said}</title>\n<style>{STYLE}</style>\n{panels}</svg>\n"
    )


def panel(title: str, curve: Sequence[Sequence[float]], at: int) -> str:
    row, column = divmod(at, COLUMNS)
    left, top, first, last = LEFT + column * (WIDTH + GAP), TOP + row * ROW, curve[0][0], curve[-1][0]
    right, below = left + WIDTH, top + HEIGHT + 18

    def x(step: float) -> float:
        return round(left + (step - first) / max(1.0, last - first) * WIDTH, 1)

    def y(figure: float) -> float:
        return round(top + (1 - figure) * HEIGHT, 1)

    points = " ".join(f"{x(step)},{y(figure)}" for step, figure in curve)
    marks = "".join(
        f'<line class="grid" x1="{left}" x2="{right}" y1="{y(mark)}" y2="{y(mark)}"/>\n'
        f'<text class="small" x="{left - 5}" y="{y(mark) + 4}" text-anchor="end">{mark:g}</text>\n'
        for mark in (0, 0.5, 1)
    )
    return (
        f'<text class="title" x="{left}" y="{top - 12}">{title}</text>\n{marks}'
        f'<rect class="frame" x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}"/>\n'
        f'<polyline class="curve" points="{points}"/>\n'
        f'<text class="small" x="{left}" y="{below}">step {first:g}</text>\n'
        f'<text class="small" x="{right}" y="{below}" text-anchor="end">step {last:g}</text>\n'
    )


def main(arguments: Sequence[str]) -> int:
    if "--draw" not in arguments:
        curves = {name: run_example(run) for name, run in RUNS.items()}
        lines = ",\n".join(f' "{name}": {json.dumps(curve)}' for name, curve in curves.items())
        DATA.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    known = json.loads(DATA.read_text(encoding="utf-8"))
    drawn = picture({RUNS[name].title: curve for name, curve in known.items()})
    PICTURE.write_text(drawn, encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
