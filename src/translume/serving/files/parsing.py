"""What runs in the processes that read and write uploaded files, so that a hostile file harms no other process.

It imports little: a process starts for nearly every large document.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from translume.errors import DataError, DocumentError

MEMORY_BYTES: Final = 2**30
"""Maximum memory that a file may take. The largest documents within the limits take a quarter of it."""
NICENESS: Final = 5
"""Added to the nice value of the process: requests for translations go first."""


def start(module: str) -> int:
    """Prepare a process: import what reads files, then limit the memory. Return the id of the process."""
    import_module(module)
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # Windows, macOS
        print("warning: the memory of the process that reads files is not limited", file=sys.stderr, flush=True)
    else:
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    return os.getpid()


def process_id(pid: int, _: None) -> int:
    """Return the id of the process."""
    return pid


def read_document(_: int, item: tuple[str, bytes, str, int]) -> Any:
    """Return the segments of a document and warnings; the number of its characters if they are more than the maximum.

    item: the suffix, the content, the language of its texts and the maximum. Raises DocumentError.
    """
    from translume.documents.files import read_document

    suffix, content, language, maximum = item
    try:
        document, warnings = read_document(suffix, content, language)
        segments = list(document.segments)
    except MemoryError:
        raise _too_much_memory() from None
    characters = sum(len(segment.text) for segment in segments)
    return (segments, warnings) if characters <= maximum else characters


def write_document(_: int, item: tuple[str, bytes, str, str, Sequence[Sequence[str]]]) -> bytes:
    """Return a document with other texts.

    item: the suffix, the content, the languages of its texts and of the others, and the runs of each segment.
    """
    from translume.documents.files import read_document, translated_file
    from translume.documents.segments import language_tag

    suffix, content, source, target, runs = item
    try:
        return translated_file(suffix, read_document(suffix, content, source)[0], runs, language_tag(target))
    except MemoryError:
        raise _too_much_memory() from None


def read_frames(_: int, item: tuple[Any, bytes, int]) -> Any:
    """Return the frames of a recording, an image or an array, float32 [L, F]; DataError if it cannot be read.

    item: the settings of the source, the content and the maximum number of bytes that an archive unpacks to.
    """
    from translume.sources import frame_reader

    settings, content, largest = item
    reader = frame_reader(settings, largest)
    assert reader is not None
    try:
        return reader.read(content)
    except MemoryError:
        raise DataError(str(_too_much_memory())) from None


def _too_much_memory() -> DocumentError:
    return DocumentError(f"reading it takes more than {MEMORY_BYTES:,} bytes of memory")
