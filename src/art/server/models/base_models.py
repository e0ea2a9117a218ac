"""What a base model's name means: a built-in model, a local folder, or a name on the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from art.errors import ConfigurationError
from art.wire.checkpoint import ADAPTER_CONFIG_FILE, ADAPTER_FILE


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """One base model: two names of the same weights give the same `name`."""

    name: str
    """What it is served as."""
    source: str
    """What workers load: a folder, or a hub name."""
    aliases: tuple[str, ...] = ()
    """Other names that it answers to."""

    @property
    def label(self) -> str:
        """Short and fit for a file name."""
        short = self.name.rstrip("/").rpartition("/")[2]
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in short)[:60] or "model"


def resolve_base(name: str) -> BaseModel:
    """Raises ConfigurationError for an unknown `art/...` name.

    >>> resolve_base("Qwen/Qwen3-0.6B")
    BaseModel(name='Qwen/Qwen3-0.6B', source='Qwen/Qwen3-0.6B', aliases=())
    """
    if name.startswith("art/"):
        from art import nano_models

        folder = nano_models.resolve(name)
        own = "art/" + folder.name.replace("_", "-")
        same = [other for other in nano_models.NAMES if nano_models.resolve(other) == folder]
        aliases = tuple(other for other in same if other != own)
        return BaseModel(name=own, source=str(folder), aliases=aliases)
    if is_folder(name):
        folder = Path(name).expanduser()
        return BaseModel(name=str(folder.resolve()), source=str(folder.resolve()))
    return BaseModel(name=name, source=name)


def is_folder(name: str) -> bool:
    """Whether a name is that of a folder here.

    Raises ConfigurationError for one that can be neither a folder's nor a model's.
    """
    try:
        return Path(name).expanduser().is_dir()
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(
            f"base_model {name[:100]!r} ({len(name)} characters) is no built-in model, folder or name of the "
            f"hub: {error if isinstance(error, RuntimeError) else error.strerror}"
        ) from error


def adapter_folder(name: str) -> Path | None:
    """The folder, where a base model's name is that of a LoRA to begin with and not of a whole model."""
    if not is_folder(name):
        return None
    folder = Path(name).expanduser()
    if not (folder / ADAPTER_CONFIG_FILE).is_file() or (folder / "config.json").is_file():
        return None
    return folder.resolve()


def base_of_adapter(folder: Path) -> str:
    """The base model that a LoRA's `adapter_config.json` names.

    Raises ConfigurationError when it names none, or the folder holds no weights in safetensors.
    """
    if not (folder / ADAPTER_FILE).is_file():
        raise ConfigurationError(
            f"the LoRA {folder} has no {ADAPTER_FILE}: save it with safe_serialization=True"
        )
    try:
        name = json.loads((folder / ADAPTER_CONFIG_FILE).read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{folder / ADAPTER_CONFIG_FILE} names no base model ({error!r}): set base_model_name_or_path"
        ) from error
    if not isinstance(name, str) or not name:
        raise ConfigurationError(
            f"{folder / ADAPTER_CONFIG_FILE} has base_model_name_or_path {name!r}: set it to the base model"
        )
    beside = folder.parent / name
    return str(beside) if not is_folder(name) and beside.is_dir() else name
