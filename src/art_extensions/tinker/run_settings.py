"""What a program asks of a run's adapter and of its optimizer, checked."""

from __future__ import annotations

from pydantic import ValidationError

from art.wire.records import first_flaw
from art.wire.training import LoraSpec
from art_extensions.tinker.records import AdamAsked, LoraAsked, OptimStep
from art_extensions.tinker.refusals import refusal

ALPHA = 32.0
"""Tinker's, whatever the rank."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def lora_of(asked: LoraAsked) -> LoraSpec:
    """The adapter that a program asks for. Raises RequestError where none of its parts can be trained.

    The output layer is not adapted here, whatever `train_unembed` says.
    """
    if asked.train_attn and asked.train_mlp:
        return LoraSpec(r=asked.rank, alpha=ALPHA)
    targets = [*(ATTENTION if asked.train_attn else ()), *(MLP if asked.train_mlp else ())]
    if not targets:
        raise refusal(
            "train_unembed alone trains nothing here: the output layer is not adapted. Set train_attn or "
            "train_mlp",
            param="lora_config",
        )
    return LoraSpec(r=asked.rank, alpha=ALPHA, targets=targets)


def adam_of(asked: OptimStep) -> AdamAsked:
    """Raises RequestError for another optimizer, and for values that are none."""
    if asked.adam_params is None:
        kind = (asked.optimizer_params or {}).get("type")
        raise refusal(f"optim_params are of {kind!r}: this server has AdamW, send AdamParams")
    try:
        return AdamAsked.model_validate(asked.adam_params)
    except ValidationError as error:
        raise refusal(f"optim_params: {first_flaw(error)}") from error
