"""Loading a model's weights, with the faster kernels of other libraries where they are installed.

- `liger`: liger-kernel's Triton kernels for norms, rotary embeddings and gated MLPs, through transformers'
  own integration. Attention and logits stay ours, so the token tree stays too. `auto` takes it on CUDA where
  it is installed.
- `unsloth`: Unsloth loads the model and replaces its layers' code, attention included, by its own, which
  knows no token tree. The start-up probe sees that and trains such a model in plain rows, with a notice:
  Unsloth's kernels speed up a row, but shared prefixes are computed once per row. For groups with
  long prompts the tree without Unsloth is the faster choice.
"""

from __future__ import annotations

import importlib
import logging
from importlib.util import find_spec
from typing import Any, Literal

import torch

from art.errors import ConfigurationError

LOG = logging.getLogger(__name__)

Accelerator = Literal["auto", "none", "liger", "unsloth"]
PACKAGES = {"liger": "liger_kernel", "unsloth": "unsloth"}
INSTALL = {"liger": "pip install liger-kernel", "unsloth": "pip install unsloth"}
LONGEST = 32768
"""Unsloth wants to know the longest row; it extends its rotary tables beyond by itself."""


def load_causal_lm(path: str, *, device: str, dtype: str, accelerator: Accelerator = "auto") -> Any:
    """A model folder or hub name as a causal language model of transformers.

    Raises ConfigurationError when the accelerator that was asked for is not installed, or there is no GPU.
    """
    if accelerator in PACKAGES:
        check_accelerator(accelerator, device)
    if accelerator == "unsloth":
        return _load_by_unsloth(path, getattr(torch, dtype))
    from transformers import AutoModelForCausalLM

    causal_lm = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), trust_remote_code=False
    ).to(device)
    installed = torch.device(device).type == "cuda" and find_spec(PACKAGES["liger"]) is not None
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
    if find_spec(PACKAGES[accelerator]) is None:
        raise ConfigurationError(
            f"accelerator={accelerator!r} is not installed: {INSTALL[accelerator]}, or use "
            "accelerator='auto'."
        )


def _load_by_unsloth(path: str, dtype: torch.dtype) -> Any:
    # Loaded by name: it patches transformers when imported, and is no dependency.
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
    """In place. A family that liger does not know stays as it is."""
    from transformers.integrations.liger import apply_liger_kernel

    # The fused losses would replace the model's forward, which is never called here.
    apply_liger_kernel(causal_lm, {"cross_entropy": False, "fused_linear_cross_entropy": False})
    LOG.info("liger-kernel computes the layers of %s.", type(causal_lm).__name__)
