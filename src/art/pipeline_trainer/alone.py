"""One run a model: two would undo each other's state and logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from art.errors import ConfigurationError
from art.folders import get_model_dir
from art.process.file_lock import take_lock


@contextmanager
def alone_with(model: Any) -> Iterator[None]:
    """Hold the model's lock, which the kernel drops when this process dies.

    Raises ConfigurationError while another run holds it, in this process or another.
    """
    folder = Path(get_model_dir(model))
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = take_lock(folder / ".pipeline.lock", mode=0o644)
    if descriptor is None:
        raise ConfigurationError(
            f"another PipelineTrainer is training the model {model.name!r} in {str(folder)!r}: wait for it, "
            "stop it, or give this one a model of another name"
        )
    try:
        yield
    finally:
        os.close(descriptor)
