"""Pictures of every form, as a model sees them."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from lmx.protocol.errors import RequestError
from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.worker.media.decoder import MediaDecoder
from tests.support.rigs.decoding import picture

pillow_heif.register_heif_opener()

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


@pytest.fixture(scope="module")
def decoder() -> Iterator[MediaDecoder]:
    made = MediaDecoder(DecodeLimits(picture_pixels=1_000_000))
    yield made
    made.close()


def _file(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, {"heic": "HEIF"}.get(form, form.upper()), **options)
    return buffer.getvalue()


def _corners(width: int = 60, height: int = 40) -> Image.Image:
    """Return a picture of which each quarter has a colour of its own."""
    image = Image.new("RGB", (width, height), WHITE)
    half = (width // 2, height // 2)
    image.paste(RED, (0, 0, *half))
    image.paste(GREEN, (half[0], 0, width, half[1]))
    image.paste(BLUE, (0, half[1], half[0], height))
    return image


def _noise(width: int = 60, height: int = 40) -> Image.Image:
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("form", ["png", "webp", "bmp", "tiff"])
def test_the_same_pixels_are_the_same_in_every_form(decoder: MediaDecoder, form: str) -> None:
    image = _noise()
    options = {"webp": {"lossless": True, "exact": True}}.get(form, {})
    found = picture(decoder, form, _file(image, form, **options))
    assert np.array_equal(found.pixels, np.asarray(image))
    assert found.digest == picture(decoder, "png", _file(image, "png", compress_level=1)).digest
    other = image.copy()
    other.putpixel((59, 39), (1, 2, 3))
    assert found.digest != picture(decoder, form, _file(other, form, **options)).digest


@pytest.mark.parametrize("form", ["jpeg", "webp", "heic", "avif", "gif"])
def test_forms_that_lose_a_little(decoder: MediaDecoder, form: str) -> None:
    found = picture(decoder, form, _file(_corners(), form))
    expected = np.asarray(_corners())
    for row, column in ((8, 12), (8, 48), (32, 12), (32, 48)):
        near = np.abs(found.pixels[row, column].astype(int) - expected[row, column]).max()
        assert near < 30, (form, row, column)


@pytest.mark.parametrize("form", ["jpeg", "png", "webp", "tiff", "avif", "heic"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(decoder: MediaDecoder, form: str, orientation: int) -> None:
    """The file has what a camera held so has seen; the model sees the scene."""
    scene = _corners()
    seen = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    }[orientation](scene)
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = picture(decoder, form, _file(seen, form, exif=exif.tobytes()))
    assert found.pixels.shape == (40, 60, 3)
    for row, column, colour in ((8, 12, RED), (8, 48, GREEN), (32, 12, BLUE), (32, 48, WHITE)):
        assert np.abs(found.pixels[row, column].astype(int) - colour).max() < 30, (row, column)


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"x" * 1000])
def test_remarks_that_are_broken_do_no_harm(decoder: MediaDecoder, exif: bytes) -> None:
    found = picture(decoder, "jpeg", _file(_corners(), "jpeg", exif=exif))
    assert found.pixels.shape == (40, 60, 3)


def test_what_is_transparent_is_white(decoder: MediaDecoder) -> None:
    image = Image.new("RGBA", (3, 1))
    image.putdata([(255, 0, 0, 0), (255, 0, 0, 128), (0, 0, 255, 255)])
    for form, options in (("png", {}), ("webp", {"lossless": True, "exact": True})):
        pixels = picture(decoder, form, _file(image, form, **options)).pixels[0]
        assert pixels.tolist() == [[255, 255, 255], [255, 127, 127], [0, 0, 255]]
    grey = Image.new("LA", (2, 1))
    grey.putdata([(0, 0), (0, 255)])
    found = picture(decoder, "png", _file(grey, "png"))
    assert found.pixels[0].tolist() == [[255] * 3, [0] * 3]


def test_palettes(decoder: MediaDecoder) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    for form in ("png", "gif", "bmp"):
        pixels = picture(decoder, form, _file(image, form)).pixels[0]
        assert pixels.tolist() == [list(RED), list(GREEN), list(BLUE)], form
        if form != "bmp":
            see_through = picture(decoder, form, _file(image, form, transparency=1)).pixels[0]
            assert see_through.tolist() == [list(RED), list(WHITE), list(BLUE)], form


def test_other_pixels(decoder: MediaDecoder) -> None:
    deep = Image.fromarray(np.array([[0, 0x80FF, 0xFFFF]], np.uint16))
    for form in ("png", "tiff"):
        found = picture(decoder, form, _file(deep, form))
        assert found.pixels[0, :, 0].tolist() == [0, 128, 255]
    bits = Image.new("1", (2, 1))
    bits.putpixel((1, 0), 1)
    assert picture(decoder, "png", _file(bits, "png")).pixels[0, :, 2].tolist() == [0, 255]
    ink = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for form in ("jpeg", "tiff"):
        found = picture(decoder, form, _file(ink, form))
        assert np.abs(found.pixels[4, 4].astype(int) - RED).max() < 10
    numbers = _file(Image.new("F", (8, 8), 1.0), "tiff")
    with pytest.raises(RequestError, match="no colours"):
        picture(decoder, "tiff", numbers)


@pytest.mark.parametrize("form", ["gif", "webp", "png", "tiff"])
def test_the_first_frame_of_an_animation(decoder: MediaDecoder, form: str) -> None:
    rest = [Image.new("RGB", (16, 16), colour) for colour in (GREEN, BLUE)]
    options = {"webp": {"lossless": True}}.get(form, {})
    file = _file(
        Image.new("RGB", (16, 16), RED), form, save_all=True, append_images=rest, **options
    )
    found = picture(decoder, form, file)
    assert found.pixels.shape == (16, 16, 3) and found.pixels[5, 5].tolist() == list(RED)


def test_pixels_are_kept_within_what_is_asked(decoder: MediaDecoder) -> None:
    file = _file(_corners(), "png")
    assert picture(decoder, "png", file, max_pixels=600).pixels.shape == (20, 30, 3)
    assert picture(decoder, "png", file, min_pixels=9600).pixels.shape == (80, 120, 3)
    assert picture(decoder, "png", file, min_pixels=100, max_pixels=9600).pixels.shape[0] == 40
    small = picture(decoder, "png", file, max_pixels=600).pixels
    assert small[5, 5].tolist() == list(RED) and small[15, 5].tolist() == list(BLUE)
    # More than a picture may have is not made either.
    huge = picture(decoder, "png", file, min_pixels=10**12).pixels
    assert 900_000 < huge.shape[0] * huge.shape[1] <= 1_010_000
