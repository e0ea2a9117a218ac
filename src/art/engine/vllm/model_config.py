"""What a base model's own config.json says, without loading it."""

from __future__ import annotations

import json
from pathlib import Path

from art.errors import ConfigurationError


def vocabulary_size(base_model: str) -> int:
    """Ids that the model has an embedding for. `base_model`: a folder, or a name on the hub.

    Raises: ConfigurationError.
    """
    path = Path(base_model) / "config.json"
    if not path.is_file():
        path = _from_hub(base_model)
    config = json.loads(path.read_text(encoding="utf-8"))
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if not isinstance(size, int):
        raise ConfigurationError(f"the configuration of {base_model!r} gives no vocab_size")
    return size


def _from_hub(name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigurationError(f"no configuration of the base model {name!r}: {error}") from error
