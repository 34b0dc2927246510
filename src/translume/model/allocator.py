"""How the C library hands out memory, set for steps that free and ask for the same large tensors again and again."""

import ctypes
import sys
from pathlib import Path

import torch

RESERVED_BYTES = 4 << 30
"""Address space set aside; pages are taken from the system only when they are first written."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS, _LARGEST_BLOCK = -1, -3, -8, 1 << 30
_HUGE_PAGE, _MADV_HUGEPAGE = 1 << 21, 14


def keep_freed_memory() -> bool:
    """Have freed blocks reused instead of returned to the system, in huge pages; False where that cannot be asked.

    Returning pages and faulting them in again costs more than the sums done in them. On Linux with glibc only;
    elsewhere nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, madvise = library.mallopt, library.madvise
    except (AttributeError, OSError):  # another C library
        return False
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if not (mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_TRIM_THRESHOLD, -1) and mallopt(_ARENAS, 1)):
        return False
    try:
        size = _LARGEST_BLOCK - _HUGE_PAGE
        blocks = [torch.empty(size, dtype=torch.uint8) for _ in range(RESERVED_BYTES // _LARGEST_BLOCK)]
    except RuntimeError:  # a limit on address space; what has grown by then is kept
        blocks = []
    blocks.clear()  # the heap has grown, and keeps its size
    advised = [_use_huge_pages(madvise, begin, end) for begin, end in _heaps()]
    return any(advised)


def _heaps() -> list[tuple[int, int]]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if line.endswith("[heap]")]
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


def _use_huge_pages(madvise: "ctypes._NamedFuncPointer", begin: int, end: int) -> bool:
    begin = (begin + _HUGE_PAGE - 1) // _HUGE_PAGE * _HUGE_PAGE
    return end > begin and madvise(begin, end - begin, _MADV_HUGEPAGE) == 0
