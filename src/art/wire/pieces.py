"""Large records read and written in pieces, so that Python's other threads get their turn between two.

The validator and the serialiser hold the interpreter's lock for as long as one call takes, two seconds for
60 MiB, whichever thread calls. Here one call handles one element of a long list of records. What is read and
what is written are, byte for byte, those of `model_validate_json` and `model_dump_json`.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from art.wire.flaws import first_flaw

Record = TypeVar("Record", bound=BaseModel)

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class PieceError(ValueError):
    """What is wrong, and where: `field` is a path such as `conversations.3.messages`, or empty."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def read_pieces(kind: type[Record], text: str) -> Record:
    """A record from its JSON. Raises PieceError."""
    values: dict[str, Any] = {}
    try:
        at = _expect(text, 0, "{")
        while text[at : at + 1] != "}":
            if values:
                at = _expect(text, at, ",")
            name, at = _DECODER.raw_decode(text, at)
            if not isinstance(name, str):
                raise PieceError("Invalid JSON: a key is no string")
            if name not in kind.model_fields:
                raise PieceError("Extra inputs are not permitted", name)
            values[name], at = _field(kind, name, text, _expect(text, at, ":"))
        if _skip(text, at + 1) != len(text):
            raise PieceError("Invalid JSON: trailing characters")
        return kind.model_validate(values)
    except (json.JSONDecodeError, RecursionError) as error:
        raise PieceError(f"Invalid JSON: {error}") from error
    except ValidationError as error:
        raise _piece_error(error) from error


def write_pieces(record: BaseModel) -> str:
    """What `record.model_dump_json()` writes."""
    told = []
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        annotation: Any = field.annotation
        if _item(annotation) is not None:
            body = f"[{','.join(one.model_dump_json() for one in value)}]"
        else:
            body = TypeAdapter(annotation).dump_json(value).decode()
        told.append(f"{json.dumps(name)}:{body}")
    return f"{{{','.join(told)}}}"


def _field(kind: type[BaseModel], name: str, text: str, at: int) -> tuple[Any, int]:
    """A field's value and where it ends."""
    annotation: Any = kind.model_fields[name].annotation
    item = _item(annotation)
    if item is None or text[at : at + 1] != "[":
        return _value(TypeAdapter(annotation), text, at, name)
    adapter: TypeAdapter[Any] = TypeAdapter(item)
    items: list[Any] = []
    at = _expect(text, at, "[")
    while text[at : at + 1] != "]":
        if items:
            at = _expect(text, at, ",")
        value, at = _value(adapter, text, at, f"{name}.{len(items)}")
        items.append(value)
    return items, _skip(text, at + 1)


def _value(adapter: TypeAdapter[Any], text: str, at: int, field: str) -> tuple[Any, int]:
    _, end = _DECODER.raw_decode(text, at)
    try:
        return adapter.validate_json(text[at:end]), _skip(text, end)
    except ValidationError as error:
        raise _piece_error(error, field) from error


def _item(annotation: Any) -> type[BaseModel] | None:
    """The records of which a field holds a list."""
    if get_origin(annotation) is not list:
        return None
    (item,) = get_args(annotation)
    return item if isinstance(item, type) and issubclass(item, BaseModel) else None


def _piece_error(error: ValidationError, field: str = "") -> PieceError:
    flaw = first_flaw(error)
    return PieceError(flaw.problem, ".".join(part for part in (field, flaw.field) if part))


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None  # it matches nothing as well
    return found.end()


def _expect(text: str, at: int, mark: str) -> int:
    """The place after a mark and the space behind it."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise PieceError(f"Invalid JSON: expected {mark!r} at character {at}")
    return _skip(text, at + 1)
