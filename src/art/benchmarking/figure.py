"""An empty chart. matplotlib is loaded here, when the first one is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from art.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#8c8c8c"
GRID = "#e5e5e5"


def new_chart(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches that `plt.show()` knows. No setting outside of it is changed.

    Raises: ConfigurationError when matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "charts need matplotlib, which is not installed: "
            "`pip install 'agent-reinforcement-trainer[plotting]'`"
        )
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), dpi=300)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
