"""The protocol's requests and deltas <-> messages of `art.wire.engine`, for both ends of a connection.

Written by hand where a message is made for each completion or each step: what is not the default alone.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from art.engine.protocol import Delta, GenerateRequest
from art.errors import ARTError
from art.wire.engine import EngineErrorBody, GenerateMessage, to_body, to_error
from art.wire.sampling import PARAMETERS

_DEFAULTS = tuple((name, parameter.default) for name, parameter in PARAMETERS.items())
"""What is not told where it is the default."""


def generate_message(number: str, request: GenerateRequest) -> dict[str, Any]:
    """A `GenerateMessage` of the id `number`."""
    sampling = request.sampling
    body: dict[str, Any] = {"max_tokens": sampling.max_tokens}
    for name, default in _DEFAULTS:
        if (value := getattr(sampling, name)) != default:
            body[name] = value
    if sampling.constraint is not None:
        body["constraint"] = {"kind": sampling.constraint.kind, "text": sampling.constraint.text}
    message: dict[str, Any] = {"id": number, "prompt_ids": list(request.prompt_ids), "sampling": body}
    if request.adapter is not None:
        message["adapter"] = request.adapter
    if request.stream:
        message["stream"] = True
    if request.owner:
        message["owner"] = request.owner
    return message


def read_request(message: GenerateMessage) -> GenerateRequest:
    """Reads the output of `generate_message`."""
    return GenerateRequest(
        request_id=message.id,
        adapter=message.adapter,
        prompt_ids=message.prompt_ids,
        sampling=message.sampling,
        stream=message.stream,
        owner=message.owner,
    )


def news_message(number: str, news: Delta | ARTError) -> dict[str, Any]:
    """A `DeltaMessage` or a `FailureMessage` about the request of the id `number`."""
    if isinstance(news, ARTError):
        return {"id": number, "error": to_body(news).model_dump()}
    message = {"id": number, "token_ids": news.token_ids, "logprobs": news.logprobs}
    if news.top_logprobs:
        message["top_logprobs"] = news.top_logprobs
    if news.candidates:
        message["candidates"] = b64encode(news.candidates).decode()
    if news.finish_reason is not None:
        message["finish_reason"] = news.finish_reason
        if news.stop_string is not None:
            message["stop_string"] = news.stop_string
    return message


def read_news(message: dict[str, Any]) -> Delta | ARTError:
    """Reads the output of `news_message`."""
    if "error" in message:
        return to_error(EngineErrorBody.model_validate(message["error"]))
    return Delta(
        token_ids=message["token_ids"],
        logprobs=message["logprobs"],
        finish_reason=message.get("finish_reason"),
        stop_string=message.get("stop_string"),
        top_logprobs=message.get("top_logprobs", ()),
        candidates=b64decode(message.get("candidates", "")),
    )
