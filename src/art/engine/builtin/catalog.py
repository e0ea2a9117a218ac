"""Adapters and whole models by name: a name stands for the same weights for ever, and goes when its last
request has ended.

A model whose weights were all trained is a model of its own beside the base. It shares the base's cache rows
(keys and values depend on the weights, and rows know whose they are), and is forwarded apart from the others.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import SafetensorError

from art.engine.builtin.lora import BASE, AdapterLayers
from art.engine.builtin.model import CausalModel, load_model
from art.engine.builtin.peft_folder import CONFIG as ADAPTER_CONFIG
from art.engine.builtin.peft_folder import PeftAdapter, read_adapter
from art.errors import ARTError, CheckpointError, ConfigurationError, NotFoundError
from art.process.in_use import InUse
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
    """Reads a checkpoint folder. Raises: CheckpointError that names the missing or broken part."""
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
        return list(self._base.whole_models)

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
        base.whole_models[number] = model

    def remove(self, number: int) -> None:
        self._base.whole_models.pop(number, None)


@dataclass(slots=True)
class LiveAdapter:
    """One loaded adapter."""

    number: int
    leaving: Future[None] | None = None


@dataclass(slots=True)
class AdapterCatalog:
    """Names, their numbers, and which are in use."""

    layers: AdapterLayers
    whole_models: WholeModels
    live: dict[str, LiveAdapter] = field(default_factory=dict)
    in_use: InUse[str] = field(default_factory=InUse)
    """By requests, waiting ones included."""
    history: dict[str, tuple[Path, str]] = field(default_factory=dict)
    """Every name ever loaded, with its folder and its digest."""
    next_number: int = BASE + 1

    def names(self) -> tuple[str, ...]:
        # A copy first: health is asked for while the step thread changes the dictionary.
        return tuple(sorted(name for name, adapter in list(self.live.items()) if adapter.leaving is None))

    def number(self, name: str | None) -> int:
        """Raises: NotFoundError that lists the loaded adapters."""
        if name is None:
            return BASE
        adapter = self.live.get(name)
        if adapter is None or adapter.leaving is not None:
            # How many, not which: others' names do not belong into a reply.
            raise NotFoundError(
                f"no adapter is loaded as {name!r}; {len(self.names())} others are",
                status=404,
                code="model_not_found",
            )
        return adapter.number

    def add(self, name: str, adapter: PeftAdapter | ModelFolder) -> None:
        """Loading the same folder again does nothing. Raises: ConfigurationError for other weights,
        CheckpointError."""
        identity = (adapter.path, adapter.digest)
        if self.history.get(name, identity) != identity:
            before = self.history[name][0]
            other = "other weights in it" if before == adapter.path else repr(str(adapter.path))
            raise ConfigurationError(
                f"the adapter name {name!r} stands for {str(before)!r} and cannot be used for {other}; "
                "take a new name"
            )
        if name in self.live:
            if self.live[name].leaving is not None:
                raise ConfigurationError(
                    f"the adapter {name!r} is being unloaded; load it again when that is done"
                )
            return
        if isinstance(adapter, ModelFolder):
            self.whole_models.add(self.next_number, adapter)
        else:
            self.layers.add(self.next_number, adapter)
        self.live[name] = LiveAdapter(self.next_number)
        self.history[name] = identity
        self.next_number += 1

    def leave(self, name: str) -> Future[None]:
        """Refuse new requests from now on; the future is done when the adapter is gone. Raises:
        NotFoundError."""
        self.number(name)
        leaving: Future[None] = Future()
        self.live[name].leaving = leaving
        return leaving

    def abandon(self, error: ARTError) -> None:
        """The engine ends: nobody waits for the leaving adapters any more."""
        for adapter in self.live.values():
            if adapter.leaving is not None:
                adapter.leaving.set_exception(error)

    def drop_unused(self) -> list[int]:
        """Remove the leaving adapters whose last request has ended; their numbers."""
        done = [
            (name, adapter)
            for name, adapter in self.live.items()
            if adapter.leaving and name not in self.in_use
        ]
        for name, adapter in done:
            self.layers.remove(adapter.number)
            self.whole_models.remove(adapter.number)
            del self.live[name]
            if adapter.leaving is not None:
                adapter.leaving.set_result(None)
        return [adapter.number for _, adapter in done]
