"""What a name looks like that is fit for a folder's name and a URL: a project's, a model's, a tenant's."""

from __future__ import annotations

import re

WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(WORD)


def is_name(value: str) -> bool:
    """Letters, digits, '.', '_' and '-', beginning with a letter or digit."""
    return _NAME.fullmatch(value) is not None
