"""A picture of what a step trained: the token tree, and beside it what each trained token weighed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from art.batch.batch_types import Batch
from art.errors import RequestError, is_installed

_WIDTH = 512
"""Tokens of a row of the picture."""


def check_plots() -> None:
    """Raises RequestError where the server has no matplotlib."""
    if not is_installed("matplotlib"):
        raise RequestError(
            "plot_tensors=True draws with matplotlib, which the server does not have: install the extra "
            "'plotting' there, or leave plot_tensors out",
            status=400,
            code="matplotlib_missing",
            param="compute.plot",
        )


def plot_batch(batch: Batch, folder: Path, step: int) -> Path:
    """Write `packed_tensors_plot_<step>.png`: ids, positions, advantages and logprobs of the tree's tokens.

    Tokens lie in depth-first order, row after row; where nothing is trained the two lower pictures are
    empty, and a token that several rollouts sampled shows their mean.
    """
    from matplotlib.figure import Figure

    tree, entries = batch.tree, batch.entries
    count_T = np.bincount(entries.token_E, minlength=len(tree))
    columns = {
        "token ids": tree.tokens_T.astype(np.float64),
        "positions": tree.depth_T.astype(np.float64),
        "advantages": _mean(entries.token_E, entries.advantage_E * entries.weight_E, count_T),
        "logprobs when sampled": _mean(entries.token_E, entries.logprob_E, count_T),
    }
    figure = Figure(figsize=(12, 10), layout="constrained")
    for axes, (title, values_T) in zip(figure.subplots(len(columns), 1), columns.items(), strict=True):
        signed = title == "advantages"
        extreme = float(np.nanmax(np.abs(values_T), initial=1e-12)) if signed else None
        picture = axes.imshow(
            _rows(values_T),
            aspect="auto",
            interpolation="nearest",
            cmap="RdBu" if signed else "viridis",
            vmin=-extreme if extreme is not None else None,
            vmax=extreme,
        )
        axes.set_title(f"{title} ({len(tree)} tokens, step {step})")
        figure.colorbar(picture, ax=axes)
    path = folder / f"packed_tensors_plot_{step:04d}.png"
    figure.savefig(path, dpi=100)
    return path


def _mean(token_E: np.ndarray, value_E: np.ndarray, count_T: np.ndarray) -> np.ndarray:
    total_T = np.bincount(token_E, weights=value_E, minlength=len(count_T))
    mean_T: np.ndarray = np.where(count_T > 0, total_T / np.maximum(count_T, 1), np.nan)
    return mean_T


def _rows(values_T: np.ndarray) -> np.ndarray:
    width = min(_WIDTH, len(values_T))
    rows = -(-len(values_T) // width)
    padded = np.full(rows * width, np.nan)
    padded[: len(values_T)] = values_T
    return padded.reshape(rows, width)
