"""Where a model on Weights & Biases comes from: a list in its artifact's metadata."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

KEY = "wandb.provenance"

log = logging.getLogger(__name__)


def record_provenance(run: Any, provenance: str) -> None:
    """Append to the list `wandb.provenance` of the run's newest artifact `{entity}/{project}/{name}:latest`.

    The run's own config gets the same list, which also works without a network. An artifact that cannot be
    reached, or that does not exist yet, is told in the log: provenance never stops a training.
    """
    wandb = import_module("wandb")  # the run is its own, so it is there
    known = list(run.config.get(KEY) or ())
    run.config.update({KEY: [*known, provenance]}, allow_val_change=True)
    if run.offline:
        log.info("provenance %r of run %s stays in its config: the run is offline", provenance, run.name)
        return
    path = f"{run.entity}/{run.project}/{run.name}:latest"
    try:
        artifact = wandb.Api().artifact(path)
        artifact.metadata[KEY] = [*(artifact.metadata.get(KEY) or ()), provenance]
        artifact.save()
    except (wandb.errors.CommError, wandb.errors.UsageError, ValueError) as error:
        log.warning("provenance %r of %s stays in the run's config: %s", provenance, path, error)
