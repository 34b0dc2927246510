"""Readers of sources other than text: from a path, bytes or an array to frames."""

from functools import lru_cache
from pkgutil import resolve_name

from translume.config import SourceKind
from translume.sources.reader import LARGEST_FILE, FrameReader, Frames, describe

__all__ = ["FrameReader", "Frames", "describe", "frame_reader"]


@lru_cache(maxsize=16)
def frame_reader(settings: SourceKind, largest: int = LARGEST_FILE) -> FrameReader | None:
    """Return the reader of the frames of a source; None for text.  largest: see `FrameReader`."""
    if not settings.reader:
        return None
    reader: FrameReader = resolve_name(settings.reader)(settings, largest)
    return reader
