"""LangChain's own `ChatOpenAI`, which asks at each call where the rollout is."""

from __future__ import annotations

from typing import Any

import openai
from langchain_core.language_models import LanguageModelInput
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field

from art.langgraph.endpoint import current_endpoint
from art.langgraph.logged import CallLog
from art.langgraph.transport import NOWHERE, routed_clients
from art.wire.headers import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

THE_ROLLOUTS = "(the rollout's model)"
"""As `model`: whichever model the rollout is of."""

_IDENTITY = (SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD)


class RolloutChatModel(ChatOpenAI):
    """Everything is `ChatOpenAI`'s: tools, structured output, streams, batches, retries, configuration.

    A reply's `response_metadata` also names its sample and step.
    """

    given: Any = Field(default=None, exclude=True, repr=False)
    """The model whose endpoint is used outside of its own rollouts."""

    def __init__(self, **fields: Any) -> None:
        if "http_client" not in fields:  # LangChain's copies bring everything along
            given = fields.get("given")
            waiting, asynchronous = routed_clients(lambda: current_endpoint(given))
            fields |= {"http_client": waiting, "http_async_client": asynchronous}
            fields |= {"base_url": NOWHERE, "api_key": "told at each call"}
            fields["callbacks"] = [*(fields.get("callbacks") or ()), CallLog()]
        super().__init__(**fields)

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        # Asked before openai's retries, which take any failure for the network's.
        endpoint = current_endpoint(self.given)
        payload: dict[str, Any] = super()._get_request_payload(input_, stop=stop, **kwargs)
        if payload.get("model") == THE_ROLLOUTS:
            payload["model"] = endpoint.model
        return payload

    def _create_chat_result(
        self, response: dict[str, Any] | openai.BaseModel, generation_info: dict[str, Any] | None = None
    ) -> ChatResult:
        result = super()._create_chat_result(response, generation_info)
        choices = response["choices"] if isinstance(response, dict) else getattr(response, "choices", [])
        for generation, choice in zip(result.generations, choices, strict=False):
            generation.message.response_metadata.update(_identity(choice))
        return result

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        told = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        choices = chunk.get("choices") or (chunk.get("chunk") or {}).get("choices") or []
        if told is not None and choices and choices[0].get("finish_reason"):
            # Once: chunks are added up, and texts with them.
            told.generation_info = {**(told.generation_info or {}), **_identity(choices[0])}
        return told


def _identity(choice: Any) -> dict[str, Any]:
    fields = choice if isinstance(choice, dict) else (getattr(choice, "model_extra", None) or {})
    return {name: fields[name] for name in _IDENTITY if fields.get(name) is not None}
