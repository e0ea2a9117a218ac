"""`art.get_tokenizer`: the tokenizer that a server uses for a base model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from art.engine.base_models import local_folder
from art.errors import require_extra


@lru_cache(maxsize=8)
def get_tokenizer(base_model: str) -> Any:
    """Returns the `PreTrainedTokenizerFast` of a base model: a hub name, a local folder, or a built-in model.

    It is the same one each time. torch is not loaded.

    Raises MissingExtraError without the extra `server`, and ConfigurationError for no such model.
    """
    require_extra("server", f"the tokenizer of {base_model!r}")
    from art.rendering.registry import is_on_hub, load_fast_tokenizer

    with ThreadPoolExecutor(1) as outside:  # of an event loop that may run here
        source = outside.submit(local_folder, base_model).result()
    return load_fast_tokenizer(source, here=Path(source).is_dir() or not is_on_hub(source))
