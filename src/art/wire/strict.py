"""The base of every record that crosses a process."""

from __future__ import annotations

import json
import math
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

M = TypeVar("M", bound=BaseModel)

MaybeNaN = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""JSON has no NaN: it travels as null."""


class Strict(BaseModel):
    """A record whose unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


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
    told = json.loads(body)
    for *path, name in unknown:
        at = told
        for key in path:
            at = at[key]
        del at[name]
    return kind.model_validate_json(json.dumps(told))
