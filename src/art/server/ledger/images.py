"""The pictures that negative ids of samples name, each kept once, beside the samples in the ledger's file.

A picture is written in the transaction of the samples that were drawn with it, and goes when no sample is
as old as its last use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from art.errors import ServerError
from art.wire.images import image_name

IMAGE_TABLE = """
CREATE TABLE images (
    name TEXT PRIMARY KEY,
    used_at REAL NOT NULL,
    file BLOB NOT NULL
) WITHOUT ROWID;
"""
"""PNG files as the model saw them, and about when they were used last, in Unix seconds."""
Statement = tuple[str, tuple[Any, ...]]
"""SQL and its values."""

_USED_AGAIN_S = 3600.0
"""The time of use is that old at most: to write it with each turn would write the picture again, too."""
_KEEP = (
    "INSERT INTO images (name, used_at, file) VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE "
    f"SET used_at = ?2 WHERE used_at < ?2 - {_USED_AGAIN_S}"
)
REMOVE_UNUSED = (
    "DELETE FROM images WHERE used_at < "
    f"(SELECT created_at FROM samples ORDER BY rowid LIMIT 1) - {_USED_AGAIN_S}"
)
"""Of the samples that stay, the oldest is younger than their last use."""
_MOST_AT_ONCE = 200


class LostImageError(ServerError):
    """A picture that samples were drawn with is not in the ledger, or not what was written."""


def keep_images(files: Sequence[bytes], now: float) -> list[Statement]:
    """What writes the pictures of a prompt with its samples. `now`: Unix seconds."""
    return [(_KEEP, (image_name(file), now, file)) for file in dict.fromkeys(files)]


async def read_images(
    rows: Callable[[str, tuple[Any, ...]], Awaitable[list[tuple[Any, ...]]]], names: Collection[str]
) -> dict[str, bytes]:
    """Returns pictures by their names. `rows`: asks the ledger. Raises: LostImageError."""
    found: dict[str, bytes] = {}
    wanted = sorted(names)
    for start in range(0, len(wanted), _MOST_AT_ONCE):
        part = tuple(wanted[start : start + _MOST_AT_ONCE])
        marks = ",".join("?" * len(part))
        found.update(await rows(f"SELECT name, file FROM images WHERE name IN ({marks})", part))
    lost = [name for name in wanted if name not in found or image_name(found[name]) != name]
    if lost:
        raise LostImageError(
            f"the ledger has {len(lost)} images no more that samples were drawn with, {lost[0]} first: train "
            "on other trajectories, or restore a backup of the file",
            status=500,
            code="image_lost",
        )
    return found
