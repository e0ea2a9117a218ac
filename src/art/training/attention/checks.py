"""Which tree attention this machine can run, and whether a model can be trained on token trees: found out by
reading its configuration and by computing, not from lists of names or version numbers.

A tree's row holds siblings side by side. Attention separates them by its mask; a recurrent state, a
convolution over neighbours or a mask that the model makes for itself does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from art.errors import ConfigurationError
from art.training.attention.exact import attend_dense
from art.training.attention.flex import FLEX_BLOCK, attend_flex
from art.training.attention.interface import NAME, TreeLayerCall, register
from art.training.attention.rectangles import attend_rectangles
from art.training.attention.tree_plan import plan_attention
from art.training.causal_lm import decoder_of

LOG = logging.getLogger(__name__)

KERNEL_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest relative difference between the kernels' outputs and gradients and the reference's."""


KERNELS = ("rectangles", "flex", "dense")
FASTEST = {"cpu": "rectangles", "cuda": "flex"}
"""The fastest kernel by kind of device; other devices use the dense mask."""


def choose_kernel(asked: str, device: torch.device, dtype: torch.dtype) -> str:
    """One of `KERNELS`. `auto` takes the device's fastest, or, with a notice, the dense mask where that one
    fails its check.

    Raises ConfigurationError when what was asked for cannot run here, or the name is unknown.
    """
    if asked not in ("auto", *KERNELS):
        raise ConfigurationError(f"Unknown attention {asked!r}. Known: auto, {', '.join(sorted(KERNELS))}.")
    wanted = FASTEST.get(device.type, "dense") if asked == "auto" else asked
    if wanted == "dense":
        return wanted
    fault = kernel_fault(wanted, device, dtype)
    if fault is None:
        return wanted
    if asked == wanted:
        raise ConfigurationError(
            f"Tree attention by {asked!r} cannot run here: {fault}. Use attention='dense'."
        )
    LOG.warning("Tree attention falls back to a dense mask, which is slower: %s", fault)
    return "dense"


