"""How a run of AutoRL goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from art.autorl.inputs import SIMILARITY
from art.autorl.rollout import TIMEOUT_S
from art.backend import Keyword
from art.runs.settings import AboveZero, Count, RunSettings, Share


@dataclass(frozen=True, kw_only=True)
class AutoRLSettings(RunSettings):
    """Everything that can be chosen about a run except who takes part: models, judge, generator."""

    ENTRY: ClassVar[str] = "autorl.train"
    MAY_CHANGE: ClassVar[frozenset[str]] = RunSettings.MAY_CHANGE | {"timeout"}

    num_train: Count = 25
    """Inputs to train on."""
    num_test: Count = 5
    """Inputs held out, for the comparison of before and after."""
    similarity: Share = SIMILARITY
    """From which likeness (0 to 1) two inputs are one."""
    epochs: Count = 3
    """Passes over the training inputs."""
    max_tokens: Annotated[int | None, Keyword(least=1)] = 1024
    """Of one answer."""
    test_attempts: Count = 4
    """Rollouts of each test input, before and after, with the same seeds."""
    timeout: AboveZero = TIMEOUT_S
    """Seconds an answer may take."""
