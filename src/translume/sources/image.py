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
        image = pillow_module()
        try:
            with warnings.catch_warnings():  # of large images, which are refused below
                warnings.simplefilter("ignore")
                found = image.open(io.BytesIO(content), formats=FORMATS)
            self._refuse_large(found.size)
            found.load()
        except image.DecompressionBombError:
            raise UnreadableError(
                f"has more than {self.settings.max_pixels:,} pixels (data.source.max_pixels)"
            ) from None
        except (OSError, SyntaxError, ValueError, EOFError, MemoryError, TypeError, IndexError):
            raise UnreadableError("not an image that Pillow reads, or truncated") from None
        return self._frames(found)

    def convert(self, given: object) -> NDArray[Any]:
        image = pillow_module()
        if isinstance(given, image.Image):
            self._refuse_large(given.size)
            return self._frames(given)
        if not isinstance(given, np.ndarray):
            raise TypeError(f"found {type(given).__name__}, expected a path, bytes, an array or a PIL image")
        if given.ndim not in (2, 3) or (given.ndim == 3 and given.shape[2] not in (3, 4)) or not given.size:
            raise UnreadableError(
                f"holds an array of shape {list(given.shape)}, expected pixels [height, width] or [height, width, 3]"
            )
        if given.dtype == np.uint16:
            given = given / 65535
        if given.dtype.kind == "f":
            if not (np.isfinite(given).all() and given.min() >= 0 and given.max() <= 1):
                raise UnreadableError("holds numbers outside 0 to 1, expected those or type uint8")
            given = np.round(given * 255).astype(np.uint8)
        if given.dtype != np.uint8:
            raise UnreadableError(
                f"holds an array of type {given.dtype}, expected uint8, uint16 or numbers from 0 to 1"
            )
        self._refuse_large((given.shape[1], given.shape[0]))
        return self._frames(image.fromarray(given))

    def _refuse_large(self, size: tuple[int, int]) -> None:
        width, height = size
        if width * height > self.settings.max_pixels:
            raise UnreadableError(
                f"has {width:,} × {height:,} pixels, expected at most {self.settings.max_pixels:,} "
                "(data.source.max_pixels)"
            )

    @abstractmethod
    def _frames(self, found: "Image.Image") -> NDArray[Any]:
        """Return the frames [L, F] of an image."""

    def _upright(self, found: "Image.Image", mode: str) -> "Image.Image":
        """Return an image as it was held, on white, in a mode of Pillow: "RGB" or "L"."""
        image = pillow_module()
        if (turn := _TURNS.get(orientation(found))) is not None:
            found = found.transpose(turn)
        if found.mode in _DEEP or found.mode == "F":
            found = image.fromarray(_in_8_bits(found))
        if found.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in found.info:
            whole = found.convert("RGBA")
            found = image.new("RGBA", whole.size, "white")
            found.alpha_composite(whole)
        return found.convert(mode)


class ImageReader(PixelReader):
    """Reads images as columns of pixels, from 0 (black) to 1 (white)."""

    settings: ImageSettings

    def _frames(self, found: "Image.Image") -> NDArray[Any]:
        """Return the columns [width, height · colours] of an image scaled to the height of the settings."""
        image = pillow_module()
        found = self._upright(found, "RGB" if self.settings.color else "L")
        height = self.settings.height
        width = max(1, round(found.width * height / found.height))
        if found.size != (width, height):
            self._refuse_large((width, height))
            found = found.resize((width, height), image.Resampling.BILINEAR)
        pixels = np.asarray(found, np.float32) / 255
        return pixels.reshape(height, width, -1).transpose(1, 0, 2).reshape(width, -1)


class PatchReader(PixelReader):
    """Reads images as patches of normalised pixels, as the image processors of transformers compute them."""

    settings: PatchSettings

    def _frames(self, found: "Image.Image") -> NDArray[Any]:
        """Return the patches [n, 3 · p · p] of an image, row by row; in a patch, red comes before green and blue."""
        settings, image = self.settings, pillow_module()
        filter_ = image.Resampling[settings.filter.upper()]
        found = self._upright(found, "RGB").resize((settings.width, settings.height), filter_)
        pixels = (np.asarray(found, np.float64) * settings.scale).astype(np.float32)
        pixels -= np.array(settings.mean, np.float32)
        pixels /= np.array(settings.deviation, np.float32)
        size = settings.patch
        squares = pixels.reshape(settings.height // size, size, settings.width // size, size, 3)
        return squares.transpose(0, 2, 4, 1, 3).reshape(-1, settings.size)


def orientation(found: "Image.Image") -> int:
    """Return how a camera was held, 1 to 8 as in EXIF; 1 if the image does not say."""
    try:
        with warnings.catch_warnings():  # of damaged data
            warnings.simplefilter("ignore")
            return int(found.getexif().get(_ORIENTATION, 1))
    except (SyntaxError, ValueError, TypeError, LookupError, OverflowError, OSError, struct.error):
        return 1


def _in_8_bits(found: "Image.Image") -> NDArray[np.uint8]:
    """Return the pixels of an image of 16 bits, or of floats up to 1 or 255: Pillow would cut them off at 255."""
    pixels = np.asarray(found, np.float64)
    if found.mode == "F":
        largest, expected = (1, "0 to 1") if pixels.max(initial=0) <= 1 else (255, "0 to 255")
    else:
        largest, expected = 65535, "0 to 65,535"
    if not (pixels.min(initial=0) >= 0 and pixels.max(initial=0) <= largest):  # or not a number
        raise UnreadableError(f"holds numbers outside {expected}")
    if "transparency" in found.info:
        pixels = np.where(pixels == found.info["transparency"], largest, pixels)
    return np.round(pixels * (255 / largest)).astype(np.uint8)


def pillow_module() -> Any:
    """Return the module PIL.Image. Raises SettingsError if Pillow is not installed."""
    with needed_by("data.source: an image"):
        from PIL import Image
    return Image
