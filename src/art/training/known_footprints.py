"""What a token of a model keeps in memory, remembered from one trainer to the next.

Counting it forwards two rows, which takes seconds of the first step of a model of real size. The number
depends on the model, on what is trained of it and on the libraries alone, so it is written into the user's
cache under a digest of these, with all of them beside it. What is not the same to the last of them is counted
again, and so is what cannot be read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from art.process.files import write_whole
from art.process.threads import SMALL_MODEL_PARAMETERS
from art.training.policy import Policy

LOG = logging.getLogger(__name__)

FORMAT = 1
LIBRARIES = ("torch", "transformers", "peft", "agent-reinforcement-trainer")

Facts = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownFootprints:
    """The numbers of one user, in a folder that is made when it is first needed."""

    folder: Path

    def bytes_per_token(
        self, policy: Policy, trained: Sequence[torch.nn.Parameter], count: Callable[[], float]
    ) -> float:
        """Returns what is remembered of this model with these parameters trained, or else what `count` finds.

        A small model is counted each time: that is faster than it is worth a file. So is one that several
        ranks hold together: they must forward alike, whatever each of their machines remembers.
        """
        if policy.sharded or policy.causal_lm.num_parameters() < SMALL_MODEL_PARAMETERS:
            return count()
        facts = facts_of(policy, trained)
        path = self.folder / f"{_digest(facts)}.json"
        known = _read(path, facts)
        if known is None:
            known = count()
            try:
                write_whole(path, json.dumps({"facts": facts, "bytes_per_token": known}, indent=1))
            except OSError as error:  # it is counted again the next time
                LOG.info("The memory of a token is not remembered: %s", error)
        return known


def facts_of(policy: Policy, trained: Sequence[torch.nn.Parameter]) -> Facts:
    """Returns all that decides what a token keeps, as JSON."""
    modules = list(policy.causal_lm.modules())
    classes = sorted({f"{type(one).__module__}.{type(one).__qualname__}" for one in modules})
    return {
        "format": FORMAT,
        "model": policy.fingerprint,
        "dtype": str(policy.dtype),
        "device": policy.device.type,
        "threads": torch.get_num_threads(),
        "kernel": policy.kernel,
        "plain_rows": policy.rows_because is not None,
        "trained": _digest([list(one.shape) for one in trained]),
        "dropout": any(isinstance(one, torch.nn.Dropout) and one.training and one.p > 0 for one in modules),
        "classes": _digest(classes),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def _read(path: Path, facts: Facts) -> float | None:
    try:
        found = json.loads(path.read_bytes())
        known, number = found["facts"], float(found["bytes_per_token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return number if known == facts and number > 0 else None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
