"""A run's steps in the file that `art ui` and `art explain` read, beside its checkpoints."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from art.tracking.folders import ModelPaths
from art.tracking.model_files import append_history_row
from art.tracking.names import history_row
from art.wire.gradients import MadeStep
from art_extensions.tinker import tinker_public_pb2 as messages
from art_extensions.tinker.store import Run, now

_log = logging.getLogger(__name__)

NAMES = {
    "loss:sum": "loss/train",
    "forwarded_tokens:sum": "data/forwarded_tokens",
    "loss_tokens:sum": "data/step_trainer_tokens",
}
"""Metrics of a batch -> those of a step, which are their sums."""
BATCHES = "train/batches"
"""The number of a step's batches. By a name of this split `art explain` knows a step of training."""


def record_step(run: Run, made: MadeStep, results: Sequence[bytes]) -> None:
    """Writes down a step that was made of batches with these results, where its folder is on this machine.

    A step that is made a second time has two rows, of which readers take the newer one. A full disk costs the
    row and not the step.
    """
    if made.checkpoint_path is None or not Path(made.checkpoint_path).is_dir():
        return
    metrics = Counter({BATCHES: float(len(results)), **made.metrics})
    for result in results:
        found = messages.ForwardBackwardOutput.FromString(result).metrics
        for theirs, ours in NAMES.items():
            metrics[ours] += found.get(theirs, 0.0)
    history = ModelPaths(Path(made.checkpoint_path).parents[1]).history
    try:
        row = history_row(dict(metrics), step=made.step, wall_clock=now() - run.created_at)
        append_history_row(history, row)
    except OSError as error:
        _log.warning("step %d of %s is not in %s: %s", made.step, run.name, history, error)
