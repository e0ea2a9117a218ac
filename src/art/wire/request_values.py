"""What a field of a request may hold: a pydantic type, and the same in words for whoever sent something else.

From one declaration follow the check, the refusal and the field's place in the OpenAPI document.

    >>> Whole(1, 5).read("n", 4)
    4
    >>> Whole(1, 5).schema
    {'maximum': 5, 'minimum': 1, 'type': 'integer'}
    >>> Whole(1, 5).read("n", 9)
    Traceback (most recent call last):
    art.errors.RequestError: n must be a whole number from 1 to 5, not 9
"""

from __future__ import annotations

import json
import math
from functools import cached_property
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from art.errors import RequestError
from art.wire.quoting import quote_value

Schema = dict[str, Any]

LARGEST_ID = 2**31 - 1
"""The largest id of a token: the largest int32."""
UNSUPPORTED = "unsupported_parameter"
"""The code of a refusal: what was asked for is none of this server's doing."""

WHOLE_VALUE = 2000
"""Characters of a value that a refusal repeats, where nothing less is said."""


def refuse(message: str, param: str, code: str = "invalid_value") -> NoReturn:
    """Raise the 400 that names a field."""
    raise RequestError(message, status=400, code=code, param=param)


class Values:
    """The values that a field accepts: `kind`, a type in pydantic's words, taken strictly."""

    def __init__(
        self, kind: Any, words: str, *, schema: Schema | None = None, most: int | None = None
    ) -> None:
        """most: entries; an object is looked through to its end before its type counts them."""
        self._kind = kind
        self.words = words
        self._schema = schema
        self._most_entries = most

    def read(self, name: str, value: Any, *, quoted: int = WHOLE_VALUE) -> Any:
        """The value in the one spelling. `quoted`: characters of a wrong one that the refusal repeats.

        Raises: RequestError naming the field.
        """
        if self._most_entries is not None and isinstance(value, dict) and len(value) > self._most_entries:
            self._refuse(name, value, quoted)
        try:
            return self._validate(value)
        except ValidationError:
            self._refuse(name, value, quoted)

    def _refuse(self, name: str, value: Any, quoted: int) -> NoReturn:
        wrong = f", not {quote_value(value, quoted)}" if quoted else ""
        refuse(f"{name} must be {self.words}{wrong}", name)

    @cached_property
    def schema(self) -> Schema:
        """JSON schema of the field."""
        return self._schema or self._adapter.json_schema()

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._kind, config=ConfigDict(strict=True))

    @cached_property
    def _validate(self) -> Any:
        return self._adapter.validator.validate_python


