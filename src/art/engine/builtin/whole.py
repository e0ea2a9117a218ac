"""Models whose weights were all trained: each is a model of its own beside the base, under its own name.

It shares the base's cache rows (keys and values depend on the weights, and rows know whose they are), and
is forwarded apart from the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from art.engine.builtin.model import CausalModel, load_model
from art.engine.builtin.peft_folder import CONFIG as ADAPTER_CONFIG
from art.engine.builtin.peft_folder import PeftAdapter, read_adapter
from art.errors import CheckpointError, ConfigurationError
from art.wire.engine import BuiltinOptions

CONFIG = "config.json"
WEIGHTS = "*.safetensors"
NOT_WEIGHTS = frozenset({"optimizer.safetensors", "critic.safetensors"})
"""Of a trainer's checkpoint: no part of the model."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A saved model, as transformers writes it."""

    path: Path
    digest: str
    """sha256 of its configuration and its weights."""


def read_folder(path: Path) -> PeftAdapter | ModelFolder:
    """What a checkpoint folder holds. Raises: CheckpointError that names what is missing or broken."""
    if not (path / CONFIG).is_file() or (path / ADAPTER_CONFIG).exists():
        return read_adapter(path)
    files = [file for file in sorted(path.glob(WEIGHTS)) if file.name not in NOT_WEIGHTS]
    if not files:
        raise CheckpointError(f"the model folder {str(path)!r} has no weights ({WEIGHTS})")
    digest = hashlib.sha256()
    for file in (path / CONFIG, *files):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return ModelFolder(path, digest.hexdigest())


class WholeModels:
    """The loaded ones by number, kept where the base finds them."""

    def __init__(self, base: CausalModel, options: BuiltinOptions) -> None:
        self._base = base
        self._options = options

    @property
    def numbers(self) -> list[int]:
        return list(self._base.whole)

    def add(self, number: int, folder: ModelFolder) -> None:
        """Raises: CheckpointError when it is unreadable or of another shape; then nothing was changed."""
        base = self._base
        try:
            model = load_model(str(folder.path), self._options)
        except (ConfigurationError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"the model {str(folder.path)!r} cannot be served: {error}") from error
        if (model.shapes, model.vocab_size) != (base.shapes, base.vocab_size):
            raise CheckpointError(
                f"the model {str(folder.path)!r} has {model.vocab_size} ids and {len(model.shapes)} layers "
                f"{model.shapes[:1]}, the base {base.name!r} {base.vocab_size} and {len(base.shapes)} "
                f"{base.shapes[:1]}: it was trained on another model"
            )
        base.whole[number] = model

    def remove(self, number: int) -> None:
        self._base.whole.pop(number, None)
