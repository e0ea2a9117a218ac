"""What a base model's name means: a built-in model, a local folder, or a name on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    folder = Path(name).expanduser()
    if folder.is_dir():
        return BaseModel(name=str(folder.resolve()), source=str(folder.resolve()))
    return BaseModel(name=name, source=name)
