"""Images: decoded by Pillow and scaled; a frame is a column of pixels, or a square of them."""

import io
import struct
import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from translume.config.sources import ImageSettings, PatchSettings, PixelSettings
from translume.errors import needed_by
from translume.sources.reader import FrameReader, UnreadableError

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Formats that are read, of those that Pillow knows."""
_ORIENTATION: Final = 0x0112
"""The tag in EXIF data that says how a camera was held."""
_TURNS: Final[dict[int, Any]] = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""The `Transpose` of Pillow that makes an image upright."""
_DEEP = ("I;16", "I;16B", "I;16L", "I")


class PixelReader(FrameReader):
    """Reads images: files, images of Pillow, and arrays.

    Arrays are [height, width] or [height, width, 3 or 4], of uint8, uint16, or numbers from 0 to 1. Transparent pixels
    are put on white.
    """

    settings: PixelSettings

    def decode(self, content: bytes) -> NDArray[Any]:
        if not content:
            raise UnreadableError("empty file, expected an image")
        pillow = pillow_module()
        try:
            with warnings.catch_warnings():  # of large images, which are refused below
                warnings.simplefilter("ignore")
                image = pillow.open(io.BytesIO(content), formats=FORMATS)
            self._refuse_large(image.size)
            image.load()
        except pillow.DecompressionBombError:
            raise UnreadableError(
                f"has more than {self.settings.max_pixels:,} pixels (data.source.max_pixels)"
            ) from None
        except (OSError, SyntaxError, ValueError, EOFError, MemoryError, TypeError, IndexError):
            raise UnreadableError("not an image that Pillow reads, or truncated") from None
        return self._frames(image)

    def convert(self, source: object) -> NDArray[Any]:
        pillow = pillow_module()
        if isinstance(source, pillow.Image):
            self._refuse_large(source.size)
            return self._frames(source)
        if not isinstance(source, np.ndarray):
            raise TypeError(f"found {type(source).__name__}, expected a path, bytes, an array or a PIL image")
        if source.ndim not in (2, 3) or (source.ndim == 3 and source.shape[2] not in (3, 4)) or not source.size:
            raise UnreadableError(
                f"holds an array of shape {list(source.shape)}, expected pixels [height, width] or [height, width, 3]"
            )
        if source.dtype == np.uint16:
            source = source / 65535
        if source.dtype.kind == "f":
            if not (np.isfinite(source).all() and source.min() >= 0 and source.max() <= 1):
                raise UnreadableError("holds numbers outside 0 to 1, expected those or type uint8")
            source = np.round(source * 255).astype(np.uint8)
        if source.dtype != np.uint8:
            raise UnreadableError(
                f"holds an array of type {source.dtype}, expected uint8, uint16 or numbers from 0 to 1"
            )
        self._refuse_large((source.shape[1], source.shape[0]))
        return self._frames(pillow.fromarray(source))

    def _refuse_large(self, size: tuple[int, int]) -> None:
        width, height = size
        if width * height > self.settings.max_pixels:
            raise UnreadableError(
                f"has {width:,} × {height:,} pixels, expected at most {self.settings.max_pixels:,} "
                "(data.source.max_pixels)"
            )

    @abstractmethod
    def _frames(self, image: "Image.Image") -> NDArray[Any]:
        """Return the frames [L, F] of an image."""

    def _upright(self, image: "Image.Image", mode: str) -> "Image.Image":
        """Return an image as it was held, on white, in a mode of Pillow: "RGB" or "L"."""
        pillow = pillow_module()
        if (turn := _TURNS.get(orientation(image))) is not None:
            image = image.transpose(turn)
        if image.mode in _DEEP or image.mode == "F":
            image = pillow.fromarray(_in_8_bits(image))
        if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
            whole = image.convert("RGBA")
            image = pillow.new("RGBA", whole.size, "white")
            image.alpha_composite(whole)
        return image.convert(mode)


class ImageReader(PixelReader):
    """Reads images as columns of pixels, from 0 (black) to 1 (white)."""

    settings: ImageSettings

    def _frames(self, image: "Image.Image") -> NDArray[Any]:
        """Return the columns [width, height · colours] of an image scaled to the height of the settings."""
        pillow = pillow_module()
        image = self._upright(image, "RGB" if self.settings.color else "L")
        height = self.settings.height
        width = max(1, round(image.width * height / image.height))
        if image.size != (width, height):
            self._refuse_large((width, height))
            image = image.resize((width, height), pillow.Resampling.BILINEAR)
        pixels = np.asarray(image, np.float32) / 255
        return pixels.reshape(height, width, -1).transpose(1, 0, 2).reshape(width, -1)


class PatchReader(PixelReader):
    """Reads images as patches of normalised pixels, as the image processors of transformers compute them."""

    settings: PatchSettings

    def _frames(self, image: "Image.Image") -> NDArray[Any]:
        """Return the patches [n, 3 · p · p] of an image, row by row; in a patch, red comes before green and blue."""
        settings, pillow = self.settings, pillow_module()
        filter_ = pillow.Resampling[settings.filter.upper()]
        image = self._upright(image, "RGB").resize((settings.width, settings.height), filter_)
        pixels = (np.asarray(image, np.float64) * settings.scale).astype(np.float32)
        pixels -= np.array(settings.mean, np.float32)
        pixels /= np.array(settings.deviation, np.float32)
        size = settings.patch
        squares = pixels.reshape(settings.height // size, size, settings.width // size, size, 3)
        return squares.transpose(0, 2, 4, 1, 3).reshape(-1, settings.size)


def orientation(image: "Image.Image") -> int:
    """Return how a camera was held, 1 to 8 as in EXIF; 1 if the image does not say."""
    try:
        with warnings.catch_warnings():  # of damaged data
            warnings.simplefilter("ignore")
            return int(image.getexif().get(_ORIENTATION, 1))
    except (SyntaxError, ValueError, TypeError, LookupError, OverflowError, OSError, struct.error):
        return 1


def _in_8_bits(image: "Image.Image") -> NDArray[np.uint8]:
    """Return the pixels of an image of 16 bits, or of floats up to 1 or 255: Pillow would cut them off at 255."""
    pixels = np.asarray(image, np.float64)
    if image.mode == "F":
        largest, expected = (1, "0 to 1") if pixels.max(initial=0) <= 1 else (255, "0 to 255")
    else:
        largest, expected = 65535, "0 to 65,535"
    if not (pixels.min(initial=0) >= 0 and pixels.max(initial=0) <= largest):  # or not a number
        raise UnreadableError(f"holds numbers outside {expected}")
    if "transparency" in image.info:
        pixels = np.where(pixels == image.info["transparency"], largest, pixels)
    return np.round(pixels * (255 / largest)).astype(np.uint8)


def pillow_module() -> Any:
    """Return the module PIL.Image. Raises SettingsError if Pillow is not installed."""
    with needed_by("data.source: an image"):
        from PIL import Image
    return Image
