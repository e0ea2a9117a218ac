"""Tokens of trajectories, and what is known of each.

A history of one turn, "<user> hi <assistant>" and then "yes" and its end, which were sampled:

    tokens     [ 1,    5,    2,    9,    3  ]
    logprobs   [ nan,  nan,  nan, -0.7, -0.1]
    flags      [ E,    E,    E,  E|S|A|O, E|S|A|O|STOP]       (with PROCESSED_LOGPROBS for the last two)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Any


class TokenFlag(IntFlag):
    """Facts about one token."""

    EXACT = 1
    """It is the id that the engine saw or sampled."""
    SAMPLED = 2
    """The engine sampled it, in this turn of this history."""
    ASSISTANT = 4
    """It belongs to a message of the assistant."""
    STOP = 8
    """It ended a completion."""
    OUTPUT = 16
    """It was part of a reply, of whichever turn."""
    RAW_LOGPROBS = 32
    """Its logprob is that of the model's own distribution."""
    PROCESSED_LOGPROBS = 64
    """Its logprob is that of the distribution it was drawn from: temperature, top_p and the like applied."""


@dataclass(kw_only=True)
class TokenizedHistory:
    """One sequence of tokens."""

    history: Any
    """The conversation, an `art.History`."""
    model: str | None
    tokens: list[int] = field(repr=False)
    logprobs: list[float] = field(repr=False)
    """NaN where a token was not sampled."""
    flags: list[TokenFlag] = field(repr=False)
    routed_experts: None = None
    """The routing of experts is not recorded."""
    top_k: None = None
    """The most probable ids are not recorded."""

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(kw_only=True)
class TokenizedTrajectory:
    """A trajectory that is one sequence of tokens."""

    trajectory: Any
    history: TokenizedHistory

    @property
    def tokens(self) -> list[int]:
        """Ids of the history."""
        return self.history.tokens

    @property
    def logprobs(self) -> list[float]:
        """Logprobs of the history; NaN where a token was not sampled."""
        return self.history.logprobs

    @property
    def flags(self) -> list[TokenFlag]:
        """Flags of the history."""
        return self.history.flags


@dataclass(kw_only=True)
class TokenizedMultiHistoryTrajectory:
    """A trajectory of any number of sequences: sub-agents, further choices, conversations rendered anew."""

    trajectory: Any
    histories: list[TokenizedHistory]

    def first_occurrence_masks(self, where: TokenFlag = TokenFlag.SAMPLED) -> list[list[bool]]:
        """Returns a mask for each history: tokens with all flags of `where`, each path of tokens once.

        Histories that share a beginning share its tokens; the first history that has them counts.
        """
        seen: set[int] = set()
        masks = []
        for one in self.histories:
            mask, path = [], 0
            for token, flag in zip(one.tokens, one.flags, strict=True):
                path = hash((path, token))
                counts = flag & where == where and path not in seen
                mask.append(counts)
                if counts:
                    seen.add(path)
            masks.append(mask)
        return masks


@dataclass(kw_only=True)
class TokenizedTrajectoryGroup:
    """The trajectories of a group, each tokenized."""

    group: Any
    trajectories: list[TokenizedTrajectory | TokenizedMultiHistoryTrajectory]

    def __iter__(self) -> Iterator[TokenizedTrajectory | TokenizedMultiHistoryTrajectory]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)
