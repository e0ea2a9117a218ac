"""Which groups are in a sample: a pure function of their content, so that a resumed run takes the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from art.rewards.judging.view import View


def content_key(views: Sequence[View]) -> str:
    """A digest of what a judge is shown of a group."""
    shown = [{"conversations": view.conversations, "tools": view.tools} for view in views]
    text = json.dumps(shown, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def is_chosen(key: str, share: float, *, sample: str, seed: int) -> bool:
    """Whether content is in a sample of this share. sample: its name; different ones choose independently."""
    digest = hashlib.sha256(f"{sample}\n{seed}\n{key}".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64
