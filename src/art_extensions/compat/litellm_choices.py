"""Choices of litellm's as choices of openai's, so that they can be trained. litellm itself is not needed."""

from __future__ import annotations

from typing import Any

from openai.types.chat.chat_completion import Choice

from art.errors import ConfigurationError

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def convert_litellm_choice_to_openai(choice: Any) -> Choice:
    """Converts the choice to OpenAI's type, so that it can be part of a trajectory; the server's own fields
    stay.

    Raises ConfigurationError for a piece of a stream, a role other than assistant, and calls of anything but
    functions.
    """
    if not hasattr(choice, "message"):
        raise ConfigurationError(
            f"{type(choice).__name__} has no message: it is a piece of a stream; ask without `stream=True`"
        )
    message = _plain(choice.message)
    if message.get("role") != "assistant":
        raise ConfigurationError(f"the message's role is {message.get('role')!r}, not 'assistant'")
    kept = {key: value for key, value in message.items() if value is not None}
    _merge_server_fields(kept)
    kept.setdefault("content", None)
    calls = [_function_call(call) for call in kept.pop("tool_calls", ())]
    if calls:
        kept["tool_calls"] = calls
    fields = {**(getattr(choice, "model_extra", None) or {}), "index": choice.index}
    if server_fields := getattr(choice, "provider_specific_fields", None):
        fields["provider_specific_fields"] = server_fields
    _merge_server_fields(fields)
    logprobs = getattr(choice, "logprobs", None)
    reason = choice.finish_reason
    return Choice.model_validate(
        {
            **fields,
            "message": kept,
            "finish_reason": reason if reason in FINISH_REASONS else "stop",
            "logprobs": None if logprobs is None else _logprobs(logprobs),
        }
    )


def _merge_server_fields(fields: dict[str, Any]) -> None:
    """litellm puts what it does not know into a dict of its own."""
    for key, value in (fields.pop("provider_specific_fields", None) or {}).items():
        if value is not None:
            fields.setdefault(key, value)


def _function_call(call: Any) -> dict[str, Any]:
    plain = _plain(call)
    kind = plain.get("type") or "function"
    if kind != "function":
        raise ConfigurationError(f"a tool call of type {kind!r} cannot be converted; only functions can")
    return {"id": plain["id"], "type": "function", "function": _plain(plain["function"])}


def _logprobs(logprobs: Any) -> dict[str, Any]:
    plain = _plain(logprobs)
    return {"content": plain.get("content"), "refusal": plain.get("refusal")}


def _plain(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else dict(value.model_dump(mode="json"))
