"""The images of a chat request: made as the model sees them, and named in its messages.

It stands alone because it needs both a request and the model that it is for, which a request does not know
while it is read.
"""

from __future__ import annotations

import asyncio

from art.rendering.chat_renderer import ChatRenderer
from art.rendering.images import IMAGE
from art.server.chat.chat_request import ChatRequest
from art.server.chat.messages import FILE
from art.wire.images import image_name
from art.wire.request_values import refuse

FORBIDDEN = -100.0
"""The bias of an id that is never sampled."""


async def name_images(request: ChatRequest, renderer: ChatRenderer) -> tuple[bytes, ...]:
    """Returns the pictures of the request in their order, as PNG; its messages hold their names afterwards.

    A model that sees never samples its placeholder: in a later prompt it would stand for an image that is not
    there. Raises RequestError for a model that sees none, and for what is no picture.
    """
    if renderer.images is None:
        if any(not isinstance(message["content"], str) for message in request.messages):
            refuse(
                "messages hold an image, and this model takes text only: images need a vision-language model "
                "of a known family behind the engine 'vllm'",
                "messages",
                "unsupported_content",
            )
        return ()
    placeholder = renderer.images.placeholder
    others = tuple(one for one in request.logit_bias if one[0] != placeholder)
    request.logit_bias = (*others, (placeholder, FORBIDDEN))
    parts = [
        part
        for message in request.messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == IMAGE
    ]
    if parts and request.prompt_logprobs is not None:
        refuse("prompt_logprobs cannot be told of a prompt with images", "prompt_logprobs")
    files = []
    for part in parts:
        files.append(await asyncio.to_thread(renderer.images.fitted, part.pop(FILE)))
        part[IMAGE] = image_name(files[-1])
    return tuple(files)
