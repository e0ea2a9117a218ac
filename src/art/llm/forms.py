"""How an endpoint wants to be asked. What it refuses is remembered, so that it is refused once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from art.llm.request import Request

LIMITS = ("max_tokens", "max_completion_tokens")
OBJECTS = "json_object"
SCHEMA = "json_schema"
PLAIN = "plain"
WEAKER = {SCHEMA: OBJECTS, OBJECTS: PLAIN}
ABOUT_FORM = ("response_format", "json_schema", "json_object", "guided_json", "structured output")


class Form:
    """What this endpoint is known to accept. It starts with the most, and gives way where it is refused."""

    def __init__(self, *, token_limit: str = "max_tokens") -> None:
        """token_limit: what the endpoint calls the limit of a completion."""
        self.answers = SCHEMA
        self.token_limit = token_limit
        self.takes_temperature = True

    def body(self, request: Request, sampling: Mapping[str, Any]) -> dict[str, Any]:
        """Keywords of `chat.completions.create` but the model. sampling: what the user chose; it wins."""
        body: dict[str, Any] = {"messages": [dict(message) for message in request.messages]}
        if request.max_tokens is not None and not any(limit in sampling for limit in LIMITS):
            body[self.token_limit] = request.max_tokens
        if request.temperature is not None and self.takes_temperature and "temperature" not in sampling:
            body["temperature"] = request.temperature
        if request.schema is not None:
            self._ask_for(request, body)
        return body | dict(sampling)

    def _ask_for(self, request: Request, body: dict[str, Any]) -> None:
        schema = dict(request.schema or {})
        if self.answers == SCHEMA:
            form = {"name": request.schema_name, "schema": schema, "strict": is_strict(schema)}
            body["response_format"] = {"type": SCHEMA, SCHEMA: form}
            return
        body["messages"] = with_schema(body["messages"], schema)
        if self.answers == OBJECTS:
            body["response_format"] = {"type": OBJECTS}

    def give_way(self, said: str, body: Mapping[str, Any], request: Request) -> bool:
        """Whether a request that was refused with these words may be made in another way."""
        low = said.lower()
        asked = body.get("response_format", {}).get("type")
        if asked is not None and any(word in low for word in ABOUT_FORM):
            # Several questions may be refused at once: each weakens only what it asked for itself.
            self.answers = WEAKER[asked] if self.answers == asked else self.answers
            return True
        limit = next((name for name in LIMITS if name in body), None)
        if limit is not None and limit in low and body[limit] == request.max_tokens:
            other = LIMITS[1 - LIMITS.index(limit)]
            if other in low or "unsupported" in low:
                self.token_limit = other
                return True
        if "temperature" in low and request.temperature is not None and "temperature" in body:
            changed, self.takes_temperature = self.takes_temperature, False
            return changed
        return False


def is_strict(schema: Any) -> bool:
    """Whether OpenAI's strict mode takes the schema: objects are closed, and all their fields required."""
    if isinstance(schema, list):
        return all(is_strict(part) for part in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        fields = schema.get("properties", {})
        closed = schema.get("additionalProperties") is False and set(schema.get("required", ())) == set(
            fields
        )
        return (
            closed and all(is_strict(field) for field in fields.values()) and is_strict(schema.get("$defs"))
        )
    return all(is_strict(part) for name, part in schema.items() if name not in {"enum", "const", "default"})


def with_schema(messages: list[dict[str, Any]], schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages with the schema as a sentence of the system message: where the user's data is not."""
    text = f"Answer with one JSON value, and nothing else, that fits this JSON schema:\n{json.dumps(schema)}"
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
