"""Whether a model's forward pass can be recorded (see `flat.py`), found out by doing so.

A model that decides in Python by the values or number of tokens (some rotary embeddings, some expert routers)
cannot be. Tracing warns of such decisions; then, or when a recording does not compute exactly what the model
does at other lengths, the model runs through its modules as usual.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from art.engine.builtin.attention import Attends, PackedAttention
from art.engine.builtin.batch import fresh_part
from art.engine.builtin.flat import FlatForward, twice
from art.engine.builtin.stacks import Stack, adapter_turns

logger = logging.getLogger(__name__)

CHECKED = (1, 2, 7, 40)
"""Numbers of tokens that a recording is checked with."""
CLOSE = 1e-4

Run = Callable[..., Tensor]
"""(ids [T], positions [T], wanted, attention=...) -> logits."""


@torch.inference_mode()
def record(module: nn.Module, device: torch.device, vocab_size: int, run: Run) -> FlatForward | None:
    """The recording of a model, or None when it cannot be recorded. `run` is the model through its
    modules."""
    rotary = str(getattr(module.config, "rope_parameters", ""))
    if "'dynamic'" in rotary or "'longrope'" in rotary:
        return None
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            flat = FlatForward(module, device)
    except (RuntimeError, TypeError, AttributeError) as error:
        logger.info("%s runs through its modules: %s", type(module).__name__, error)
        return None
    decisions = [warning for warning in caught if _is_decision(warning)]
    if decisions:
        logger.info("%s runs through its modules: %s", type(module).__name__, decisions[0].message)
        return None
    base = partial(flat.run, weights=flat.base_weights)
    for tokens in CHECKED:
        difference = _difference(base, run, tokens, vocab_size, device)
        if not difference <= CLOSE:
            logger.info("%s runs through its modules: recorded, it differs by %g", type(module), difference)
            return None
        if flat.takes_several and not _difference(_in_two(flat), run, tokens, vocab_size, device) <= CLOSE:
            logger.info("adapters of %s do not share its recording: it differs", type(module).__name__)
            flat.alone()
    return flat


def _in_two(flat: FlatForward) -> Run:
    """The base model, as if every other token were another adapter's."""
    stack = Stack((0, 1), twice(flat.base_weights))

    def run(ids_T: Tensor, positions_T: Tensor, wanted: Tensor, attention: Attends) -> Tensor:
        order = adapter_turns(np.arange(len(ids_T)) % 2, stack, ids_T.device)
        return flat.run_several(ids_T, positions_T, wanted, stack, order, attention)

    return run


def _is_decision(warning: warnings.WarningMessage) -> bool:
    """Whether the model decided in Python by a tensor; torch's own layers so check no more than shapes."""
    own = str(Path(nn.__file__).parent)
    return issubclass(warning.category, torch.jit.TracerWarning) and not warning.filename.startswith(own)


def _difference(recorded: Run, run: Run, tokens: int, vocab_size: int, device: torch.device) -> float:
    positions = torch.arange(tokens, device=device)
    ids = (positions * 11 + tokens) % vocab_size
    ours, theirs = (
        one(
            ids,
            positions,
            positions[-3:],
            attention=PackedAttention([fresh_part(np.array([tokens]), device)]),
        )
        for one in (recorded, run)
    )
    return float((ours - theirs).abs().max())
