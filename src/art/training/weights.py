"""What is trained of a model: a LoRA beside the base (`LoraSpec`), or all weights (None). One face for both.

A base either carries adapters or is trained itself: PEFT rewrites the layers it is attached to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from art.errors import ConfigurationError
from art.training.full import FullWeights
from art.training.lora import Adapters
from art.training.policy import Policy
from art.wire.training import LoraSpec


class Weights:
    """Trained weights by short internal names (no dots). One of them computes at a time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._adapters = Adapters(policy)
        self._full = FullWeights(policy)
        self._adapted = False
        """Whether layers of the base were rewritten; they stay so."""

    def resolve(self, spec: LoraSpec | None) -> LoraSpec | None:
        """The same with its targets spelled out. Raises ConfigurationError when one is unknown."""
        return None if spec is None else self._adapters.resolve(spec)

    def attach(self, name: str, spec: LoraSpec | None, *, seed: int) -> None:
        """Fresh weights that compute what the base does. They are active afterwards, without dropout.

        Raises ConfigurationError: unknown targets, all weights in a coarse dtype, or the other kind before.
        """
        if spec is None:
            if self._adapted:
                raise ConfigurationError(
                    f"All weights of {self._policy.name!r} cannot be trained here: this trainer has attached "
                    "LoRAs to it. Start another trainer for full fine-tuning."
                )
            self._full.attach(name)
        else:
            if self._full.names:
                raise ConfigurationError(
                    f"A LoRA cannot be attached to {self._policy.name!r}: this trainer has a model open that "
                    "trains all its weights. Close it, or start another trainer."
                )
            self._adapters.attach(name, spec, seed=seed)
            self._adapted = True

    def activate(self, name: str, *, dropout: bool = False) -> None:
        """Make these weights the ones that compute."""
        if name in self._full.names:
            self._full.activate(name)
        else:
            self._adapters.activate(name, dropout=dropout)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, the model computes what its base does."""
        with self._full.disabled() if self._full.names else self._adapters.disabled():
            yield

    def parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Trained parameters by the names under which they are saved."""
        return self._full.parameters() if name in self._full.names else self._adapters.parameters(name)

    def save(self, name: str, folder: Path) -> list[str]:
        """Write a PEFT adapter, or a whole model as transformers does; returns the files."""
        kind = self._full if name in self._full.names else self._adapters
        return kind.save(name, folder)

    def load(self, name: str, folder: Path) -> None:
        """Copy saved weights into attached ones. Raises CheckpointError when they are not of this shape."""
        kind = self._full if name in self._full.names else self._adapters
        kind.load(name, folder)

    def remove(self, name: str) -> None:
        """Forget these weights."""
        kind = self._full if name in self._full.names else self._adapters
        kind.remove(name)
