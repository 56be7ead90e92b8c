"""Pictures, by Pillow. Colour profiles are not applied, as the models' own processors don't."""

import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Final

import numpy as np

# Pillow would import them when they are needed, and then no file can be opened any more.
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from pillow_heif import register_heif_opener

from lmx.protocol.models.decode_limits import DecodeLimits
from lmx.protocol.states import MediaForm
from lmx.worker.media.decoding.result import (
    Decoded,
    RefusedError,
    TooLargeError,
    check_shape,
    fitted_size,
)
from lmx.worker.media.wire import DecodeOrder

FORMATS: Final[Mapping[MediaForm, tuple[str, ...]]] = {
    MediaForm.PNG: (PngImagePlugin.PngImageFile.format,),
    MediaForm.JPEG: (JpegImagePlugin.JpegImageFile.format, MpoImagePlugin.MpoImageFile.format),
    MediaForm.WEBP: (WebPImagePlugin.WebPImageFile.format,),
    MediaForm.GIF: (GifImagePlugin.GifImageFile.format,),
    MediaForm.BMP: (BmpImagePlugin.BmpImageFile.format,),
    MediaForm.TIFF: (TiffImagePlugin.TiffImageFile.format,),
    MediaForm.AVIF: (AvifImagePlugin.AvifImageFile.format,),
    MediaForm.HEIC: ("HEIF",),
}
"""Pillow's formats that are tried for a form: no others, whatever the file looks like."""

_ORIENTATION: Final = 0x0112
_TRANSPOSES: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes a picture of each EXIF orientation upright."""


def prepare(limits: DecodeLimits) -> None:
    """Set up the libraries, once for the process."""
    register_heif_opener(thumbnails=False, decode_threads=1)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.preinit()
    # A picture of more than that is refused by its header.
    Image.MAX_IMAGE_PIXELS = limits.picture_pixels
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def decode_picture(data: bytes | bytearray, order: DecodeOrder, limits: DecodeLimits) -> Decoded:
    """Return the first frame of a picture, upright, in front of white."""
    try:
        with Image.open(BytesIO(data), formats=FORMATS[order.form]) as image:
            check_shape(*image.size, limits.picture_pixels, limits.side_ratio)
            image.load()
            upright = _colours(_upright(image))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise TooLargeError(
            f"has more than {limits.picture_pixels / 1e6:g} million pixels"
        ) from error
    size = fitted_size(
        *upright.size, min(order.min_pixels or 0, limits.picture_pixels), order.max_pixels
    )
    if size != upright.size:
        upright = upright.resize(size, Image.Resampling.BICUBIC)
    return Decoded(frames=np.asarray(upright)[None])


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:
        # Broken remarks about a picture are no reason to refuse it: as programs that show pictures
        # do, take it as it is.
        orientation = None
    transpose = _TRANSPOSES.get(orientation) if isinstance(orientation, int) else None
    return image if transpose is None else image.transpose(transpose)


def _colours(image: Image.Image) -> Image.Image:
    """Return the picture in red, green and blue."""
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return Image.fromarray(grey).convert("RGB")
    if image.mode in ("I", "F"):
        raise RefusedError("has numbers of 32 bits for pixels, which are no colours")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        return white
    return image.convert("RGB")
