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


WHOLE: Schema = {"type": "integer", "minimum": 0}
_STEP: Schema = {"type": ["integer", "null"], "minimum": 0}
NO_TEXT: Schema = {"type": ["string", "null"]}
NO_OBJECT: Schema = {"type": ["object", "null"]}
SAMPLE: dict[str, Schema] = {SAMPLE_FIELD: {"type": "string", "pattern": "^smp_"}, STEP_FIELD: _STEP}


def record(optional: tuple[str, ...] = (), /, **fields: Any) -> Schema:
    """An object of these fields and no others."""
    required = [name for name in fields if name not in optional]
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


OPENAI_ERROR = record(error=record(message=TEXT, type=TEXT, param=NO_TEXT, code=NO_TEXT))

_USAGE = record(prompt_tokens=WHOLE, completion_tokens=WHOLE, total_tokens=WHOLE)
_MESSAGE = record(
    ("tool_calls", "reasoning_content"),
    role={"const": "assistant"},
    content=NO_TEXT,
    tool_calls=listed(OBJECT),
    reasoning_content=TEXT,
)
_FINISH: Schema = {"enum": ["stop", "length", "tool_calls"]}
CHAT_COMPLETION = record(
    id=TEXT,
    object={"const": "chat.completion"},
    created=WHOLE,
    model=TEXT,
    choices=listed(
        record(
            (MALFORMED_FIELD,),
            index=WHOLE,
            message=_MESSAGE,
            logprobs=NO_OBJECT,
            finish_reason=_FINISH,
            **SAMPLE,
            **{TOKENS_FIELD: WHOLE, MALFORMED_FIELD: WHOLE},
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
        "created": WHOLE,
        "model": TEXT,
        "choices": listed(
            {
                "type": "object",
                "properties": {"index": WHOLE, "text": TEXT, "finish_reason": _FINISH, **SAMPLE},
                "required": ["index", "text", "finish_reason", *SAMPLE],
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
        "created": WHOLE,
        "output_mode": {"const": "tokens"},
        "choices": listed(
            {
                "type": "object",
                "properties": {
                    "index": WHOLE,
                    "token_ids": listed(WHOLE),
                    "logprobs": NO_OBJECT,
                    "finish_reason": _FINISH,
                    "stop_reason": {"type": ["string", "integer", "null"]},
                    **SAMPLE,
                },
                "required": ["index", "token_ids", "finish_reason", *SAMPLE],
            }
        ),
        "usage": _USAGE,
    },
    "required": ["request_id", "model", "created", "choices", "usage"],
}
TOKENS = record(
    count=WHOLE,
    max_model_len=WHOLE,
    tokens=listed(WHOLE),
    token_strs={"anyOf": [listed(TEXT), {"type": "null"}]},
)
DETOKENIZED = record(prompt=TEXT)
TOKENIZER: Schema = {
    "type": "object",
    "properties": {"tokenizer_class": TEXT, "model_max_length": WHOLE, "chat_template": TEXT},
    "required": ["tokenizer_class", "model_max_length"],
}
VERSION = record(version=TEXT)

MODEL = record(
    id=TEXT,
    object={"const": "model"},
    created=WHOLE,
    owned_by=TEXT,
    base_model=TEXT,
    step=_STEP,
    max_model_len=WHOLE,
)
MODELS = record(object={"const": "list"}, data=listed(MODEL))
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
