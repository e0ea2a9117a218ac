"""`model.json`: what a model is, for people and programs that find its folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from art.errors import ConfigurationError
from art.hidden_key import without_keys
from art.tracking.state import write_json

if TYPE_CHECKING:
    from art.backend import AnyModel


def check_config(config: Any) -> None:
    """Raises ConfigurationError when a model's config cannot be written down."""
    if config is None:
        return
    try:
        config.model_dump_json()
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            "The model config cannot be serialized to JSON. Use a pydantic model whose fields are plain "
            f"values, got {config!r}: {error}"
        ) from error


def write_model_file(model: AnyModel) -> None:
    """Write `model.json` into the model's folder, without its key and those of its settings."""
    described = model.model_dump(exclude={"inference_api_key", "config"})
    config = None if model.config is None else json.loads(model.config.model_dump_json())
    text = json.dumps(without_keys({**described, "config": config}), default=repr)
    write_json(model._folder() / "model.json", json.loads(text))
