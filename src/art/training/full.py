"""Full fine-tuning: all weights of the base are trained, and a checkpoint is a model of its own.

One set of weights is in the model at a time; the base's and those of other open models wait in main memory.
A model that computes in bfloat16 is trained, kept and saved in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers.utils import logging

from art.errors import CheckpointError
from art.training.masters import Masters
from art.training.policy import Policy
from art.training.tensors import check_same

CONFIG_FILE = "config.json"
_BASE = ""
"""The name of the weights that were loaded."""


class FullWeights:
    """Sets of all weights by name, each in its turn in the policy's model."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Before any LoRA is attached: PEFT gives the layers it adapts other names.
        self._state: dict[str, torch.Tensor] = policy.causal_lm.state_dict(keep_vars=True)
        self._parameters = dict(policy.causal_lm.named_parameters())
        self._masters: Masters | None = None
        """What is trained, while any set is attached."""
        self._active = _BASE
        self._waiting: dict[str, dict[str, torch.Tensor]] = {}
        """Copies in main memory: the base's while any set is attached, and sets that are not active."""
        self._names: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    def attach(self, name: str) -> None:
        """A set that starts as the base."""
        if not self._names:
            self._masters = Masters(self._parameters)
            self._waiting[_BASE] = self._copies()
        self.rest()
        self._names.add(name)
        self._switch(name)

    def activate(self, name: str) -> None:
        """Put this set into the model."""
        if name != self._active:
            self.rest()
            self._write(self._waiting.pop(name))
            self._switch(name)
        self.refresh()

    def refresh(self) -> None:
        """The optimizer moved the active set, or somebody put it back: the model takes its values."""
        self._exact.refresh()

    def rest(self) -> None:
        """Put the base's weights into the model, where they are not trained."""
        if self._active != _BASE:
            self._waiting[self._active] = self._copies()
            self._write(self._waiting[_BASE])
            self._switch(_BASE)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Inside, the model has the base's weights."""
        active = self._active
        self.rest()
        try:
            yield
        finally:
            self.activate(active)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """What is trained, by name, shared ones once. Every set uses the same ones in its turn."""
        return self._exact.exact

    def save(self, name: str, folder: Path) -> list[str]:
        """Write the model as transformers does, so that it loads from this folder; returns its files."""
        self.activate(name)
        before = set(folder.iterdir())
        with _no_progress_bars():
            self._policy.causal_lm.save_pretrained(folder, state_dict=self._exact_state())
        return sorted(file.name for file in set(folder.iterdir()) - before)

    def load(self, name: str, folder: Path) -> None:
        """Copy the weights of a saved model into a set.

        Raises CheckpointError when the folder holds no model, or another one than this set's.
        """
        weights = _read(folder, torch.promote_types(self._policy.dtype, torch.float32))
        self.activate(name)
        check_same(folder, {key: tuple(one.shape) for key, one in self._parameters.items()}, weights)
        self._write(weights)

    def remove(self, name: str) -> None:
        """Forget a set. The base's weights return to the model when it was the active one."""
        if name == self._active:
            self._write(self._waiting[_BASE])
            self._switch(_BASE)
        self._waiting.pop(name, None)
        self._names.discard(name)
        if not self._names:
            self._waiting.clear()
            self._masters = None

    @property
    def _exact(self) -> Masters:
        assert self._masters is not None, "no set is attached"
        return self._masters

    def _exact_state(self) -> dict[str, torch.Tensor]:
        """The model's state with its masters in it."""
        exact = {id(one): self._exact.exact[key] for key, one in self._parameters.items()}
        return {key: exact.get(id(value), value).detach() for key, value in self._state.items()}

    def _switch(self, name: str) -> None:
        self._active = name
        self._exact.train(name != _BASE)

    def _copies(self) -> dict[str, torch.Tensor]:
        return {key: one.detach().to("cpu", copy=True) for key, one in self.parameters().items()}

    @torch.no_grad()
    def _write(self, weights: Mapping[str, torch.Tensor]) -> None:
        for key, parameter in self.parameters().items():
            parameter.copy_(weights[key])
        self.refresh()


def _read(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Parameters of a saved model, read by transformers itself: its names on disk may differ."""
    from transformers import AutoModelForCausalLM

    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(f"{str(folder)!r} holds no model of all weights: it lacks {CONFIG_FILE!r}.")
    try:
        with torch.random.fork_rng(), _no_progress_bars():
            model, found = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, trust_remote_code=False, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, SafetensorError, StrictDataclassError) as error:
        raise CheckpointError(f"The model in {str(folder)!r} cannot be read: {error}") from error
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found.get(what):
            raise CheckpointError(f"The model in {str(folder)!r} has {what}: {sorted(found[what])[:3]!r}.")
    return {key: one.detach() for key, one in model.named_parameters()}


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """They are no lines of a log."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
