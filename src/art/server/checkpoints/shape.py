"""What a checkpoint holds, read from its small files: the base it was trained on and the adapter's shape.

Two kinds of folders are checkpoints: our own (`trainer_state.json`, optimizer, RNG, manifest), and a plain
PEFT folder that another program wrote (`adapter_config.json` and `adapter_model.safetensors`). The second
kind resumes with a fresh optimizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from art.errors import CheckpointError, RequestError
from art.wire.checkpoint import ADAPTER_CONFIG_FILE, ADAPTER_FILE, STATE_FILE
from art.wire.flaws import first_flaw
from art.wire.training import LoraSpec

DEFAULT = LoraSpec()


@dataclass(frozen=True, kw_only=True)
class CheckpointShape:
    """Of one checkpoint folder."""

    base_model: str
    lora: LoraSpec | None
    """None: all weights."""
    plain: bool
    """Whether it is a PEFT folder without our state."""


def read_shape(folder: Path) -> CheckpointShape:
    """Raises CheckpointError that names what the folder lacks."""
    if (folder / STATE_FILE).is_file():
        state = _json(folder / STATE_FILE)
        return _shape(folder / STATE_FILE, state.get("base_model"), state.get("lora"), plain=False)
    if not (folder / ADAPTER_FILE).is_file():
        raise CheckpointError(
            f"{folder} is no checkpoint: it has neither {STATE_FILE!r} nor {ADAPTER_FILE!r}. Restore or "
            "remove it."
        )
    config = _json(folder / ADAPTER_CONFIG_FILE)
    return _shape(
        folder / ADAPTER_CONFIG_FILE,
        config.get("base_model_name_or_path"),
        lora_of_peft(folder, config),
        plain=True,
    )


def lora_of_peft(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `LoraSpec` of a PEFT folder. Raises CheckpointError for another method than LoRA.

    Targets come from the names of the tensors: the configuration may spell them as a pattern, as Unsloth
    does.
    """
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{folder} is a {config.get('peft_type')!r} adapter; only LoRA works")
    return {
        "r": config.get("r"),
        "alpha": config.get("lora_alpha"),
        "dropout": config.get("lora_dropout") or 0.0,
        "use_rslora": bool(config.get("use_rslora")),
        "targets": sorted({name.rpartition(".lora_")[0].rpartition(".")[2] for name in _tensors(folder)}),
    }


def _tensors(folder: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    path = folder / ADAPTER_FILE
    try:
        with safe_open(path, framework="numpy") as file:
            return [name for name in file.keys() if ".lora_" in name]
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): it is cut or changed; restore it") from error


def shape_for(lora: LoraSpec | None, found: CheckpointShape, folder: Path) -> LoraSpec | None:
    """The adapter of a new model that begins with this checkpoint: what the request leaves at its default
    is taken from the checkpoint.

    Raises RequestError (409) for a setting that the request chose and the checkpoint contradicts.
    """
    if not leaves_open(found.lora, lora):
        raise _unfit(folder, lora, found.lora)
    return found.lora


def check_shape(lora: LoraSpec | None, found: CheckpointShape, folder: Path) -> None:
    """Whether a registered model can go on from this checkpoint. Raises RequestError (409)."""
    there = found.lora
    if there is not None and lora is not None and lora.targets == "all-linear":
        there = there.model_copy(update={"targets": lora.targets})  # spelled out: the trainer compares them
    if there != lora:
        raise _unfit(folder, lora, found.lora)


def leaves_open(there: LoraSpec | None, wanted: LoraSpec | None) -> bool:
    """Whether every setting of `wanted` is that of `there`, or the default, which chooses nothing.

    >>> leaves_open(LoraSpec(r=8, targets=["q_proj"]), LoraSpec())
    True
    >>> leaves_open(LoraSpec(r=8), LoraSpec(r=4))
    False
    """
    if there is None or wanted is None:
        return there is wanted
    for field in LoraSpec.model_fields:
        old, new, usual = (_sorted(getattr(spec, field)) for spec in (there, wanted, DEFAULT))
        if new not in (old, usual):
            return False
    return True


def _sorted(value: object) -> object:
    return sorted(set(value)) if isinstance(value, list) else value


def _unfit(folder: Path, wanted: LoraSpec | None, there: LoraSpec | None) -> RequestError:
    remedy = "register with full_finetuning" if there is None else "leave the settings that differ out"
    return RequestError(
        f"the checkpoint {folder} holds {spelled(there)}, the model {spelled(wanted)}: {remedy} when a new "
        "model is registered, or use another name",
        status=409,
        code="checkpoint_unfit",
        param="lora",
    )


def spelled(lora: LoraSpec | None) -> str:
    return "all weights" if lora is None else f"the LoRA {lora.model_dump_json()}"


def _shape(path: Path, base_model: object, lora: object, *, plain: bool) -> CheckpointShape:
    try:
        spec = None if lora is None else LoraSpec.model_validate(lora)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {first_flaw(error)}; restore the file") from error
    return CheckpointShape(base_model=str(base_model or ""), lora=spec, plain=plain)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no JSON object; restore it")
    return found
