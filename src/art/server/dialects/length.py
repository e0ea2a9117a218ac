"""Prompts that cannot fit, refused before they are made into ids: that takes seconds for some megabytes."""

from __future__ import annotations

from collections.abc import Iterable

from art.errors import RequestError
from art.server.dialects.chat_request import ChatRequest
from art.server.models.served import Target


def check_request(request: ChatRequest, target: Target) -> None:
    """Whether messages and tools, each of at least one token, may fit the context at all.

    Raises: RequestError (context_length_exceeded).
    """
    check_length((message["content"] for message in request.messages), target, param="messages")
    check_length((tool["function"]["name"] for tool in request.tools or ()), target, param="tools")


def check_length(texts: Iterable[str], target: Target, *, param: str) -> None:
    """Whether texts, each of at least one token, may fit the context at all.

    Raises: RequestError (context_length_exceeded).
    """
    fewest = characters = 0
    for text in texts:
        fewest += 1
        characters += len(text)
    if fewest + characters <= target.max_context:
        return
    fewest = max(fewest, characters // target.renderer.longest_token)
    if fewest > target.max_context:
        raise RequestError(
            f"the prompt has at least {fewest} tokens; {target.name} has room for {target.max_context} "
            "tokens of prompt and completion. Shorten it.",
            status=400,
            code="context_length_exceeded",
            param=param,
        )
