"""JSON schemas of what the dialects and lookups answer."""

from __future__ import annotations

from typing import Any

from art.wire.request_values import Schema
from art.wire.rollouts import MALFORMED_FIELD, SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def listed(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


_WHOLE: Schema = {"type": "integer", "minimum": 0}
_STEP: Schema = {"type": ["integer", "null"], "minimum": 0}
_NO_TEXT: Schema = {"type": ["string", "null"]}
_NO_OBJECT: Schema = {"type": ["object", "null"]}
_SAMPLE: dict[str, Schema] = {SAMPLE_FIELD: {"type": "string", "pattern": "^smp_"}, STEP_FIELD: _STEP}


def _record(optional: tuple[str, ...] = (), /, **fields: Any) -> Schema:
    """An object of these fields and no others."""
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


OPENAI_ERROR = _record(error=_record(message=TEXT, type=TEXT, param=_NO_TEXT, code=_NO_TEXT))
ANTHROPIC_ERROR = _record(
    type={"const": "error"},
    error=_record(type=TEXT, message=TEXT, details=_record(error_code=_NO_TEXT, param=_NO_TEXT)),
)

_USAGE = _record(prompt_tokens=_WHOLE, completion_tokens=_WHOLE, total_tokens=_WHOLE)
_MESSAGE = _record(
    ("tool_calls", "reasoning_content"),
    role={"const": "assistant"},
    content=_NO_TEXT,
    tool_calls=listed(OBJECT),
    reasoning_content=TEXT,
)
_FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}
CHAT_COMPLETION = _record(
    id=TEXT,
    object={"const": "chat.completion"},
    created=_WHOLE,
    model=TEXT,
    choices=listed(
        _record(
            (MALFORMED_FIELD,),
            index=_WHOLE,
            message=_MESSAGE,
            logprobs=_NO_OBJECT,
            finish_reason=_FINISH,
            **_SAMPLE,
            **{TOKENS_FIELD: _WHOLE, MALFORMED_FIELD: _WHOLE},
        )
    ),
    usage=_USAGE,
    system_fingerprint=TEXT,
)
COMPLETION: Schema = {
    "type": "object",
    "properties": {
        "id": TEXT,
        "object": {"const": "text_completion"},
        "created": _WHOLE,
        "model": TEXT,
        "choices": listed(
            {
                "type": "object",
                "properties": {"index": _WHOLE, "text": TEXT, "finish_reason": _FINISH, **_SAMPLE},
                "required": ["index", "text", "finish_reason", *_SAMPLE],
            }
        ),
        "usage": _USAGE,
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}
TOKEN_COMPLETION: Schema = {
    "type": "object",
    "properties": {
        "request_id": TEXT,
        "model": TEXT,
        "created": _WHOLE,
        "output_mode": {"const": "tokens"},
        "choices": listed(
            {
                "type": "object",
                "properties": {
                    "index": _WHOLE,
                    "token_ids": listed(_WHOLE),
                    "logprobs": _NO_OBJECT,
                    "finish_reason": _FINISH,
                    "stop_reason": {"type": ["string", "integer", "null"]},
                    **_SAMPLE,
                },
                "required": ["index", "token_ids", "finish_reason", *_SAMPLE],
            }
        ),
        "usage": _USAGE,
    },
    "required": ["request_id", "model", "created", "choices", "usage"],
}
MESSAGE = _record(
    id={"type": "string", "pattern": "^msg_"},
    type={"const": "message"},
    role={"const": "assistant"},
    model=TEXT,
    content=listed(
        {
            "oneOf": [
                _record(type={"const": "text"}, text=TEXT),
                _record(type={"const": "thinking"}, thinking=TEXT, signature=TEXT),
                _record(type={"const": "tool_use"}, id=TEXT, name=TEXT, input=OBJECT),
            ]
        }
    ),
    stop_reason={
        "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    },
    stop_sequence=_NO_TEXT,
    usage=_record(input_tokens=_WHOLE, output_tokens=_WHOLE),
    **_SAMPLE,
)
TOKEN_COUNT = _record(input_tokens=_WHOLE)
TOKENS = _record(
    count=_WHOLE,
    max_model_len=_WHOLE,
    tokens=listed(_WHOLE),
    token_strs={"anyOf": [listed(TEXT), {"type": "null"}]},
)
DETOKENIZED = _record(prompt=TEXT)
TOKENIZER: Schema = {
    "type": "object",
    "properties": {"tokenizer_class": TEXT, "model_max_length": _WHOLE, "chat_template": TEXT},
    "required": ["tokenizer_class", "model_max_length"],
}
VERSION = _record(version=TEXT)
RESPONSE: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^resp_"},
        "object": {"const": "response"},
        "created_at": _WHOLE,
        "status": {"enum": ["completed", "incomplete", "failed", "in_progress"]},
        "model": TEXT,
        "output": listed(OBJECT),
        "usage": _NO_OBJECT,
        **_SAMPLE,
    },
    "required": ["id", "object", "created_at", "status", "model", "output", "usage", *_SAMPLE],
}
RESPONSE_DELETED = _record(id=TEXT, object={"const": "response"}, deleted={"const": True})
INPUT_ITEMS = _record(
    object={"const": "list"}, data=listed(OBJECT), first_id=TEXT, last_id=TEXT, has_more=FLAG
)

MODEL = _record(
    id=TEXT,
    object={"const": "model"},
    created=_WHOLE,
    owned_by=TEXT,
    base_model=TEXT,
    step=_STEP,
    max_model_len=_WHOLE,
)
MODELS = _record(object={"const": "list"}, data=listed(MODEL))
HEALTH: Schema = {
    "type": "object",
    "properties": {"status": {"const": "ok"}, "version": TEXT, "models": listed(TEXT)},
    "required": ["status", "version"],
}
DOCUMENT: Schema = {
    "type": "object",
    "properties": {"openapi": TEXT, "info": OBJECT, "paths": OBJECT, "components": OBJECT},
    "required": ["openapi", "info", "paths", "components"],
}
