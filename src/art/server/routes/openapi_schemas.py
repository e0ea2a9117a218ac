"""JSON schemas of the bodies that the dialects read by hand, and of what the dialects and lookups answer.

A test holds the fields of the bodies to the readers'.
"""

from __future__ import annotations

from typing import Any

from art.server.chat.chat_request import EFFORTS
from art.server.chat.request_fields import OTHER_FIELDS
from art.wire.rollouts import SAMPLE_FIELD, STEP_FIELD, TOKENS_FIELD
from art.wire.sampling import PARAMETERS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
_NAME: Schema = {"type": "string", "minLength": 1}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_FRACTION: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_SHARE: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_STOPS: Schema = {"type": "array", "items": _NAME, "maxItems": 16}
_METADATA: Schema = {"type": "object", "additionalProperties": TEXT, "maxProperties": 16}


def listed(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


def _body(required: tuple[str, ...], **fields: Schema) -> Schema:
    """An object of these fields, of which all but the required may be null."""
    may = {
        name: field if name in required else {"anyOf": [field, {"type": "null"}]}
        for name, field in fields.items()
    }
    return {"type": "object", "properties": may, "required": list(required), "additionalProperties": False}


def _only(*values: Any) -> Schema:
    """A field that is accepted where it asks for nothing; a null always does."""
    return {"enum": [*values, None]}


_CONTENT: Schema = {
    "anyOf": [
        TEXT,
        listed(
            {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": TEXT},
                "required": ["type", "text"],
            }
        ),
    ]
}
_CHAT_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [_CONTENT, {"type": "null"}]},
        "name": {"anyOf": [TEXT, {"type": "null"}]},
        "tool_calls": {"anyOf": [listed(OBJECT), {"type": "null"}]},
        "tool_call_id": {"anyOf": [TEXT, {"type": "null"}]},
        "reasoning_content": {"anyOf": [TEXT, {"type": "null"}]},
    },
    "required": ["role"],
}
_CHAT_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"},
                "description": TEXT,
                "parameters": OBJECT,
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}


def _sampling(route: str) -> dict[str, Schema]:
    """The parameters that a route reads as a chat completion does."""
    return {name: one.values.schema for name, one in PARAMETERS.items() if route in one.routes}


_TOP_LOGPROBS: Schema = PARAMETERS["top_logprobs"].values.schema
_GUIDED: dict[str, Schema] = {
    "guided_json": {"anyOf": [OBJECT, TEXT]},
    "guided_regex": TEXT,
    "guided_choice": listed(TEXT),
    "guided_grammar": TEXT,
    "structured_outputs": OBJECT,
}
_OTHER: dict[str, Schema] = {
    name: {} if other.accepted is None else _only(*other.accepted) for name, other in OTHER_FIELDS.items()
}
_ENDS: dict[str, Schema] = {"ignore_eos": FLAG, "include_stop_str_in_output": FLAG}
_TOLD: dict[str, Schema] = {
    "prompt_logprobs": _TOP_LOGPROBS,
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
}
_STREAM: dict[str, Schema] = {"stream": FLAG, "stream_options": OBJECT}

CHAT = _body(
    ("model", "messages"),
    model=_NAME,
    messages={"type": "array", "items": _CHAT_MESSAGE, "minItems": 1},
    tools=listed(_CHAT_TOOL),
    tool_choice={"anyOf": [{"enum": ["auto", "none", "required"]}, OBJECT]},
    parallel_tool_calls=FLAG,
    response_format=OBJECT,
    n=_COUNT,
    logprobs=FLAG,
    max_tokens=_COUNT,
    max_completion_tokens=_COUNT,
    metadata=_METADATA,
    chat_template_kwargs=OBJECT,
    reasoning_effort={"enum": list(EFFORTS)},
    best_of=_COUNT,
    echo=_only(False),
    add_special_tokens=_only(False),
    **{name: one.values.schema for name, one in PARAMETERS.items()},
    **_GUIDED,
    **_ENDS,
    **_TOLD,
    **_STREAM,
    **_OTHER,
)
COMPLETIONS = _body(
    ("model", "prompt"),
    model=_NAME,
    prompt={"anyOf": [TEXT, {"type": "array"}]},
    best_of=_COUNT,
    echo=FLAG,
    logprobs={"type": "integer", "minimum": 0},
    add_special_tokens=FLAG,
    n=_COUNT,
    max_tokens={"type": "integer", "minimum": 0},
    metadata=_METADATA,
    response_format=OBJECT,
    **_sampling("completions"),
    **_GUIDED,
    **_ENDS,
    **_TOLD,
    **_STREAM,
    **_OTHER,
)

