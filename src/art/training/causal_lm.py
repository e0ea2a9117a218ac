"""The causal language model that is trained: loaded, with its decoder found, its layers recomputed on demand
and its dropout switched off where it is only asked.

Faster kernels of other libraries, where they are installed:

- `liger`: liger-kernel's Triton kernels for norms, rotary embeddings and gated MLPs, through transformers'
  own integration. Attention and logits stay ours, so the token tree stays too. `auto` takes it on CUDA where
  it is installed.
- `unsloth`: Unsloth loads the model and replaces its layers' code, attention included, by its own, which
  knows no token tree. The start-up probe sees that and trains such a model in plain rows, with a notice:
  Unsloth's kernels speed up a row, but shared prefixes are computed once per row. For groups with
  long prompts the tree without Unsloth is the faster choice.

Activation checkpointing: decoder layers keep their input only and are computed again in the backward pass.
transformers has the same behind `activation_checkpointing_enable`, but only for modules in train mode, and
ours stay in evaluation mode so that no dropout of the base model acts. torch's `checkpoint` is put around the
layers' `forward` instead, for one forward pass; keyword arguments (the tree's plan) go through it untouched,
and LoRA's dropout draws the same numbers again.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from art.engine.builtin.free_memory import check_weights_fit
from art.engine.builtin.quantized import place, quantizing
from art.errors import ConfigurationError, is_installed
from art.process.imports import import_lock
from art.wire.records import Bits
from art.wire.samples import SEEING

TOKENS = 8
CLOSE, ROUGH = 1e-3, 0.1
"""Largest relative difference of logits, in float32 or better and below it."""


def decoder_of(causal_lm: Any) -> Any:
    """Returns the model without the output layer: takes ids, gives `last_hidden_state`. LoRA layers are
    inside.

    Raises ConfigurationError where the model has no such part.
    """
    decoder = causal_lm.get_decoder()
    if decoder is not causal_lm:
        return decoder
    embedding = causal_lm.get_input_embeddings()
    for child in causal_lm.children():
        if child is not embedding and any(module is embedding for module in child.modules()):
            return child
    raise ConfigurationError(
        f"{type(causal_lm).__name__} has no decoder that is apart from its output layer."
    )


@torch.no_grad()
def check_head(causal_lm: Any, head: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Raise ConfigurationError where the model makes other logits of its hidden states than `head` does.

    Families scale or cap their logits under names of their own; one we do not know would be trained wrong.
    """
    embedding = causal_lm.get_input_embeddings().weight
    ids = (torch.arange(TOKENS, device=embedding.device) * 7 + 3)[None] % embedding.shape[0]
    ours = head(decoder_of(causal_lm)(input_ids=ids, use_cache=False).last_hidden_state[0])
    theirs = causal_lm(input_ids=ids, use_cache=False).logits[0].to(ours.dtype)
    difference = float((ours - theirs).norm() / theirs.norm())
    if not difference <= (CLOSE if embedding.dtype in (torch.float32, torch.float64) else ROUGH):
        raise ConfigurationError(
            f"{type(causal_lm).__name__} has a scale or cap on logits of its own, which the trainer does not "
            f"know (relative difference {difference:.1e} on {TOKENS} tokens): it cannot be trained."
        )


def decoder_layers(causal_lm: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers that may be computed again: the outermost of those that transformers marks for it."""
    layers: list[torch.nn.Module] = []
    inside: set[torch.nn.Module] = set()
    for module in causal_lm.modules():  # parents come before their children
        if isinstance(module, GradientCheckpointingLayer) and module not in inside:
            layers.append(module)
            inside.update(module.modules())
    return layers


@contextmanager
def recomputed(layers: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Within, a forward pass of these layers keeps their inputs only. The backward pass may come after."""
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Turns off all dropout layers of `model` inside the block."""
    live = [one for one in model.modules() if isinstance(one, torch.nn.Dropout) and one.training]
    for one in live:
        one.eval()
    try:
        yield
    finally:
        for one in live:
            one.train()


LOG = logging.getLogger(__name__)

Accelerator = Literal["auto", "none", "liger", "unsloth"]
PACKAGES = {"liger": "liger_kernel", "unsloth": "unsloth"}
INSTALL = {"liger": "pip install liger-kernel", "unsloth": "pip install unsloth"}
LONGEST = 32768
"""Unsloth wants to know the longest row; it extends its rotary tables beyond by itself."""


def load_causal_lm(
    path: str, *, device: str, dtype: str, accelerator: Accelerator = "auto", bits: Bits = 16
) -> Any:
    """A model folder or hub name as a causal language model of transformers.

    Raises ConfigurationError when the accelerator that was asked for is not installed, or there is no GPU.
    """
    if accelerator == "unsloth" and bits != 16:
        raise ConfigurationError(
            "accelerator='unsloth' quantizes in its own way, so the engine would sample from another base "
            f"model. Use accelerator='auto' with a base model in {bits} bits."
        )
    if accelerator in PACKAGES:
        check_accelerator(accelerator, device)
    if accelerator == "unsloth":
        return _load_by_unsloth(path, getattr(torch, dtype))
    with import_lock:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    precision = getattr(torch, dtype)
    check_weights_fit(path, device, precision, bits)
    sees = AutoConfig.from_pretrained(path, trust_remote_code=False).model_type in SEEING
    causal_lm = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_pretrained(
        path, dtype=precision, trust_remote_code=False, **quantizing(bits, device, precision)
    )
    causal_lm = place(causal_lm, device)
    installed = torch.device(device).type == "cuda" and is_installed(PACKAGES["liger"])
    if accelerator == "liger" or (accelerator == "auto" and installed):
        _apply_liger(causal_lm)
    return causal_lm


def check_accelerator(accelerator: str, device: str) -> None:
    """Refuse in one line what cannot run on this machine."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise ConfigurationError(
            f"accelerator={accelerator!r} needs a CUDA GPU; this trainer computes on {device!r}. "
            "Use accelerator='auto'."
        )
    if not is_installed(PACKAGES[accelerator]):
        raise ConfigurationError(
            f"accelerator={accelerator!r} is not installed: {INSTALL[accelerator]}, or use "
            "accelerator='auto'."
        )


def _load_by_unsloth(path: str, dtype: torch.dtype) -> Any:
    # Loaded by name: it patches transformers when imported, and is no dependency.
    with import_lock:
        unsloth = importlib.import_module("unsloth")
    causal_lm, _ = unsloth.FastLanguageModel.from_pretrained(
        model_name=path,
        max_seq_length=LONGEST,
        dtype=dtype,
        load_in_4bit=False,
        trust_remote_code=False,
    )
    return causal_lm


def _apply_liger(causal_lm: Any) -> None:
    """Applies liger in place. A family that liger does not know is not changed."""
    with import_lock:
        from transformers.integrations.liger import apply_liger_kernel

    # The fused losses would replace the model's forward, which is never called here.
    apply_liger_kernel(causal_lm, {"cross_entropy": False, "fused_linear_cross_entropy": False})
    LOG.info("liger-kernel computes the layers of %s.", type(causal_lm).__name__)
