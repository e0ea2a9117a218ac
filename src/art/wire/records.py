"""The base of every record that crosses a process, and how records are read, written and found wrong.

`Strict` refuses unknown fields by name. `flaws` says what pydantic found in the words of an error
message. `read_pieces` and `write_pieces` handle large records element by element, so that Python's other
threads get their turn: the validator and the serialiser hold the interpreter's lock for as long as one
call takes, two seconds for 60 MiB, whichever thread calls. What they read and write is, byte for byte,
that of `model_validate_json` and `model_dump_json`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from art.wire.quoting import quote_value

M = TypeVar("M", bound=BaseModel)

MaybeNaN = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""JSON has no NaN: it travels as null."""


class Strict(BaseModel):
    """A record whose unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


class GrownRecord(Strict):
    """A record with fields that peers of earlier releases refuse: left out where they have their defaults."""

    LATER: ClassVar[frozenset[str]]

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = handler(self)
        for name in self.LATER & said.keys():
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del said[name]
        return said


Bits = Literal[4, 8, 16]
"""The bits of a weight of a base model's linear layers; 16: the weight is not quantized."""
_QUANTIZED: dict[str, Bits] = {"#4bit": 4, "#8bit": 8}


HUB = "hf://"
"""Begins the address of a file or a repository of the Hugging Face hub."""


def quantized_name(base_model: str, bits: Bits) -> str:
    """The name of a base model in 4 or 8 bits. Samples and checkpoints of it are those of no other base.

    >>> quantized_name("Qwen/Qwen3-8B", 4)
    'Qwen/Qwen3-8B#4bit'
    """
    return next((base_model + mark for mark, its in _QUANTIZED.items() if its == bits), base_model)


def split_bits(base_model: str) -> tuple[str, Bits]:
    """Returns the name of a base model without its bits, and these.

    >>> split_bits("Qwen/Qwen3-8B#4bit")
    ('Qwen/Qwen3-8B', 4)
    """
    for mark, bits in _QUANTIZED.items():
        if base_model.endswith(mark):
            return base_model.removesuffix(mark), bits
    return base_model, 16


def read_reply(kind: type[M], body: str | bytes) -> M:
    """A server's answer (JSON), without the fields that only a newer server knows.

    Raises ValidationError for all else that is not as it should be.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        unknown = [one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"]
        if len(unknown) < error.error_count():
            raise
    document = json.loads(body)
    for *path, name in unknown:
        at = document
        for key in path:
            at = at[key]
        del at[name]
    return kind.model_validate_json(json.dumps(document))


NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(NAME_PATTERN)


def is_name(value: str) -> bool:
    """Letters, digits, '.', '_' and '-', beginning with a letter or digit."""
    return _NAME.fullmatch(value) is not None


_WITHOUT_VALUE = ("value_error", "missing", "extra_forbidden")
"""Kinds whose input is not what is wrong: the whole record, or the value of a field that has no place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flaw:
    """One thing that is wrong. As a text, it tells the value where that is what is wrong."""

    field: str
    """A path such as `conversations.3.messages`; empty for the record itself."""
    problem: str
    kind: str
    """Pydantic's name for it, such as `extra_forbidden`."""
    value: Any

    def __str__(self) -> str:
        suffix = "" if self.kind in _WITHOUT_VALUE else f", not {quote_value(self.value)}"
        return f"{self.without_value}{suffix}"

    @property
    def without_value(self) -> str:
        """Returns the flaw without its value, for records that hold a key."""
        return f"{self.field}: {self.problem}" if self.field else self.problem


def flaws(error: ValidationError) -> list[Flaw]:
    """All that pydantic found, in its order."""
    return [
        Flaw(
            field=".".join(str(part)[:200] for part in one["loc"]),  # a name may be a stranger's
            problem=one["msg"].removeprefix("Value error, "),
            kind=one["type"],
            value=one["input"],
        )
        for one in error.errors(include_url=False)
    ]


def first_flaw(error: ValidationError) -> Flaw:
    """The first that pydantic found."""
    return flaws(error)[0]


def flaws_without_values(error: ValidationError) -> str:
    """All of them in one line, and no value: one may be a key."""
    return "; ".join(flaw.without_value for flaw in flaws(error))


Record = TypeVar("Record", bound=BaseModel)

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class PieceError(ValueError):
    """An error and its place: `field` is a path such as `conversations.3.messages`, or empty."""

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
    """Returns the text of `record.model_dump_json()`, piece by piece."""
    pieces = []
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        annotation: Any = field.annotation
        if _item(annotation) is not None:
            body = f"[{','.join(one.model_dump_json() for one in value)}]"
        else:
            body = TypeAdapter(annotation).dump_json(value).decode()
        pieces.append(f"{json.dumps(name)}:{body}")
    return f"{{{','.join(pieces)}}}"


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
