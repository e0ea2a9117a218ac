"""`art.utils.record_provenance`: writes where a model comes from into the metadata of its W&B artifact."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

_log = logging.getLogger("art.tracking.sinks.wandb")
"""Below `art`, so that `show_log` shows its lines."""
PROVENANCE = "wandb.provenance"


def record_provenance(run: Any, provenance: str) -> None:
    """Append to the list `wandb.provenance` of the run's newest artifact `{entity}/{project}/{name}:latest`.

    The run's own config gets the same list, which also works without a network. An artifact that cannot be
    reached, or that does not exist yet, is told in the log: provenance never stops a training.
    """
    wandb = import_module("wandb")  # the run is its own, so it is there
    known = list(run.config.get(PROVENANCE) or ())
    run.config.update({PROVENANCE: [*known, provenance]}, allow_val_change=True)
    if run.offline:
        _log.info("provenance %r of run %s stays in its config: the run is offline", provenance, run.name)
        return
    path = f"{run.entity}/{run.project}/{run.name}:latest"
    try:
        artifact = wandb.Api().artifact(path)
        artifact.metadata[PROVENANCE] = [*(artifact.metadata.get(PROVENANCE) or ()), provenance]
        artifact.save()
    except (wandb.errors.CommError, wandb.errors.UsageError, ValueError) as error:
        _log.warning("provenance %r of %s stays in the run's config: %s", provenance, path, error)
