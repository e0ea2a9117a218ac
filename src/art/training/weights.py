"""What is trained of a model: a LoRA beside the base (`LoraSpec`), or all weights (None)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch

from art.training.full import FullWeights
from art.training.lora import Adapters
from art.training.policy import Policy
from art.wire.training import LoraSpec


class Weights:
    """Trained weights by short internal names (no dots). One of them computes at a time, the others wait."""

    def __init__(self, policy: Policy) -> None:
        self._adapters = Adapters(policy)
        self._full = FullWeights(policy)
        self._whole = False
        """Whether those that compute are a whole set."""

    def resolve(self, spec: LoraSpec | None) -> LoraSpec | None:
        """The same with its targets spelled out. Raises ConfigurationError when one is unknown."""
        return None if spec is None else self._adapters.resolve(spec)

    def attach(self, name: str, spec: LoraSpec | None, *, seed: int) -> None:
        """Fresh weights that compute what the base does. They are active afterwards, without dropout.

        Raises ConfigurationError for unknown targets.
        """
        if spec is None:
            self._full.attach(name)
        else:
            self._full.rest()
            self._adapters.attach(name, spec, seed=seed)
        self.activate(name)

    def activate(self, name: str, *, dropout: bool = False) -> None:
        """Make these weights the ones that compute."""
        self._whole = name in self._full.names
        if self._whole:
            self._adapters.rest()
            self._full.activate(name)
        else:
            self._full.rest()
            self._adapters.activate(name, dropout=dropout)

    def stepped(self, name: str) -> None:
        """An optimizer moved these weights, which are active."""
        if name in self._full.names:
            self._full.refresh()

    def rest(self) -> None:
        """None of them computes, until one is activated: the model is its base."""
        self._whole = False
        self._full.rest()
        self._adapters.rest()

    def disabled(self) -> AbstractContextManager[None]:
        """Inside, the model computes what its base does."""
        return self._full.disabled() if self._whole else self._adapters.disabled()

    def parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Trained parameters by the names under which they are saved."""
        return self._full.parameters() if name in self._full.names else self._adapters.parameters(name)

    def save(self, name: str, folder: Path) -> list[str]:
        """Write a PEFT adapter, or a whole model as transformers does; returns the files."""
        if name in self._full.names:
            self.activate(name)
            return self._full.save(name, folder)
        return self._adapters.save(name, folder)

    def load(self, name: str, folder: Path) -> None:
        """Copy saved weights into attached ones. Raises CheckpointError when they are not of this shape."""
        kind = self._full if name in self._full.names else self._adapters
        kind.load(name, folder)

    def remove(self, name: str) -> None:
        """Forget these weights. Others must be activated before anything is computed."""
        kind = self._full if name in self._full.names else self._adapters
        kind.remove(name)
