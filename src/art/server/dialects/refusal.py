"""Refusing a field of a request."""

from __future__ import annotations

from typing import NoReturn

from art.errors import RequestError


def refuse(message: str, param: str, code: str = "invalid_value") -> NoReturn:
    """Raise the 400 that names a field."""
    raise RequestError(message, status=400, code=code, param=param)
