"""An adapter from anywhere on this machine, put where the server may read it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from uuid import uuid4

from art.errors import ConfigurationError

FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What PEFT writes."""


def bring_adapter(data_dir: Path, project: str, path: Path) -> Path:
    """The folder itself where it lies in the project; otherwise a copy, named by what it holds, in
    `server/references`. Raises ConfigurationError when it holds no LoRA.
    """
    folder = path.expanduser().resolve()
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise ConfigurationError(
            f"train(kl_ref_adapter_path={str(path)!r}): {folder} has no {' and no '.join(missing)}; it is to "
            "be the folder of a LoRA, as PEFT writes it"
        )
    if folder.is_relative_to((data_dir / project).resolve()):
        return folder
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((folder / name).read_bytes())
    copy = data_dir / "server" / "references" / digest.hexdigest()[:32]
    if not copy.is_dir():
        partial = copy.with_name(f".{copy.name}.{uuid4().hex[:8]}")
        partial.mkdir(parents=True)
        for name in FILES:
            shutil.copyfile(folder / name, partial / name)
        if copy.is_dir():  # somebody else was faster
            shutil.rmtree(partial)
        else:
            partial.rename(copy)
    return copy