_BLOCK: Schema = {"type": "object", "properties": {"type": TEXT}, "required": ["type"]}
_BLOCKS: Schema = {"anyOf": [TEXT, listed(_BLOCK)]}
_CACHE: Schema = {"type": "object", "properties": {"type": {"const": "ephemeral"}}, "required": ["type"]}
_TURN: Schema = {
    "type": "object",
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _BLOCKS},
    "required": ["role", "content"],
    "additionalProperties": False,
}
_ANTHROPIC_TOOL: Schema = {
    "type": "object",
    "properties": {"name": TEXT, "description": TEXT, "input_schema": OBJECT},
    "required": ["name", "input_schema"],
}
_ANTHROPIC: dict[str, Schema] = {
    "model": _NAME,
    "messages": {"type": "array", "items": _TURN, "minItems": 1, "maxItems": 100_000},
    "system": _BLOCKS,
    "stream": FLAG,
    "temperature": _FRACTION,
    "top_p": _SHARE,
    "top_k": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "stop_sequences": _STOPS,
    "metadata": {
        "type": "object",
        "properties": {"user_id": {"anyOf": [TEXT, {"type": "null"}]}},
        "additionalProperties": False,
    },
    "thinking": {
        "type": "object",
        "properties": {"type": {"enum": ["adaptive", "disabled"]}},
        "required": ["type"],
    },
    "output_config": OBJECT,
    "tools": listed(_ANTHROPIC_TOOL),
    "tool_choice": {
        "type": "object",
        "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}, "name": TEXT},
        "required": ["type"],
    },
    "cache_control": _CACHE,
    "thread": _only(None),
    "chat_template_kwargs": OBJECT,
    **_sampling("messages"),
    "speed": _only("standard"),
    "mcp_servers": _only([]),
    **_ENDS,
    **_OTHER,
}
MESSAGES = _body(("model", "messages", "max_tokens"), max_tokens=_COUNT, **_ANTHROPIC)
COUNT_TOKENS = _body(("model", "messages"), max_tokens=_COUNT, **_ANTHROPIC)
RESPONSES = _body(
    ("model", "input"),
    model=_NAME,
    input={"anyOf": [TEXT, listed(OBJECT)]},
    instructions=TEXT,
    previous_response_id=TEXT,
    tools=listed(OBJECT),
    tool_choice={"anyOf": [TEXT, OBJECT]},
    text=OBJECT,
    reasoning=OBJECT,
    include=listed(TEXT),
    store=FLAG,
    stream=FLAG,
    stream_options=OBJECT,
    max_output_tokens=_COUNT,
    metadata=_METADATA,
    parallel_tool_calls=FLAG,
    chat_template_kwargs=OBJECT,
    background=_only(False),
    conversation=_only(),
    prompt=_only(),
    max_tool_calls=_only(),
    context_management=_only([]),
    truncation=_only("disabled"),
    top_logprobs=_TOP_LOGPROBS,
    **_sampling("responses"),
    **_ENDS,
    **{name: schema for name, schema in _OTHER.items() if name != "store"},
)
TOKENIZE = _body(
    (),
    model=_NAME,
    prompt=TEXT,
    messages=listed(_CHAT_MESSAGE),
    tools=listed(OBJECT),
    chat_template_kwargs=OBJECT,
    add_generation_prompt=FLAG,
    return_token_strs=FLAG,
    add_special_tokens=FLAG,
    continue_final_message=_only(False),
)
DETOKENIZE = _body(
    ("tokens",), model=_NAME, tokens=listed({"type": "integer", "minimum": 0, "maximum": 2**31 - 1})
)


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
            index=_WHOLE,
            message=_MESSAGE,
            logprobs=_NO_OBJECT,
            finish_reason=_FINISH,
            **_SAMPLE,
            **{TOKENS_FIELD: _WHOLE},
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
    id=TEXT, object={"const": "model"}, created=_WHOLE, owned_by=TEXT, base_model=TEXT, step=_STEP
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
