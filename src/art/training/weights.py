"""What is trained of a model: a LoRA beside the base (`LoraSpec`), or all weights (None).

In full fine-tuning a checkpoint is a model of its own. One set of weights is in the model at a time; the
base's and those of other open models wait in main memory. A model that computes in bfloat16 is trained, kept
and saved in float32, because small updates would round to nothing: a gradient moves from the model to its
master as soon as it is accumulated, and adds up there over the micro-batches (Micikevicius et al., "Mixed
precision training", arXiv:1710.03740).

`probe_weights` writes a LoRA that changes what the model computes before anything is trained, to see whether
the engine applies one as the trainer does. A fresh adapter shows nothing, its B being zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from peft.tuners.lora.layer import ParamWrapper
from safetensors import SafetensorError
from torch.utils.hooks import RemovableHandle
from transformers.utils import logging

from art.engine.builtin.quantized import is_quantized, unpacked_weight
from art.errors import CheckpointError, ConfigurationError
from art.process.files import make_private_folder
from art.process.imports import import_lock
from art.training.checkpoint import check_same
from art.training.lora import LoraAdapters
from art.training.lora_product import Segment
from art.training.policy import Policy
from art.training.ranks.sharded import gather_whole
from art.wire.training import LoraSpec, ProbeReply


class MasterWeights:
    """The weights that an optimizer updates: exact parameters themselves, float32 masters of the others."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self.exact = {key: _master(one) for key, one in parameters.items()}
        """The exact weights by the names of the parameters."""
        self._coarse = [key for key, one in parameters.items() if self.exact[key] is not one]
        self._hooks: list[RemovableHandle] = []

    def train(self, wanted: bool) -> None:
        """Sets whether the model's parameters have gradients, which are collected."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for parameter in self._parameters.values():
            parameter.requires_grad_(wanted)
        if wanted:
            for key in self._coarse:
                hook = partial(self._collect, self.exact[key])
                self._hooks.append(self._parameters[key].register_post_accumulate_grad_hook(hook))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the masters' values to the model."""
        for key in self._coarse:
            self._parameters[key].copy_(self.exact[key])

    @staticmethod
    def _collect(master: torch.nn.Parameter, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None


def _master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().to(torch.float32))


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
        self._masters: MasterWeights | None = None
        """What is trained, while any set is attached."""
        self._active = _BASE
        self._waiting: dict[str, dict[str, torch.Tensor]] = {}
        """Copies in main memory: the base's while any set is attached, and sets that are not active."""
        self._names: set[str] = set()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    def check_trainable(self) -> None:
        """Raises ConfigurationError for a quantized base, and for one that ranks divided among them."""
        if self._policy.sharded:
            raise ConfigurationError(
                f"all weights of {self._policy.name!r} are to be trained (lora=None), and trainer.sharding "
                "'fsdp' divides a base that stays as it is. Train a LoRA, or leave sharding out."
            )
        if any(is_quantized(layer) for layer in self._policy.causal_lm.modules()):
            raise ConfigurationError(
                f"the weights of {self._policy.name!r} are quantized and cannot be trained. Train a LoRA, or "
                "leave load_in_4bit and load_in_8bit out."
            )

    def attach(self, name: str) -> None:
        """A set that starts as the base."""
        if not self._names:
            self._masters = MasterWeights(self._parameters)
            self._waiting[_BASE] = self._copies()
        self.deactivate()
        self._names.add(name)
        self._switch(name)

    def activate(self, name: str) -> None:
        """Copies this set to the model."""
        if name != self._active:
            self.deactivate()
            self._write(self._waiting.pop(name))
            self._switch(name)
        self.refresh()

    def refresh(self) -> None:
        """The optimizer moved the active set, or somebody put it back: the model takes its values."""
        self._exact.refresh()

    def deactivate(self) -> None:
        """Copies the base's weights to the model, where they are not trained."""
        if self._active != _BASE:
            self._waiting[self._active] = self._copies()
            self._write(self._waiting[_BASE])
            self._switch(_BASE)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Puts the base's weights into the model inside the block."""
        active = self._active
        self.deactivate()
        try:
            yield
        finally:
            self.activate(active)

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Returns the trained parameters by name, shared ones once. Every set uses the same ones in
        its turn.
        """
        return self._exact.exact

    def matrices(self) -> frozenset[str]:
        """See `Weights.matrices`."""
        causal_lm = self._policy.causal_lm
        layers = [one for one in causal_lm.modules() if isinstance(one, torch.nn.Embedding)]
        at_ends = {id(one.weight) for one in (*layers, causal_lm.get_output_embeddings()) if one is not None}
        return frozenset(
            name for name, one in self._parameters.items() if one.ndim == 2 and id(one) not in at_ends
        )

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
        """Removes a set. The base's weights return to the model when it was the active one."""
        if name == self._active:
            self._write(self._waiting[_BASE])
            self._switch(_BASE)
        self._waiting.pop(name, None)
        self._names.discard(name)
        if not self._names:
            self._waiting.clear()
            self._masters = None

    @property
    def _exact(self) -> MasterWeights:
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
    with import_lock:
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
    """Turns off progress bars, which are no lines of a log."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


class Weights:
    """Trained weights by short internal names (no dots). One of them computes at a time, the others wait."""

    def __init__(self, policy: Policy) -> None:
        self._adapters = LoraAdapters(policy)
        self._full = FullWeights(policy)
        self._is_full = False
        """Whether those that compute are a whole set."""

    def resolve(self, spec: LoraSpec | None) -> LoraSpec | None:
        """The same with its targets spelled out. Raises ConfigurationError when one is unknown, or all
        weights of a quantized base are to be trained.
        """
        if spec is not None:
            return self._adapters.resolve(spec)
        self._full.check_trainable()
        return None

    def attach(self, name: str, spec: LoraSpec | None, *, seed: int) -> None:
        """Fresh weights that compute what the base does. They are active afterwards, without dropout.

        Raises ConfigurationError for unknown targets.
        """
        if spec is None:
            self._full.attach(name)
        else:
            self._full.deactivate()
            self._adapters.attach(name, spec, seed=seed)
        self.activate(name)

    def activate(self, name: str, *, dropout: bool = False) -> None:
        """Make these weights the ones that compute."""
        self._is_full = name in self._full.names
        if self._is_full:
            self._adapters.deactivate()
            self._full.activate(name)
        else:
            self._full.deactivate()
            self._adapters.activate(name, dropout=dropout)

    def computing(self, name: str) -> AbstractContextManager[None]:
        """Has another adapter, without dropout, compute and learn inside the block; an adapter is active."""
        return self._adapters.computing(name)

    def can_share(self, name: str) -> bool:
        """Returns whether these weights can compute beside others: `segmented`."""
        return name not in self._full.names and self._adapters.can_share(name)

    @contextmanager
    def segmented(self, segments: Sequence[Segment]) -> Iterator[None]:
        """Has each adapter compute its own tokens of every forward pass inside the block."""
        self._full.deactivate()
        self._is_full = False
        with self._adapters.segmented(segments):
            yield

    def stepped(self, name: str) -> None:
        """An optimizer moved these weights, which are active."""
        if name in self._full.names:
            self._full.refresh()

    def deactivate(self) -> None:
        """Deactivates all sets, until one is activated: the model is its base."""
        self._is_full = False
        self._full.deactivate()
        self._adapters.deactivate()

    def disabled(self) -> AbstractContextManager[None]:
        """Turns off these weights inside the block: the model computes what its base does."""
        return self._full.disabled() if self._is_full else self._adapters.disabled()

    def parameters(self, name: str) -> dict[str, torch.nn.Parameter]:
        """Trained parameters by the names under which they are saved."""
        return self._full.parameters() if name in self._full.names else self._adapters.parameters(name)

    def matrices(self, name: str) -> frozenset[str]:
        """The trained parameters that are one matrix each from hidden states to hidden states: no vectors, no
        stacks of the matrices of experts, no embeddings, no output layer.
        """
        if name in self._full.names:
            return self._full.matrices()
        return self._adapters.matrices(name)

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
        """Removes these weights. Others must be activated before anything is computed."""
        kind = self._full if name in self._full.names else self._adapters
        kind.remove(name)


STRENGTH = 0.1
"""Frobenius norm of each layer's change, relative to the layer's own weight."""
_NAME = "probe"


def probe_weights(
    policy: Policy,
    weights: Weights,
    lora: LoraSpec | None,
    folder: Path,
    rows: Sequence[Sequence[int]],
    *,
    seed: int,
    budget: int,
) -> ProbeReply:
    """Logprobs of rows under the base, and under a LoRA with random B, which is written into a new folder.

    `lora` None (all weights are trained): under the base alone, and nothing is written. Afterwards weights
    are to be activated before anything is computed. Raises ConfigurationError for unknown targets.
    """
    if lora is None:
        weights.deactivate()
        return ProbeReply(base=policy.row_logprobs(rows, budget=budget))
    weights.attach(_NAME, lora, seed=seed)
    try:
        _fill(policy.causal_lm, seed)
        with weights.disabled():
            base = policy.row_logprobs(rows, budget=budget)
        scores = policy.row_logprobs(rows, budget=budget)
        make_private_folder(folder)
        weights.save(_NAME, folder)
    finally:
        weights.remove(_NAME)
    return ProbeReply(base=base, probe=scores)


@torch.no_grad()
def _fill(causal_lm: torch.nn.Module, seed: int) -> None:
    """Draw each B, so large that ||scaling B A|| is about `STRENGTH` ||W||."""
    generator = torch.Generator().manual_seed(seed)
    for _, module in sorted(causal_lm.named_modules()):
        if _NAME not in getattr(module, "lora_B", {}):
            continue
        down, up = module.lora_A[_NAME].weight, module.lora_B[_NAME].weight
        drawn = torch.randn(up.shape, generator=generator)
        # The expected norm of a product with independent rows: ||B A|| = sd(B) sqrt(out) ||A||.
        norm = float(down.float().norm()) * up.shape[0] ** 0.5 * module.scaling[_NAME]
        base = module.get_base_layer()
        weight = module.get_param() if isinstance(module, ParamWrapper) else unpacked_weight(base)
        size = STRENGTH * float(gather_whole(weight).norm()) / norm
        up.copy_(drawn * size)
