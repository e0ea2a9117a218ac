"""JSON schemas of what these APIs answer."""

from __future__ import annotations

from art.server.routes.openapi_schemas import (
    FLAG,
    NO_OBJECT,
    NO_TEXT,
    OBJECT,
    SAMPLE,
    TEXT,
    WHOLE,
    listed,
    record,
)
from art.wire.request_values import Schema

ANTHROPIC_ERROR = record(
    type={"const": "error"},
    error=record(type=TEXT, message=TEXT, details=record(error_code=NO_TEXT, param=NO_TEXT)),
)
MESSAGE = record(
    id={"type": "string", "pattern": "^msg_"},
    type={"const": "message"},
    role={"const": "assistant"},
    model=TEXT,
    content=listed(
        {
            "oneOf": [
                record(type={"const": "text"}, text=TEXT),
                record(type={"const": "thinking"}, thinking=TEXT, signature=TEXT),
                record(type={"const": "tool_use"}, id=TEXT, name=TEXT, input=OBJECT),
            ]
        }
    ),
    stop_reason={
        "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    },
    stop_sequence=NO_TEXT,
    usage=record(input_tokens=WHOLE, output_tokens=WHOLE),
    **SAMPLE,
)
TOKEN_COUNT = record(input_tokens=WHOLE)
RESPONSE: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^resp_"},
        "object": {"const": "response"},
        "created_at": WHOLE,
        "status": {"enum": ["completed", "incomplete", "failed", "in_progress"]},
        "model": TEXT,
        "output": listed(OBJECT),
        "usage": NO_OBJECT,
        **SAMPLE,
    },
    "required": ["id", "object", "created_at", "status", "model", "output", "usage", *SAMPLE],
}
RESPONSE_DELETED = record(id=TEXT, object={"const": "response"}, deleted={"const": True})
INPUT_ITEMS = record(
    object={"const": "list"}, data=listed(OBJECT), first_id=TEXT, last_id=TEXT, has_more=FLAG
)
