"""Policies whose logprobs a step asks for, on the same base: without an adapter, or with another step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from art.engine.builtin.peft_folder import read_adapter
from art.training.checkpoint import read_checkpoint
from art.training.dropout import without_dropout
from art.training.plain_adapter import lora_of
from art.training.policy import Policy
from art.training.weights import Weights
from art.wire.checkpoint import STATE_FILE
from art.wire.training import LoraSpec

_NAME = "reference"


class References:
    """Inside a context the reference computes, without dropout; afterwards `active` does again as before,
    its weights and gradients untouched.
    """

    def __init__(self, policy: Policy, weights: Weights, active: str) -> None:
        self._policy, self._weights, self._active = policy, weights, active

    @contextmanager
    def base(self) -> Iterator[None]:
        """The model that everything started from."""
        with without_dropout(self._policy.causal_lm), self._weights.disabled():
            yield

    @contextmanager
    def checkpoint(self, folder: Path) -> Iterator[None]:
        """A checkpoint, verified as when a model is opened, or any LoRA of PEFT. Raises CheckpointError."""
        spec = self._spec(folder)
        with without_dropout(self._policy.causal_lm):
            try:
                self._weights.attach(_NAME, spec, seed=0)
                try:
                    self._weights.load(_NAME, folder)
                    yield
                finally:
                    self._weights.remove(_NAME)
            finally:
                self._weights.activate(self._active)

    def _spec(self, folder: Path) -> LoraSpec | None:
        """What the folder holds; None: all weights."""
        if (folder / STATE_FILE).is_file():
            return read_checkpoint(
                folder, base_model=self._policy.name, base_fingerprint=self._policy.fingerprint
            ).lora
        return lora_of(read_adapter(folder))
