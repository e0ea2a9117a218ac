"""A picture of curves as SVG, one panel a curve, which follows the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
