"""Both APIs as the core takes them (`art.server.routes.agent_api.AgentApi`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from art.server.dialects.completion_service import CompletionService
from art.server.dialects.dialect import Dialect
from art.server.http import TenantThreads
from art.server.routes.openapi import EVENT_STREAM, Operation
from art.server.settings import LimitSettings
from art_extensions.agent_apis import reply_schemas as replies
from art_extensions.agent_apis.anthropic import AnthropicMessages, AnthropicTokens
from art_extensions.agent_apis.anthropic_request import COUNT_TOKENS, MESSAGES
from art_extensions.agent_apis.responses import MOST_ITEMS, Responses
from art_extensions.agent_apis.responses_request import RESPONSES

_REFUSAL = ("AnthropicError", replies.ANTHROPIC_ERROR)


class ResponsesApi:
    """OpenAI's Responses."""

    operations: Mapping[tuple[str, str], Operation] = MappingProxyType(
        {
            ("POST", "/v1/responses"): Operation(
                summary="OpenAI's Responses", body=RESPONSES, reply=replies.RESPONSE, streams=EVENT_STREAM
            ),
            ("GET", "/v1/responses/{response_id}"): Operation(
                summary="A stored response", reply=replies.RESPONSE
            ),
            ("DELETE", "/v1/responses/{response_id}"): Operation(
                summary="Forget a stored response", reply=replies.RESPONSE_DELETED
            ),
            ("GET", "/v1/responses/{response_id}/input_items"): Operation(
                summary="What a stored response answered",
                reply=replies.INPUT_ITEMS,
                query=(
                    ("after", {"type": "string"}),
                    ("limit", {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}),
                    ("order", {"enum": ["asc", "desc"]}),
                ),
            ),
        }
    )

    def make(
        self,
        service: CompletionService,
        limits: LimitSettings,
        threads: TenantThreads,
        left_out: Counter[tuple[str, str]],
    ) -> Mapping[str, Dialect]:
        """See `AgentApi.make`."""
        return {"/v1/responses": Responses(service, limits, threads, left_out)}


class MessagesApi:
    """Anthropic's messages."""

    operations: Mapping[tuple[str, str], Operation] = MappingProxyType(
        {
            ("POST", "/v1/messages"): Operation(
                summary="Anthropic's messages",
                body=MESSAGES,
                reply=replies.MESSAGE,
                streams=EVENT_STREAM,
                error=_REFUSAL,
            ),
            ("POST", "/v1/messages/count_tokens"): Operation(
                summary="The tokens of a request to Anthropic's messages",
                body=COUNT_TOKENS,
                reply=replies.TOKEN_COUNT,
                error=_REFUSAL,
            ),
        }
    )

    def make(
        self,
        service: CompletionService,
        limits: LimitSettings,
        threads: TenantThreads,
        left_out: Counter[tuple[str, str]],
    ) -> Mapping[str, Dialect]:
        """See `AgentApi.make`."""
        return {
            "/v1/messages": AnthropicMessages(service, limits, threads, left_out),
            "/v1/messages/count_tokens": AnthropicTokens(service, limits, threads, left_out),
        }


RESPONSES_API = ResponsesApi()
MESSAGES_API = MessagesApi()
