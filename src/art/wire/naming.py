"""What a name looks like that is fit for a folder's name and a URL: a project's, a model's, a tenant's."""

from __future__ import annotations

import re

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(NAME_PATTERN)


def is_name(value: str) -> bool:
    """Letters, digits, '.', '_' and '-', beginning with a letter or digit."""
    return _NAME.fullmatch(value) is not None
