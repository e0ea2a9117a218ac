"""Reads and annotates the record of a model's steps, from its files alone: no server has to run.

    for step in recorded_steps(model_folder):
        for one in read_rollouts(model_folder, step):
            one.rollout, one.fate, one.reward, one.advantage
        table = read_tokens(ModelPaths(model_folder).tokens(step))

The server writes the record (`art.wire.rollout_record`, `art.wire.training`). What is learned later, such
as a second judge's opinion, is added as an annotation, which the reader folds in. Tokens are joined by the
samples' ids with the ledger, and by the rollouts' names with the rollouts. numpy and safetensors are
imported when a file of tokens is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from art.errors import ConfigurationError, TrajectoryLogError, extra_needed
from art.process.foreign_files import open_foreign, read_lines
from art.tracking.folders import ModelPaths, lock_folder
from art.wire.records import first_flaw
from art.wire.rollout_record import RolloutRecord, fold_lines
from art.wire.training import PLACE_COLUMNS, TOKEN_COLUMNS, TokenFileHeader

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOKEN_VERSION = 1
"""The newest version of the files of tokens that is read here."""
_FIXED = frozenset({"group", "place", "fate", "samples"})
"""Facts of the step, which no annotation changes."""


def recorded_steps(model_folder: Path) -> list[int]:
    """Returns the steps that have a record of their rollouts, oldest first."""
    folder = ModelPaths(model_folder).steps
    found = folder.iterdir() if folder.is_dir() else ()
    steps = (int(path.name) for path in found if path.name.isdecimal())
    return sorted(step for step in steps if ModelPaths(model_folder).rollouts(step).is_file())


def read_rollouts(model_folder: Path, step: int) -> list[RolloutRecord]:
    """Returns the rollouts of the step that was made, group by group, annotations folded in.

    Empty where there is no record: the step is older than records are, or was trained on examples.
    """
    path = ModelPaths(model_folder).rollouts(step)
    try:
        with open_foreign(path) as lines:
            return fold_lines(line for _, line in read_lines(lines) if line is not None)
    except FileNotFoundError:
        return []


def annotate_rollout(model_folder: Path, step: int, rollout: str, fields: Mapping[str, Any]) -> None:
    """Adds a line that replaces these fields of a rollout for whoever reads the record from now on.

    fields: of `RolloutRecord`, as JSON values. Several programs may annotate at the same time.

    Raises ConfigurationError for a field that there is not, or that is a fact of the step, and for a rollout
    that the record does not have.
    """
    if wrong := sorted(set(fields) - (set(RolloutRecord.model_fields) - _FIXED - {"rollout"})):
        raise ConfigurationError(f"an annotation of a rollout cannot set {', '.join(wrong)}")
    known = {one.rollout: one for one in read_rollouts(model_folder, step)}
    if rollout not in known:
        raise ConfigurationError(f"step {step} of {model_folder} has no record of a rollout {rollout!r}")
    RolloutRecord.model_validate(known[rollout].model_dump() | dict(fields))
    path = ModelPaths(model_folder).rollouts(step)
    line = json.dumps({"rollout": rollout, **fields}, allow_nan=False).encode() + b"\n"
    with lock_folder(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            if not _ends_a_line(descriptor):
                line = b"\n" + line  # after the piece that a killed writer left
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """The recorded tokens of a step, one row for each; a sample's rows lie together, in the order of its
    completion.
    """

    header: TokenFileHeader
    columns: Mapping[str, npt.NDArray[np.generic]]
    """Arrays of equal length: those of `TOKEN_COLUMNS` and `PLACE_COLUMNS`."""

    def __len__(self) -> int:
        return len(self.columns["logprob"])

    @property
    def complete(self) -> bool:
        """Returns whether all trained tokens of the step are here; else those of some groups are."""
        return len(self) == self.header.entries

    def of_sample(self, sample_id: str) -> dict[str, npt.NDArray[np.generic]] | None:
        """Returns the columns of one sample's tokens; None where it was not trained or not recorded."""
        rows = self._rows.get(sample_id)
        return None if rows is None else {name: column[rows] for name, column in self.columns.items()}

    def samples_of(self, rollout: str) -> list[str]:
        """Returns the ids of the recorded samples of one rollout, in their order."""
        owner = self.columns["rollout"]
        return [
            sample_id
            for sample_id, rows in self._rows.items()
            if rows.stop > rows.start and self.header.rollouts[int(owner[rows.start])] == rollout
        ]

    @cached_property
    def _rows(self) -> dict[str, slice]:
        import numpy as np

        count = len(self.header.samples)
        end = np.cumsum(np.bincount(self.columns["sample"].astype(np.int64), minlength=count)).tolist()
        starts = [0, *end[:-1]]
        return {
            name: slice(first, last)
            for name, first, last in zip(self.header.samples, starts, end, strict=True)
        }


def read_tokens(path: Path) -> TokenTable | None:
    """Returns the table in a file (`ModelPaths.tokens(step)`); None where there is no file: the step is
    older than the retention, was made by an earlier release, or was told to record nothing.

    Raises TrajectoryLogError for a file that is damaged or of a newer format, MissingExtraError where
    numpy or safetensors is not installed.
    """
    with extra_needed("server", f"reading {path}"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            columns = {name: file.get_tensor(name) for name in file.keys()}
        header = TokenFileHeader.model_validate_json(metadata.get("header", ""))
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError) as error:
        raise TrajectoryLogError(
            f"{path} cannot be read ({error}): it is cut or changed; restore or delete it"
        ) from error
    except ValidationError as error:
        raise TrajectoryLogError(
            f"{path} has a header that this release does not read ({first_flaw(error)}): upgrade ART, or "
            "delete the file"
        ) from error
    if header.version > TOKEN_VERSION or not {*TOKEN_COLUMNS, *PLACE_COLUMNS} <= set(columns):
        raise TrajectoryLogError(
            f"{path} is of format {header.version} with the columns {', '.join(sorted(columns))}; this "
            f"release reads format {TOKEN_VERSION}: upgrade ART, or delete the file"
        )
    return TokenTable(header=header, columns=columns)
