"""`trajectory.tensorize()`: what `tokenize` gives, as tensors of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from art.trajectories import Trajectory, TrajectoryGroup
from art_extensions.token_views.tokenize import tokenize
from art_extensions.token_views.tokenized import (
    TokenizedHistory,
    TokenizedMultiHistoryTrajectory,
    TokenizedTrajectory,
    TokenizedTrajectoryGroup,
)

Device: TypeAlias = torch.device | str | int | None


@dataclass(kw_only=True)
class TensorizedHistory:
    """One sequence of tokens: 1-dimensional tensors of equal length T."""

    history: Any
    model: str | None
    tokens: torch.Tensor
    """int64, (T,)"""
    logprobs: torch.Tensor
    """float32, (T,); NaN where a token was not sampled."""
    flags: torch.Tensor
    """int32, (T,), of `TokenFlag`."""

    def to(self, device: Device) -> TensorizedHistory:
        """Returns a copy with its tensors on a device."""
        return TensorizedHistory(
            history=self.history,
            model=self.model,
            tokens=self.tokens.to(device),
            logprobs=self.logprobs.to(device),
            flags=self.flags.to(device),
        )

    def to_(self, device: Device) -> TensorizedHistory:
        """Moves its tensors to a device, and returns itself."""
        self.tokens, self.logprobs = self.tokens.to(device), self.logprobs.to(device)
        self.flags = self.flags.to(device)
        return self


@dataclass(kw_only=True)
class TensorizedTrajectory:
    """A trajectory that is one sequence of tokens."""

    trajectory: Any
    history: TensorizedHistory

    def to(self, device: Device) -> TensorizedTrajectory:
        """Returns a copy with its tensors on a device."""
        return TensorizedTrajectory(trajectory=self.trajectory, history=self.history.to(device))

    def to_(self, device: Device) -> TensorizedTrajectory:
        """Moves its tensors to a device, and returns itself."""
        self.history.to_(device)
        return self

    @property
    def tokens(self) -> torch.Tensor:
        """Ids of the history."""
        return self.history.tokens

    @property
    def logprobs(self) -> torch.Tensor:
        """Logprobs of the history; NaN where a token was not sampled."""
        return self.history.logprobs

    @property
    def flags(self) -> torch.Tensor:
        """Flags of the history."""
        return self.history.flags


@dataclass(kw_only=True)
class TensorizedMultiHistoryTrajectory:
    """A trajectory of any number of sequences."""

    trajectory: Any
    histories: list[TensorizedHistory]

    def to(self, device: Device) -> TensorizedMultiHistoryTrajectory:
        """Returns a copy with its tensors on a device."""
        moved = [one.to(device) for one in self.histories]
        return TensorizedMultiHistoryTrajectory(trajectory=self.trajectory, histories=moved)

    def to_(self, device: Device) -> TensorizedMultiHistoryTrajectory:
        """Moves its tensors to a device, and returns itself."""
        for one in self.histories:
            one.to_(device)
        return self


@dataclass(kw_only=True)
class TensorizedTrajectoryGroup:
    """The trajectories of a group, each as tensors."""

    group: Any
    trajectories: list[TensorizedTrajectory | TensorizedMultiHistoryTrajectory]

    def to(self, device: Device) -> TensorizedTrajectoryGroup:
        """Returns a copy with its tensors on a device."""
        return TensorizedTrajectoryGroup(
            group=self.group, trajectories=[one.to(device) for one in self.trajectories]
        )

    def to_(self, device: Device) -> TensorizedTrajectoryGroup:
        """Moves its tensors to a device, and returns itself."""
        for one in self.trajectories:
            one.to_(device)
        return self


Tokenized = TokenizedTrajectory | TokenizedMultiHistoryTrajectory
Tensorized = TensorizedTrajectory | TensorizedMultiHistoryTrajectory


def tensorize(
    given: Trajectory | TrajectoryGroup | Tokenized | TokenizedTrajectoryGroup,
    *,
    device: Device = None,
    **options: Any,
) -> Tensorized | TensorizedTrajectoryGroup:
    """Returns a trajectory or a group as tensors on `device`. options: those of `tokenize_trajectory`."""
    found = tokenize(given, **options) if isinstance(given, Trajectory | TrajectoryGroup) else given
    if isinstance(found, TokenizedTrajectoryGroup):
        each = [_tensors(one, device) for one in found]
        return TensorizedTrajectoryGroup(group=found.group, trajectories=each)
    return _tensors(found, device)


def _tensors(found: Tokenized, device: Device) -> Tensorized:
    if isinstance(found, TokenizedTrajectory):
        return TensorizedTrajectory(trajectory=found.trajectory, history=_history(found.history, device))
    histories = [_history(one, device) for one in found.histories]
    return TensorizedMultiHistoryTrajectory(trajectory=found.trajectory, histories=histories)


def _history(one: TokenizedHistory, device: Device) -> TensorizedHistory:
    return TensorizedHistory(
        history=one.history,
        model=one.model,
        tokens=torch.tensor(one.tokens, dtype=torch.int64, device=device),
        logprobs=torch.tensor(one.logprobs, dtype=torch.float32, device=device),
        flags=torch.tensor([int(flag) for flag in one.flags], dtype=torch.int32, device=device),
    )
