"""Images that environments show, as parts of chat messages: addresses, base64, and arrays of pixels.

[H, W], [H, W, 1], [H, W, 3] or [H, W, 4] values from 0 to 255        grey, RGB, RGB with alpha -> PNG
"https://...", "data:image/png;base64,..."                            as they are
"iVBORw0K...", "/9j/..."                                              base64 of PNG, JPEG, GIF or WebP
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

from art.errors import EnvironmentFailedError

Content = str | list[dict[str, Any]]
"""The content of a message: a text, or parts where there is an image."""
MOST_BYTES = 2**24
"""The bytes of the pixels of an image, or of its base64."""
COLORS = {1: 0, 3: 2, 4: 6}
"""Channels -> the color type of PNG."""
KINDS = {"iVBORw0K": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
"""The beginning of an image in base64 -> its kind."""


def image_part(address: str, detail: str = "auto") -> dict[str, Any]:
    """Returns the part of a chat message that shows the image at an address."""
    return {"type": "image_url", "image_url": {"url": address, "detail": detail}}


def is_pixels(value: Any) -> bool:
    """Returns whether a value is an array of numpy or torch with the pixels of an image, each a byte."""
    return _is_array(value) and len(value.shape) in (2, 3) and "uint8" in str(value.dtype)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and hasattr(value, "tolist")


def image_address(full: str, value: Any) -> str:
    """Returns the address of an image, a data URL where it has none.

    full: the name of the environment. Raises EnvironmentFailedError for what is no image.
    """
    if isinstance(value, str):
        kind = next((kind for mark, kind in KINDS.items() if value.startswith(mark)), None)
        if len(value) > MOST_BYTES or not (kind or value.startswith(("http://", "https://", "data:image/"))):
            raise _no_image(full, f"a text of {len(value)} characters, {value[:40]!r}")
        return value if kind is None else f"data:image/{kind};base64,{value}"
    if _is_array(value) and (not is_pixels(value) or math.prod(value.shape) > MOST_BYTES):
        raise _no_image(full, _shape(value))
    pixels_HWC = value.tolist() if _is_array(value) else value
    try:
        rows = [bytes(row if isinstance(row[0], int) else chain.from_iterable(row)) for row in pixels_HWC]
        channels = 1 if isinstance(pixels_HWC[0][0], int) else len(pixels_HWC[0][0])
        width = len(pixels_HWC[0])
    except (TypeError, ValueError, IndexError) as error:
        raise _no_image(full, f"{_shape(value)} ({error})") from error
    if channels not in COLORS or {len(row) for row in rows} != {width * channels}:
        raise _no_image(full, _shape(value))
    return f"data:image/png;base64,{base64.b64encode(_png(rows, width, channels)).decode()}"


def _png(rows: Sequence[bytes], width: int, channels: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, len(rows), 8, COLORS[channels], 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _shape(value: Any) -> str:
    if _is_array(value):
        return f"an array {tuple(value.shape)} of {value.dtype}"
    return f"{type(value).__name__} {value!r:.60}"


def _no_image(full: str, given: str) -> EnvironmentFailedError:
    return EnvironmentFailedError(
        f"environment {full!r}: the observation is no image: {given}. Give whole numbers from 0 to 255 of "
        "the shape (height, width), or (height, width, channels) with 1, 3 or 4 channels, base64 of a PNG, "
        f"JPEG, GIF or WebP, or an address, of {MOST_BYTES} bytes at most"
    )
