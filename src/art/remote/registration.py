"""What a model's registration says: from its configurations to the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from art.remote.internal_config import model_settings
from art.remote.server_config import ServerConfig
from art.wire.models import RegisterRequest

if TYPE_CHECKING:
    from art.backend import AnyTrainableModel

REGISTER_S = 1800.0
"""A large base model is loaded on registration."""


def register_request(model: AnyTrainableModel, server: ServerConfig) -> RegisterRequest:
    """Of the two lengths that may be given, the smaller. Raises ConfigurationError."""
    settings = model_settings(model._internal_config)
    lengths = [length for length in (settings.max_context, server.max_context) if length is not None]
    return RegisterRequest(
        project=model.project,
        name=model.name,
        base_model=model.base_model,
        lora=settings.lora,
        seed=settings.seed,
        max_context=min(lengths, default=None),
        chat_template=settings.chat_template,
        chat_template_kwargs=settings.chat_template_kwargs,
        special_tokens_in_text=settings.special_tokens_in_text,
    )
