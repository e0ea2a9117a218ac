"""Pictures in prompts: the ids that stand for them, in first turns and in later ones, and their one size."""

from __future__ import annotations

import zlib
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from PIL import Image

from art.errors import RequestError
from art.rendering.images import ImageFormat
from art.rendering.library import LibraryRenderer
from art.rendering.registry import create_chat_renderer
from art.wire.samples import image_ids, image_name, image_runs
from seeing import SIDE, TOKENS, picture, save_seeing_base

NAMES = [image_name(picture(seed)) for seed in range(2)]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> LibraryRenderer:
    return create_chat_renderer(save_seeing_base(tmp_path_factory.mktemp("seeing")))


def user(*parts: str) -> dict[str, object]:
    """A message of texts, and of images by their names."""
    said = [
        {"type": "image", "image": one} if one in NAMES else {"type": "text", "text": one} for one in parts
    ]
    return {"role": "user", "content": said}


def images_of(renderer: LibraryRenderer) -> ImageFormat:
    assert renderer.images is not None
    return renderer.images


@pytest.mark.slow
def test_a_picture_stands_where_the_template_has_its_placeholder(seeing: LibraryRenderer) -> None:
    images = images_of(seeing)
    ids = seeing.render([user("look at", NAMES[0], "and", NAMES[1])], None)
    assert [(run.name, run.stop - run.start) for run in image_runs(ids)] == [(one, TOKENS) for one in NAMES]
    plain = seeing.render([{"role": "user", "content": "look atand"}], None)
    assert len(ids) == len(plain) + 2 * (TOKENS + len(images.before) + len(images.after))
    assert seeing.decode(ids).count("<image>") == 2 * TOKENS
    folded = images.folded(ids, [b"one", b"two"])
    assert list(folded.ids).count(images.placeholder) == 2 and len(folded.ids) == len(plain) + 2
    assert folded.files == (b"one", b"two")


@pytest.mark.slow
def test_a_later_turn_keeps_the_earlier_ids_and_adds_its_picture(seeing: LibraryRenderer) -> None:
    prompt = seeing.render([user(NAMES[0], "what is this")], None)
    completion = [5, 6, seeing.stop_token_ids[0]]
    ids = seeing.bridge(prompt, completion, [user("and this", NAMES[1])], None)
    assert ids is not None and ids[: len(prompt) + 3] == [*prompt, *completion]
    assert [run.name for run in image_runs(ids)] == NAMES
    assert seeing.parse(completion, prompt, None).content


@pytest.mark.slow
def test_text_that_spells_the_placeholder_is_no_picture(seeing: LibraryRenderer) -> None:
    ids = seeing.render([user("<image>", NAMES[0])], None)
    assert [run.name for run in image_runs(ids)] == NAMES[:1]
    assert images_of(seeing).placeholder not in ids
    parsing = seeing.with_arguments({}, special_tokens_in_text="parse")
    with pytest.raises(RequestError, match="2 placeholders for 1 images"):
        parsing.render([user("<image>", NAMES[0])], None)


@pytest.mark.parametrize("size", [(SIDE, SIDE), (90, 40), (7, 300)])
def test_every_picture_gets_the_towers_size(size: tuple[int, int]) -> None:
    images = ImageFormat(placeholder=9, side=SIDE, tokens=TOKENS, before=(7,), after=(8,))
    file = picture(3, size)
    fitted = images.fitted(file)
    opened = Image.open(BytesIO(fitted))
    assert opened.size == (SIDE, SIDE) and opened.format == "PNG"
    if size == (SIDE, SIDE):
        assert opened.tobytes() == Image.open(BytesIO(file)).tobytes(), "not one pixel is changed"
    assert images.fitted(fitted) == fitted, "and so its name stays"


def claiming(width: int, height: int) -> bytes:
    """A small file that claims to have so many pixels."""
    file = bytearray(picture(1))
    file[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    file[29:33] = zlib.crc32(file[12:29]).to_bytes(4, "big")
    return bytes(file)


@pytest.mark.parametrize("size", [(60_000, 60_000), (67_108_864, 1), (1, 20_000), (8_191, 8_191)])
def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    images = ImageFormat(placeholder=9, side=SIDE, tokens=TOKENS, before=(), after=())
    with pytest.raises(RequestError, match="pixels"):
        images.fitted(claiming(*size))


def webp(size: tuple[int, int], **settings: Any) -> bytes:
    written = BytesIO()
    Image.new("RGB", size, (9, 99, 9)).save(written, "WEBP", **settings)
    return written.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"lossless": True}, {"exif": Image.Exif()}])
def test_a_webp_is_refused_by_the_size_that_it_claims(settings: dict[str, Any]) -> None:
    """Pillow makes room for all pixels of one to open it."""
    images = ImageFormat(placeholder=9, side=SIDE, tokens=TOKENS, before=(), after=())
    assert images.fitted(webp((300, 17), **settings))
    with pytest.raises(RequestError, match="5001 x 5002 pixels"):
        images.fitted(webp((5001, 5002), **settings))
    with (
        mock.patch("PIL.Image.open", side_effect=AssertionError),
        pytest.raises(RequestError, match="pixels"),
    ):
        images.fitted(webp((5002, 5001), **settings))


@pytest.mark.parametrize("file", [b"", b"GIF89a", picture(1)[:200], Path(__file__).read_bytes()])
def test_what_is_no_picture_is_refused(file: bytes) -> None:
    images = ImageFormat(placeholder=9, side=SIDE, tokens=TOKENS, before=(), after=())
    with pytest.raises(RequestError, match="an image cannot be read") as refused:
        images.fitted(file)
    assert refused.value.code == "invalid_image"


def test_ids_spell_the_name_that_the_file_has() -> None:
    assert image_runs(image_ids(NAMES[0], TOKENS))[0].name == NAMES[0]
