"""What a base model's own config.json says, without loading it."""

from __future__ import annotations

import json
from pathlib import Path

from art.errors import ConfigurationError


def vocabulary_size(base_model: str) -> int:
    """Ids that the model has an embedding for. `base_model`: a folder, or a name on the hub.

    Raises: ConfigurationError.
    """
    path = model_file(base_model, "config.json")
    config = json.loads(path.read_text(encoding="utf-8"))
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(size, int):
        raise ConfigurationError(f"the configuration of {base_model!r} gives no vocab_size")
    return size


def model_file(base_model: str, name: str) -> Path:
    """One small file of a model. Raises: ConfigurationError."""
    folder = Path(base_model)
    if folder.is_dir():
        if not (folder / name).is_file():
            raise ConfigurationError(f"the model folder {base_model!r} has no {name}")
        return folder / name
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(base_model, name))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(f"no {name} of the base model {base_model!r}: {error}") from error
