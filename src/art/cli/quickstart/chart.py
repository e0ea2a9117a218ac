"""The reward curve as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def draw_reward_curve(rewards: Sequence[float], path: Path, *, title: str) -> None:
    """Write a PNG of the mean reward of each step's attempts, with a running mean of five."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = range(1, len(rewards) + 1)
    axes.plot(
        steps,
        rewards,
        color="#9bb8d3",
        marker="o",
        markersize=3,
        linewidth=1,
        label="mean reward of the step",
    )
    axes.plot(
        steps, running_mean(rewards, window=5), color="#1f5a92", linewidth=2, label="running mean of five"
    )
    axes.set_xlabel("training step")
    axes.set_ylabel("reward")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    canvas.print_png(str(path))


def running_mean(values: Sequence[float], *, window: int) -> list[float]:
    """Mean of each value and up to `window - 1` before it.

    >>> running_mean([1.0, 3.0, 5.0], window=2)
    [1.0, 2.0, 4.0]
    """
    means = []
    for end in range(1, len(values) + 1):
        recent = values[max(0, end - window) : end]
        means.append(sum(recent) / len(recent))
    return means
