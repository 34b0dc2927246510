"""What kind of source a file is, and its size, from its first bytes and without decoding it."""

import math
import warnings
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from translume.errors import DataError, refused
from translume.sources.audio import soundfile_module
from translume.sources.image import FORMATS, orientation, pillow_module

FileKind = Literal["audio", "features", "image"]

EXTENSIONS: dict[FileKind, tuple[str, ...]] = {
    "audio": (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au"),
    "features": (".npy", ".npz"),
    "image": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"),
}
"""Extensions of files, in lower case, for each kind of source."""
_READ = 16
_LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the header of a file says.

    length: seconds of a recording, pixels of an image's width, frames of an array.  height: of an image, in pixels.
    rate, channels: of a recording.  color: whether an image has colours rather than shades of grey; its pixels may
    still be grey.  values: numbers in a frame of an array.
    """

    kind: FileKind
    length: float
    height: int = 0
    color: bool = False
    rate: int = 0
    channels: int = 0
    values: int = 0


def kind_of(path: Path) -> FileKind | None:
    """Return the kind of a file by its first bytes, or by its extension if it cannot be read; None for other files."""
    if len(str(path)) > _LONGEST_NAME or "\0" in str(path):
        return None
    kind = None
    try:
        if path.is_file():  # no device, which could block
            with path.open("rb") as file:
                kind = _kind_of_bytes(file.read(_READ))
    except OSError:
        pass
    named = (name for name, extensions in EXTENSIONS.items() if path.suffix.lower() in extensions)
    return kind or next(named, None)


def _kind_of_bytes(begin: bytes) -> FileKind | None:
    if begin[:4] in (b"RIFF", b"RF64", b"FORM"):
        return "image" if begin[8:12] == b"WEBP" else "audio" if begin[8:12] in (b"WAVE", b"AIFF", b"AIFC") else None
    if begin[:4] in (b"fLaC", b"OggS", b".snd") or begin[:3] == b"ID3":
        return "audio"
    if begin[:2] == b"\xff\xd8" or begin[:8] == b"\x89PNG\r\n\x1a\n" or begin[:4] in (b"GIF8", b"II*\0", b"MM\0*"):
        return "image"
    if begin[:1] == b"\xff" and begin[1:2] and begin[1] & 0xE6 in (0xE2, 0xE4, 0xE6):  # the frame of an MP3
        return "audio"
    return "features" if begin[:6] == b"\x93NUMPY" else None


def read_header(kind: FileKind, path: Path) -> Header:
    """Return the header of a file. Raises DataError, which begins with the path, for a file that is not of the kind."""
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'no such file'}")
    with refused(path, "cannot be read"):
        if not path.stat().st_size:
            raise DataError(f"{path}: empty file")
        if kind == "audio":
            return _audio(path)
        return _image(path) if kind == "image" else _array(path)


def _audio(path: Path) -> Header:
    soundfile = soundfile_module()
    try:
        header = soundfile.info(str(path))
    except soundfile.LibsndfileError:
        raise DataError(f"{path}: not audio that soundfile reads, or truncated") from None
    seconds = header.frames / header.samplerate
    return Header(kind="audio", length=seconds, rate=header.samplerate, channels=header.channels)


def _image(path: Path) -> Header:
    pillow = pillow_module()
    try:
        with warnings.catch_warnings():  # of large images, which the reader refuses
            warnings.simplefilter("ignore")
            with pillow.open(path, formats=FORMATS) as image:
                color = image.mode in ("RGB", "RGBA", "P", "CMYK", "YCbCr", "HSV", "LAB")
                width, height = image.size
                if image.format != "TIFF" and orientation(image) > 4:  # on its side; of a TIFF, Pillow says it upright
                    width, height = height, width
                return Header(kind="image", length=width, height=height, color=color)
    except pillow.DecompressionBombError:
        raise DataError(f"{path}: has too many pixels") from None
    except (OSError, SyntaxError, ValueError, EOFError, TypeError, IndexError):
        raise DataError(f"{path}: not an image that Pillow reads, or truncated") from None


def _array(path: Path) -> Header:
    try:
        with ExitStack() as stack:
            file: IO[bytes] = stack.enter_context(path.open("rb"))
            size = path.stat().st_size
            if file.read(2) == b"PK":
                archive = stack.enter_context(zipfile.ZipFile(file))
                size = archive.infolist()[0].file_size
                file = stack.enter_context(archive.open(archive.infolist()[0]))
            else:
                file.seek(0)
            read = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}[read_magic(file)]
            shape, _, kind = read(file)
            if file.tell() + math.prod(shape) * kind.itemsize > size:
                raise EOFError
    except (ValueError, EOFError, KeyError, IndexError, zipfile.BadZipFile):
        raise DataError(f"{path}: not an array in .npy or .npz format, or truncated") from None
    if len(shape) != 2:
        raise DataError(f"{path}: holds an array of shape {list(shape)}, expected frames [L, F]")
    return Header(kind="features", length=shape[0], values=shape[1])
