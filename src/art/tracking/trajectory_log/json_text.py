"""Values as JSON text and back. Python's own dialect: `NaN`, big integers and lone surrogates survive."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from enum import Enum
from typing import Any

from pydantic import BaseModel


def to_text(value: Any) -> str:
    """JSON of a value. ASCII only, so that any string can be stored as UTF-8.

    Models of pydantic become their set fields, dataclasses dicts, sets lists, dates ISO text, arrays their
    items; what JSON has no word for becomes its `str`.
    """
    return json.dumps(value, default=_plain)


def from_text(text: str) -> Any:
    """The value of a JSON text."""
    return json.loads(text)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _fields(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date):  # a datetime is one
        return value.isoformat()
    if callable(listed := getattr(value, "tolist", None)):  # numbers and arrays of numpy and torch
        return listed()
    return str(value)


def _fields(model: BaseModel) -> dict[str, Any]:
    """The fields that were set, as the sender of a reply did, and those that were changed since."""
    if type(model).__module__.startswith("openai."):
        return model.model_dump(exclude_unset=True, by_alias=True, warnings=False)
    fields = dict(model.model_extra or {})
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name in model.model_fields_set or value != field.get_default(call_default_factory=True):
            fields[name] = value
    return fields


def storable(text: str) -> str:
    """A string without lone surrogates, which UTF-8 cannot hold; each becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")
