"""How a run of AutoRL goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from art.autorl.inputs import SIMILARITY
from art.autorl.rollout import TIMEOUT_S
from art.runs.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class AutoRLSettings(RunSettings):
    """Everything that can be chosen about a run except who takes part: models, judge, generator."""

    ENTRY: ClassVar[str] = "autorl.train"
    POSITIVE: ClassVar[tuple[str, ...]] = (*RunSettings.POSITIVE, "timeout")
    MAY_CHANGE: ClassVar[frozenset[str]] = RunSettings.MAY_CHANGE | {"timeout"}

    num_train: int = 25
    num_test: int = 5
    similarity: float = SIMILARITY
    epochs: int = 3
    max_tokens: int | None = 1024
    """Of one answer."""
    test_attempts: int = 4
    timeout: float = TIMEOUT_S
    """Seconds an answer may take."""
