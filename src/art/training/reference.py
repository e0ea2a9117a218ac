"""Policies whose logprobs a step asks for, on the same base: without an adapter, or with another step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from art.training.checkpoint import read_checkpoint
from art.training.dropout import without_dropout
from art.training.policy import Policy
from art.training.weights import Weights

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
        """Another step, whose checkpoint is verified as when a model is opened. Raises CheckpointError."""
        state = read_checkpoint(
            folder, base_model=self._policy.name, base_fingerprint=self._policy.fingerprint
        )
        with without_dropout(self._policy.causal_lm):
            try:
                self._weights.attach(_NAME, state.lora, seed=0)
                try:
                    self._weights.load(_NAME, folder)
                    yield
                finally:
                    self._weights.remove(_NAME)
            finally:
                self._weights.activate(self._active)