def kernel_fault(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Returns why this kernel cannot be used here, or None when it agrees with the reference."""
    if kernel == "flex" and device.type != "cuda":
        return f"FlexAttention with gradients needs a CUDA device, this one is {device.type!r}"
    if kernel == "rectangles" and device.type != "cpu":
        return f"its kernels are torch's CPU kernels, the device is {device.type!r}"
    if dtype not in KERNEL_TOLERANCE:
        return f"dtype {dtype} is not among {sorted(str(known) for known in KERNEL_TOLERANCE)}"
    try:
        difference = _kernel_difference(kernel, device, dtype)
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:
        return f"torch {torch.__version__} has other flash attention operations ({error})"
    if not difference <= KERNEL_TOLERANCE[dtype]:
        return f"torch {torch.__version__} computes something else (relative difference {difference:.1e})"
    return None


def _kernel_difference(kernel: str, device: torch.device, dtype: torch.dtype) -> float:
    """Largest relative difference of outputs and gradients on a small tree with every kind of piece."""
    end_T = np.array([13, 13, 13, 13, 11, 9, 9, 9, 9, 11, 11, 13, 13])
    if kernel == "flex":
        end_T = np.repeat(end_T, FLEX_BLOCK // 4) * (FLEX_BLOCK // 4)  # several of its blocks
    size, width = len(end_T), 8 if kernel == "rectangles" else 64
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, size, width) for heads in (4, 2, 2, 4)]
    made = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    *inputs, weight = made
    results = []
    attends: dict[str, Callable[..., torch.Tensor]]
    attends = {"rectangles": attend_rectangles, "flex": attend_flex, "dense": attend_dense}
    for name in (kernel, "dense"):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        plan = plan_attention(end_T, np.arange(size), name, dtype=dtype, device=device, block=2, long=2)
        out = attends[name](*leaves, 0.5, plan)
        results.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(*results, strict=True))


KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})
PROMPT, BRANCH = 3, 6
"""Tokens of the probe's tree: a prompt and two branches."""
MODEL_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
ROUGH = 0.1
"""Relative difference of a branch's hidden states in a tree and in a row (the median over its tokens: experts
may be chosen differently for a few). A wrong context changes them by more than their own size.
"""


def adopt_tree_attention(causal_lm: Any) -> str | None:
    """Gives the model tree attention, if it computes the same in a tree as in rows.

    Otherwise leave its own in place and return why. Raises ConfigurationError when not even rows padded on
    the right would be right: the model looks ahead.
    """
    register()
    config = causal_lm.config.get_text_config()
    stock = causal_lm.config._attn_implementation
    if stock == NAME:
        stock = "eager"
    fault = unknown_layers(config)
    if fault is None:
        causal_lm.set_attn_implementation(NAME)
        if causal_lm.config._attn_implementation != NAME:
            fault = f"{type(causal_lm).__name__} does not let its attention be replaced"
    if fault is None:
        try:
            fault = _model_fault(causal_lm, config, stock)
        except (TypeError, AttributeError, KeyError) as error:
            fault = f"{type(causal_lm).__name__} does not take what the tree hands to a model ({error})"
    if fault is not None:
        causal_lm.set_attn_implementation(stock)
        _check_causal(causal_lm, config)
    return fault


def unknown_layers(config: Any) -> str | None:
    """The kinds of layers that are no attention over the whole path or a window of it."""
    others = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    return f"it has layers of type {', '.join(others)}" if others else None


@torch.no_grad()
def _model_fault(causal_lm: Any, config: Any, stock: str) -> str | None:
    calls: list[TreeLayerCall] = []
    device = causal_lm.get_input_embeddings().weight.device
    ids = (torch.arange(PROMPT + 2 * BRANCH, device=device) * 7 + 3) % int(config.vocab_size)
    row = torch.cat([ids[:PROMPT], ids[PROMPT + BRANCH :]])
    end = np.array([len(ids)] * PROMPT + [PROMPT + BRANCH] * BRANCH + [len(ids)] * BRANCH)
    depth = np.array([*range(PROMPT + BRANCH), *range(PROMPT, PROMPT + BRANCH)])
    dtype = causal_lm.get_input_embeddings().weight.dtype
    plan = plan_attention(end, depth, "dense", dtype=dtype, device=device)
    decoder = decoder_of(causal_lm)
    positions = torch.as_tensor(depth, device=device)
    tree = decoder(
        input_ids=ids[None], position_ids=positions[None], use_cache=False, tree_plan=plan, tree_calls=calls
    ).last_hidden_state[0, -BRANCH:]
    fault = _miscounted(config, calls) or _window_not_passed(config, calls)
    if fault is not None:
        return fault
    causal_lm.set_attn_implementation(stock)
    rows = decoder(input_ids=row[None], use_cache=False).last_hidden_state[0, -BRANCH:]
    causal_lm.set_attn_implementation(NAME)
    difference = float(((tree - rows).float().norm(dim=-1) / rows.float().norm(dim=-1)).median())
    if not difference <= MODEL_TOLERANCE.get(tree.dtype, ROUGH):
        return f"a tree changes what its rows compute (relative difference {difference:.1e})"
    return None


@torch.no_grad()
def _check_causal(causal_lm: Any, config: Any) -> None:
    """Rows that differ in their last token only are the same before it."""
    embedding = causal_lm.get_input_embeddings().weight
    ids = (torch.arange(PROMPT + BRANCH, device=embedding.device) * 7 + 3) % int(config.vocab_size)
    other = torch.cat([ids[:-1], (ids[-1:] + 1) % int(config.vocab_size)])
    hidden = decoder_of(causal_lm)(input_ids=torch.stack([ids, other]), use_cache=False).last_hidden_state
    one, two = hidden[:, :-1].float()
    difference = float(((one - two).norm(dim=-1) / one.norm(dim=-1)).median())
    if not difference <= MODEL_TOLERANCE.get(hidden.dtype, ROUGH):
        raise ConfigurationError(
            f"{type(causal_lm).__name__} changes what it computes of a token with the later tokens "
            f"(relative difference {difference:.1e}): it is no causal language model as configured."
        )


def _miscounted(config: Any, calls: list[TreeLayerCall]) -> str | None:
    layers = int(config.num_hidden_layers)
    if len(calls) == layers:
        return None
    return f"it attends {len(calls)} times in {layers} layers"


def _window_not_passed(config: Any, calls: list[TreeLayerCall]) -> str | None:
    """Short rows do not show a window that the model keeps to itself."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * len(calls)
        if any(call.window for call in calls):
            return None
    pairs = enumerate(zip(kinds, calls, strict=True))
    silent = [n for n, (kind, call) in pairs if kind == "sliding_attention" and not call.window]
    return f"its layers {silent} have a window of {window!r} that they do not pass on" if silent else None