class ByHand(Values):
    """A check by the field's own reader, whose messages are better than those of a type."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(Any, "", schema=schema)

    def read(self, name: str, value: Any, *, quoted: int = 0) -> Any:
        """The value as it is."""
        return value


class OfKind(Values):
    """A value of one of these classes. What it holds, however much, is for its reader."""

    def __init__(self, *kinds: type, words: str, schema: Schema) -> None:
        super().__init__(Any, words, schema=schema)
        self._kinds = kinds

    def read(self, name: str, value: Any, *, quoted: int = WHOLE_VALUE) -> Any:
        """The value as it is. Raises: RequestError naming the field."""
        if not isinstance(value, self._kinds):
            self._refuse(name, value, quoted)
        return value


class Idle(Values):
    """A field that does not act: it is accepted where it asks for nothing."""

    def __init__(self, why: str, *accepted: Any, anything: bool = False, remedy: bool = False) -> None:
        super().__init__(Any, "", schema={} if anything else {"enum": [*accepted, None]})
        self.why = why
        self.accepted = None if anything else accepted
        """The values that ask for nothing; any other is refused. None: any value is accepted."""
        self._remedy = remedy

    def read(self, name: str, value: Any, *, quoted: int = 0) -> None:
        """Raises: RequestError for a value that asks for something."""
        if self.accepted is None or value in self.accepted:
            return
        why = f": {self.why}" if self.why else ""
        idle = " or ".join(map(json.dumps, self.accepted))
        remedy = f"; leave it out{idle and f', or send {idle}'}" if self._remedy else ""
        refuse(f"{name} = {quote_value(value)} is not supported{why}{remedy}", name, "unsupported_parameter")


class Number(Values):
    """A finite number within bounds. `above`: the least value itself is none."""

    def __init__(self, least: float, most: float, *, above: bool = False) -> None:
        self.bounds = {"gt" if above else "ge": least, "le": most}
        start = "above" if above else "from"
        kind = Annotated[float, Field(allow_inf_nan=False, **self.bounds)]
        super().__init__(kind, f"a number {start} {least:g} to {most:g}")


class Whole(Values):
    """A whole number within bounds. `unset`: as if nothing had been given; it lies beside the bounds."""

    def __init__(self, least: int, most: int, *, unset: int | None = None) -> None:
        self.bounds = {"ge": least, "le": most}
        self._unset = unset
        kind = Annotated[int, Field(ge=least if unset is None else unset, le=most)]
        super().__init__(kind, f"a whole number from {least} to {most}")

    def read(self, name: str, value: Any, *, quoted: int = WHOLE_VALUE) -> Any:
        """The number; None where it is as if nothing had been given."""
        if self._unset is not None and value == self._unset:
            return None
        return super().read(name, value, quoted=quoted)


_TEXT = Annotated[str, Field(min_length=1)]


class Texts(Values):
    """A text or a list of texts, none empty."""

    def __init__(self, most: int) -> None:
        listed = Annotated[list[_TEXT], Field(max_length=most)]
        kind = Annotated[_TEXT | listed, AfterValidator(lambda v: (v,) if isinstance(v, str) else tuple(v))]
        super().__init__(kind, f"a string or a list of up to {most} strings, none empty")


class TokenIds(Values):
    """A list of token ids."""

    def __init__(self, most: int) -> None:
        one = Annotated[int, Field(ge=0, lt=2**31)]
        kind = Annotated[list[one], Field(max_length=most), AfterValidator(tuple)]
        super().__init__(kind, f"a list of up to {most} token ids")


class Biases(Values):
    """An object of token ids, as text, with a number for each. Ids that a model does not have it refuses."""

    def __init__(self, most: int, highest: float) -> None:
        self._most, self._highest = most, highest
        bias = {"type": "number", "minimum": -highest, "maximum": highest}
        schema = {"type": "object", "additionalProperties": bias, "propertyNames": {"pattern": "^[0-9]+$"}}
        super().__init__(Any, "", schema=schema)

    def read(self, name: str, value: Any, *, quoted: int = 0) -> tuple[tuple[int, float], ...]:
        """Pairs of an id and its bias, in the order of the ids. Raises: RequestError naming the key."""
        if not isinstance(value, dict) or len(value) > self._most:
            refuse(f"{name} must be an object of up to {self._most} ids with their biases", name)
        pairs = []
        for key, bias in value.items():
            fits = isinstance(bias, int | float) and not isinstance(bias, bool) and math.isfinite(bias)
            if not (key.isascii() and key.isdecimal() and len(key) < 10):
                refuse(f"{name} has the key {quote_value(key)}, which is no token id", name)
            if not fits or abs(bias) > self._highest:
                bounds = f"from -{self._highest:g} to {self._highest:g}"
                refuse(f"{name}[{key!r}] must be a number {bounds}, not {quote_value(bias)}", name)
            if bias:
                pairs.append((int(key), float(bias)))
        return tuple(sorted(pairs))


class OneOf(Values):
    """One of a few texts."""

    def __init__(self, *texts: str) -> None:
        kind = Literal[texts]  # type: ignore[valid-type]
        super().__init__(kind, f"one of {', '.join(texts)}", schema={"enum": list(texts)})

    def read(self, name: str, value: Any, *, quoted: int = 200) -> Any:
        """The text. Raises: RequestError naming the field."""
        return super().read(name, value, quoted=min(quoted, 200))


FLAG = Values(bool, "true or false")
TEXT = Values(str, "a text")
NAME = Values(_TEXT, "a name")
AT_LEAST_ONE = Values(Annotated[int, Field(ge=1)], "a whole number of at least 1")
OBJECT = OfKind(dict, words="an object", schema={"type": "object"})
METADATA = Values(Annotated[dict[str, str], Field(max_length=16)], "an object of up to 16 strings", most=16)
