"""A LoRA that another program wrote: PEFT's two files, without optimizer, RNG or manifest of ours."""

from __future__ import annotations

import logging
from pathlib import Path

from art.engine.builtin.peft_folder import PeftAdapter, read_adapter
from art.errors import CheckpointError
from art.training.checkpoint import TrainerState, verify_files
from art.training.memory import seeded_rng, spell_rng
from art.training.policy import Policy
from art.wire.checkpoint import ADAPTER_CONFIG_FILE, MANIFEST_FILE, STATE_FILE
from art.wire.training import LoraSpec

LOG = logging.getLogger(__name__)


def is_plain(folder: Path) -> bool:
    """Whether a checkpoint folder is PEFT's alone."""
    return not (folder / STATE_FILE).exists() and (folder / ADAPTER_CONFIG_FILE).is_file()


def read_plain(folder: Path, policy: Policy, lora: LoraSpec | None, *, seed: int) -> TrainerState:
    """The state that such a folder begins with: its step is its name (`0007`), its optimizer fresh.

    Whether the weights fit the base is told by their shapes, when they are loaded; nothing in the folder says
    more. Raises CheckpointError when it is broken, uses an option of PEFT that is not supported, or is no
    step.
    """
    if (folder / MANIFEST_FILE).is_file():
        verify_files(folder)
    adapter = read_adapter(folder)
    if not folder.name.isdigit():
        raise CheckpointError(f"{str(folder)!r} has no step for a name, such as 0000")
    found = lora_of(adapter)
    if lora is not None:  # dropout is a setting of training: no weights depend on it
        found = found.model_copy(update={"dropout": lora.dropout})
    LOG.warning(
        "%s was written by another program: it is step %d with a fresh optimizer", folder, int(folder.name)
    )
    return TrainerState(
        step=int(folder.name),
        base_model=policy.name,
        base_fingerprint=policy.fingerprint,
        lora=found,
        optimizer=None,
        rng=spell_rng(seeded_rng(seed)),
    )


def lora_of(adapter: PeftAdapter) -> LoraSpec:
    """The shape of an adapter that PEFT wrote. Raises CheckpointError when its ranks differ."""
    ranks = {int(down.shape[0]) for down, _ in adapter.weights.values()}
    if len(ranks) != 1:
        raise CheckpointError(
            f"adapter {str(adapter.path)!r} has ranks {sorted(ranks)}; only one rank everywhere is supported"
        )
    targets = sorted({name.rpartition(".")[2] for name in adapter.weights})
    return LoraSpec(r=ranks.pop(), alpha=adapter.alpha, targets=targets, use_rslora=adapter.rank_stabilized)
