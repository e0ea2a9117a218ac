"""What a replay changes of a step, one thing at a time: the request, or how it is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from art.batch.algorithms import DEFAULT, TABLE, resolve
from art.errors import ConfigurationError
from art.server.jobs.job_table import JobRequest
from art.wire.algorithm import Algorithm
from art.wire.jobs import TrainJobRequest

SHORTEST_PREFIX = 4
"""Characters of a rollout's name that are enough to find it by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepChanges:
    """The changes that were asked for; without one, the step is done as it was."""

    without: Sequence[str] = ()
    """Rollouts: a name, its first characters, or GROUP.PLACE."""
    algorithm: str | None = None
    """A row of the table, or the JSON of parts that are laid over the step's own algorithm."""
    row_tokens: int | None = None
    """Tokens of a micro-batch."""
    dtype: Literal["float32", "bfloat16", "float64"] | None = None
    device: str | None = None
    """What computes: cpu, cuda, or one GPU, such as cuda:1."""
    ranks: int | None = None
    """Processes that train together; None: as many as did."""

    def described(self) -> dict[str, Any]:
        """Returns what was asked for, by the names of the options."""
        asked = {
            "without": list(self.without),
            "algorithm": self.algorithm,
            "row_tokens": self.row_tokens,
            "dtype": self.dtype,
            "device": self.device,
            "ranks": self.ranks,
        }
        return {name: value for name, value in asked.items() if value}

    def request(self, recorded: JobRequest) -> JobRequest:
        """Returns the request with the changes. Raises ConfigurationError."""
        if not isinstance(recorded, TrainJobRequest):
            return self._of_conversations(recorded)
        changed = recorded
        for asked in self.without:
            changed = _without(changed, asked)
        if self.algorithm is None:
            return changed
        algorithm = changed_algorithm(recorded.algorithm, self.algorithm)
        return changed.model_copy(update={"algorithm": algorithm})

    def _of_conversations(self, recorded: JobRequest) -> JobRequest:
        given = {"without": self.without, "algorithm": self.algorithm}
        if named := [name for name, value in given.items() if value]:
            raise ConfigurationError(
                f"--{named[0]} changes steps that learned from rewards, and job {recorded.job_id} learned "
                "from conversations: leave it out"
            )
        return recorded

    def trainer_options(self) -> Mapping[str, Any]:
        """Returns what replaces the trainer's own configuration."""
        asked = {"token_budget": self.row_tokens, "dtype": self.dtype, "device": self.device}
        return {name: value for name, value in asked.items() if value is not None}


def changed_algorithm(recorded: Algorithm, text: str) -> Algorithm:
    """Returns a row of the table, or the recorded algorithm with other parts; of a part that is given as an
    object, the row's own fields fill what is left out.

    Raises ConfigurationError for an unknown name or part, and for parts that do not fit each other.

    >>> changed_algorithm(Algorithm(), '{"aggregation": "token_mean"}').aggregation.kind
    'token_mean'
    """
    if not text.lstrip().startswith("{"):
        return resolve(text)
    try:
        parts = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--algorithm {text!r} is no JSON: {error}") from error
    if "name" in parts:
        return resolve(parts.pop("name"), **parts)
    row = recorded.name if recorded.name in TABLE else DEFAULT
    kept = {name: value for name, value in recorded if name != "name"}
    return resolve(row, **{**kept, **parts})


def _without(request: TrainJobRequest, asked: str) -> TrainJobRequest:
    names = {
        f"{number}.{place}": one.rollout
        for number, group in enumerate(request.groups)
        for place, one in enumerate(group.trajectories)
    }
    fit = {
        name
        for place, name in names.items()
        if asked in (place, name) or (len(asked) >= SHORTEST_PREFIX and name.startswith(asked))
    }
    if len(fit) != 1:
        shown = ", ".join(f"{place} = {name}" for place, name in names.items())
        raise ConfigurationError(
            f"--without {asked!r} names {len(fit)} rollouts of the step. Its rollouts: {shown}"
        )
    groups = [
        group.model_copy(
            update={"trajectories": [one for one in group.trajectories if one.rollout not in fit]}
        )
        for group in request.groups
    ]
    return request.model_copy(update={"groups": groups})
