"""What a run keeps so that its steps can be done again, and what that takes on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from art.server.checkpoints.checkpoints import Checkpoints
from art.server.data_folder import DataLayout
from art.tracking.folders import find_model
from art.wire.training import COMPUTED_FILE, REQUEST_FILE
from art_extensions.replay.recorded_step import read_recorded
from art_extensions.replay.recorded_tables import ReplayError


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptStep:
    """A step with a checkpoint."""

    step: int
    computed: int
    """Bytes of its computed.json; 0: it has none."""
    request: int
    """Bytes of its request.json.gz; 0: it has none."""
    refusal: str | None
    """Why it cannot be replayed; None: it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRecords:
    """The records that the steps of a run keep."""

    model: str
    steps: Sequence[KeptStep]
    without_checkpoint: int
    """Further steps that have a record, which cannot be replayed as their checkpoint is gone."""
    computed: int
    """Bytes of all files computed.json."""
    request: int
    """Bytes of all files request.json.gz."""


def list_kept(run: str, data_dir: Path, database: str | None = None) -> KeptRecords:
    """Returns what a model (`project/name`) keeps. database: as in `replay_step`.

    Raises ConfigurationError for a name that is none of the folder's models.
    """
    named = find_model(run, data_dir)
    checkpoints = Checkpoints(DataLayout(data_dir).checkpoints_dir(named.project, named.name))
    computed, request = (_sizes(checkpoints.records, name) for name in (COMPUTED_FILE, REQUEST_FILE))
    trained = [step for step in checkpoints.steps() if step > 0]
    return KeptRecords(
        model=f"{named.project}/{named.name}",
        steps=[
            KeptStep(
                step=step,
                computed=computed.get(step, 0),
                request=request.get(step, 0),
                refusal=_refusal(run, step, data_dir, database),
            )
            for step in trained
        ],
        without_checkpoint=len({*computed, *request} - {*trained}),
        computed=sum(computed.values()),
        request=sum(request.values()),
    )


def _sizes(records: Path, name: str) -> dict[int, int]:
    found = records.glob(f"*/{name}")
    return {int(path.parent.name): path.stat().st_size for path in found if path.parent.name.isdigit()}


def _refusal(run: str, step: int, data_dir: Path, database: str | None) -> str | None:
    try:
        read_recorded(run, step, data_dir, database)
    except ReplayError as error:
        return str(error)
    return None
