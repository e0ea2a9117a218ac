"""Whether a model can be trained on token trees: found out by reading its configuration and by computing, not
from a list of names.

A tree's row holds siblings side by side. Attention separates them by its mask; a recurrent state, a
convolution over neighbours or a mask that the model makes for itself does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from art.errors import ConfigurationError
from art.training.attention.interface import NAME, LayerCall, register
from art.training.attention.plan import plan_attention
from art.training.decoder import decoder_of

KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention"})
PROMPT, BRANCH = 3, 6
"""Tokens of the probe's tree: a prompt and two branches."""
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
ROUGH = 0.1
"""Relative difference of a branch's hidden states in a tree and in a row (the median over its tokens: experts
may be chosen differently for a few). A wrong context changes them by more than their own size.
"""


def adopt_tree_attention(causal_lm: Any) -> str | None:
    """Give the model tree attention, if it computes in a tree what it computes in rows.

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
            fault = _fault(causal_lm, config, stock)
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
def _fault(causal_lm: Any, config: Any, stock: str) -> str | None:
    calls: list[LayerCall] = []
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
    if not difference <= TOLERANCE.get(tree.dtype, ROUGH):
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
    if not difference <= TOLERANCE.get(hidden.dtype, ROUGH):
        raise ConfigurationError(
            f"{type(causal_lm).__name__} changes what it computes of a token with the later tokens "
            f"(relative difference {difference:.1e}): it is no causal language model as configured."
        )


def _miscounted(config: Any, calls: list[LayerCall]) -> str | None:
    layers = int(config.num_hidden_layers)
    if len(calls) == layers:
        return None
    return f"it attends {len(calls)} times in {layers} layers"


def _window_not_passed(config: Any, calls: list[LayerCall]) -> str | None:
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
