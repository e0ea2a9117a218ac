"""Reads the record of each trained token of a step: `steps/NNNN/tokens.safetensors` of a model's folder.

The server writes it; `art.wire.training` has the format. It is joined by the samples' ids with the ledger,
and by the rollouts' names with the step's `rollouts.jsonl`. numpy and safetensors are imported when a file is
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from art.errors import TrajectoryLogError, extra_needed
from art.wire.records import first_flaw
from art.wire.training import PLACE_COLUMNS, TOKEN_COLUMNS, TokenFileHeader

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

VERSION = 1
"""Of the files that are read here."""


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
    if header.version > VERSION or not {*TOKEN_COLUMNS, *PLACE_COLUMNS} <= set(columns):
        raise TrajectoryLogError(
            f"{path} is of format {header.version} with the columns {', '.join(sorted(columns))}; this "
            f"release reads format {VERSION}: upgrade ART, or delete the file"
        )
    return TokenTable(header=header, columns=columns)
