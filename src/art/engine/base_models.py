"""Base models by name: what a name means, and what workers load for it.

    art/nano-games                   ships with this package
    a folder, a name on the hub      as transformers loads it
    art/smollm2, model.gguf ...      what an extension of the kind `model` makes a folder of (`ModelSource`)

`#4bit` or `#8bit` behind a name: its linear layers are quantized.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from art.engine import nano_models
from art.errors import ConfigurationError, did_you_mean
from art.extensions import MODEL, Tell, load_extension, load_extensions
from art.wire.records import HUB, Bits, quantized_name, split_bits


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """One base model: two names of the same weights give the same `name`."""

    name: str
    """What it is served as."""
    source: str
    """What workers load: a folder, or a hub name. With a `made_by`: what that makes a folder of."""
    aliases: tuple[str, ...] = ()
    """Other names that it answers to."""
    bits: Bits = 16
    """4 or 8: its linear layers are quantized; then its name says so."""
    made_by: str | None = None
    """The name of the `ModelSource` that makes the folder. None: transformers loads `source` as it is."""

    @property
    def label(self) -> str:
        """Short and fit for a file name."""
        short = self.name.rstrip("/").rpartition("/")[2]
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in short)[:60] or "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeFolder:
    """A folder in the user's cache, and what it was made of."""

    folder: Path
    source: str
    size_bytes: int


class ModelSource(Protocol):
    """Models in another form than transformers loads. An extension of the kind `model` makes folders."""

    form: str
    """The form in one word for people, such as GGUF."""
    names: Sequence[str]
    """The names under `art/` that it gives."""

    def is_file_name(self, name: str) -> bool:
        """Returns whether the name is one of a file of this form, which need not be there."""
        ...

    def resolve(self, name: str) -> BaseModel | None:
        """Returns the base model; None: the name is not one of this form. Raises ConfigurationError for one
        that is, and means nothing.
        """
        ...

    def find_folder(self, source: str) -> Path | None:
        """Returns the folder that was made before. Reads whole files: call it in a thread."""
        ...

    async def make_folder(self, source: str, tell: Tell) -> Path:
        """Returns the new folder, complete. Raises ConfigurationError, DiskError, DeadlineError,
        WorkerDiedError.
        """
        ...

    def read_config(self, source: str, tell: Tell) -> Any:
        """Returns the configuration as transformers has it. Raises ConfigurationError."""
        ...

    def list_folders(self) -> Sequence[MadeFolder]:
        """Returns what the cache has."""
        ...


def model_sources() -> Mapping[str, ModelSource]:
    """Returns the installed sources by their names."""
    return load_extensions(MODEL)


def model_source(base: BaseModel) -> ModelSource:
    """Returns the source that makes the folder of a base model."""
    found: ModelSource = load_extension(MODEL, str(base.made_by))
    return found


def resolve_base(name: str) -> BaseModel:
    """Raises ConfigurationError for an unknown `art/...` name, and for a file that is not there or not read.

    >>> resolve_base("Qwen/Qwen3-0.6B")
    BaseModel(name='Qwen/Qwen3-0.6B', source='Qwen/Qwen3-0.6B', aliases=(), bits=16, made_by=None)
    >>> resolve_base("Qwen/Qwen3-8B#4bit")
    BaseModel(name='Qwen/Qwen3-8B#4bit', source='Qwen/Qwen3-8B', aliases=(), bits=4, made_by=None)
    """
    plain, bits = split_bits(name)
    if bits != 16:
        base = resolve_base(plain)
        return replace(
            base,
            name=quantized_name(base.name, bits),
            aliases=tuple(quantized_name(other, bits) for other in base.aliases),
            bits=bits,
        )
    if name in nano_models.NAMES:
        return _shipped(name)
    sources = model_sources()
    for source in sources.values():
        if (made := source.resolve(name)) is not None:
            return made
    if name.startswith(nano_models.PREFIX):
        known = [*nano_models.NAMES, *(other for source in sources.values() for other in source.names)]
        hint = did_you_mean(name, known)
        raise ConfigurationError(f"unknown model {name!r}{hint and f', {hint}'}; ART has {', '.join(known)}")
    if is_folder(name):
        folder = str(Path(name).expanduser().resolve())
        return BaseModel(name=folder, source=folder)
    if name.startswith(HUB) or Path(name).expanduser().is_file():
        raise ConfigurationError(
            f"base_model {name!r} is one file, and a model is a folder. Extensions that read files: "
            f"{', '.join(sources) or 'none is installed'}"
        )
    return BaseModel(name=name, source=name)


def is_folder(name: str) -> bool:
    """Returns whether a name is that of a folder here.

    Raises ConfigurationError for one that can be neither a folder's nor a model's.
    """
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"base_model {name[:100]!r} ({len(name)} characters) is no built-in model, folder or name of the "
            f"hub: {error if isinstance(error, RuntimeError) else error.strerror}"
        ) from error


def is_file_name(name: str) -> bool:
    """Returns whether a name is one of a file that a model source reads, which need not be there."""
    return any(source.is_file_name(name) for source in model_sources().values())


async def with_folder(base: BaseModel, tell: Tell) -> BaseModel:
    """Returns the base model with a folder as its source, which is made where it was not before.

    Raises what `ModelSource.make_folder` raises.
    """
    if base.made_by is None:
        return base
    source = model_source(base)
    folder = await asyncio.to_thread(source.find_folder, base.source)
    if folder is None:
        folder = await source.make_folder(base.source, tell)
    return replace(base, source=str(folder), made_by=None)


def local_folder(name: str, tell: Tell = lambda phase: None) -> str:
    """Returns what transformers loads for the name of a base model: a folder, or a name on the hub. Blocks
    while a folder is made.

    Raises what `with_folder` raises.
    """
    return asyncio.run(with_folder(resolve_base(name), tell)).source


def _shipped(name: str) -> BaseModel:
    folder = nano_models.resolve(name)
    own = nano_models.PREFIX + folder.name.replace("_", "-")
    same = [other for other in nano_models.NAMES if nano_models.resolve(other) == folder]
    return BaseModel(name=own, source=str(folder), aliases=tuple(other for other in same if other != own))
