"""Images in prompts: a picture is made as large as the model's tower wants it, once, and stands in the prompt
as the ids of `art.wire.samples` where the chat template writes the model's placeholder.

Engine and trainer both get the picture that was made here, and have nothing left to resize: two libraries
that resize give pixels that differ, and so logprobs that do.

    template    <|im_start|>user\\n<image>What is this?<|im_end|>
    expanded    ... <fake_token_around_image><global-img> IDS <fake_token_around_image>What is this? ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from art.engine.protocol import ImagePrompt
from art.errors import ConfigurationError, RequestError, extra_needed
from art.process.imports import import_lock
from art.wire.samples import LEAST_TOKENS, SEEING, image_ids, image_runs

IMAGE = "image"
"""The `type` of a part of a message that is a picture; its name stands beside it, by the same word."""
_MOST_PIXELS = 25_000_000
_MOST_SIDE = 16_384
"""The limits in pixels of a picture that is sent and of its side. A file of some kilobytes may claim any
size, and is decoded whole. A camera's 24 million pixels are accepted."""
_KEPT = 64
"""Pictures that are not made again when a conversation sends them once more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFormat:
    """The pictures of one model."""

    placeholder: int
    """The id that the template writes for a picture; an engine puts the picture's tokens in its place."""
    side: int
    """Pixels of the square that the tower sees; other pictures are made to fit it."""
    tokens: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    """Ids around the picture's own."""

    def expanded(self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids with the pictures of these messages in the places of placeholders.

        Raises ValueError where these are not as many.
        """
        names = list(image_names(messages))
        if (places := sum(one == self.placeholder for one in ids)) != len(names):
            raise ValueError(f"the chat template writes {places} placeholders for {len(names)} images")
        left = iter(names)
        written: list[int] = []
        for one in ids:
            if one == self.placeholder:
                written += (*self.before, *image_ids(next(left), self.tokens), *self.after)
            else:
                written.append(one)
        return written

    def shown(self, ids: Sequence[int]) -> list[int]:
        """The ids in the model's own vocabulary: a placeholder for each of a picture's."""
        return [self.placeholder if one < 0 else one for one in ids]

    def folded(self, ids: Sequence[int], files: Sequence[bytes]) -> ImagePrompt:
        """The prompt for an engine that expands placeholders itself. `files`: the pictures in order."""
        folded: list[int] = []
        at = 0
        for run in image_runs(ids):
            folded += (*ids[at : run.start - len(self.before)], self.placeholder)
            at = run.stop + len(self.after)
        return ImagePrompt(ids=[*folded, *ids[at:]], placeholder=self.placeholder, files=tuple(files))

    def fitted(self, file: bytes) -> bytes:
        """A PNG of the size that the tower wants. Raises RequestError for what is no picture."""
        return _fitted(file, self.side)


def image_names(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The names of all pictures of a conversation, in their order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part.get("type") == IMAGE:
                yield part[IMAGE]


def read_image_format(source: str, tokenizer: Any, *, local: bool) -> ImageFormat | None:
    """The format of a model's pictures; None where it sees none, or is of a family that is not known here.

    local: the hub is not asked.
    Raises ConfigurationError where its files do not say what is needed.
    """
    config = _read(source, "config.json", local)
    if config.get("model_type") not in SEEING:
        return None
    processor = _read(source, "processor_config.json", local)
    pictures = processor.get("image_processor") or _read(source, "preprocessor_config.json", local)
    vision = config.get("vision_config") or {}
    try:
        side = int(pictures["max_image_size"]["longest_edge"])
        tokens = (side // int(vision["patch_size"]) // int(config["scale_factor"])) ** 2
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{source!r} is a vision-language model whose configuration lacks {error}: "
            "its images cannot be used"
        ) from error
    if tokens < LEAST_TOKENS:
        raise ConfigurationError(f"an image of {source!r} has {tokens} tokens; {LEAST_TOKENS} are the least")
    around = tuple(tokenizer.encode("<fake_token_around_image>"))
    return ImageFormat(
        placeholder=int(config["image_token_id"]),
        side=side,
        tokens=tokens,
        before=(*around, *tokenizer.encode("<global-img>")),
        after=around,
    )


def _read(source: str, name: str, local: bool) -> dict[str, Any]:
    """A model's JSON file, from its folder or the hub; empty where it has none."""
    with import_lock:
        from transformers.utils import cached_file

    try:
        found = cached_file(source, name, local_files_only=local, _raise_exceptions_for_missing_entries=False)
        content = json.loads(Path(found).read_text(encoding="utf-8")) if found else {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{name} of {source!r} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


@lru_cache(maxsize=_KEPT)
def _fitted(file: bytes, side: int) -> bytes:
    with extra_needed("images", "an image in a message"):
        with import_lock:
            from PIL import Image, ImageOps

    try:
        if file[8:12] == b"WEBP":
            _check_size(*_webp_size(file))
        opened = Image.open(BytesIO(file), formats=("PNG", "JPEG", "WEBP", "GIF"))
        _check_size(*opened.size)
        picture = ImageOps.exif_transpose(opened).convert("RGB")
        if picture.size != (side, side):
            picture = picture.resize((side, side), Image.Resampling.LANCZOS)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RequestError(
            f"an image cannot be read: {error}", status=400, code="invalid_image", param="messages"
        ) from error
    written = BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


def _check_size(width: int, height: int) -> None:
    if width * height > _MOST_PIXELS or max(width, height) > _MOST_SIDE:
        raise ValueError(
            f"it has {width} x {height} pixels; {_MOST_PIXELS:,} are the most, and {_MOST_SIDE:,} of a "
            "side: send it smaller"
        )


def _webp_size(file: bytes) -> tuple[int, int]:
    """Returns width and height as its first chunk has them: Pillow makes room for all pixels to open it."""
    kind, bits = file[12:16], int.from_bytes(file[20:30], "little")
    if kind == b"VP8X":
        return 1 + (bits >> 32 & 0xFFFFFF), 1 + (bits >> 56)
    if kind == b"VP8L":
        return 1 + (bits >> 8 & 0x3FFF), 1 + (bits >> 22 & 0x3FFF)
    return bits >> 48 & 0x3FFF, bits >> 64 & 0x3FFF
