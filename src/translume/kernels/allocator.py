"""Tune the C memory allocator, and what torch keeps, for steps that allocate and free large tensors again and again."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

RESERVED_BYTES = 4 << 30
"""Address space to reserve; pages are allocated only when first written."""

CACHED_KERNELS = {"LRU_CACHE_CAPACITY": "256", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}
"""How many compiled kernels torch and oneDNN cache, by the environment variables that they read at the first product of
bf16. The default is 1,024, of half a mebibyte each."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENAS, _LARGEST_BLOCK = -1, -3, -8, 1 << 30
_HUGE_PAGE, _MADV_HUGEPAGE = 1 << 21, 14


def limit_cached_kernels() -> None:
    """Limit the compiled kernels that torch and oneDNN cache, unless the user has done so. Few shapes occur again."""
    for name, value in CACHED_KERNELS.items():
        os.environ.setdefault(name, value)


def return_memory() -> None:
    """Return freed memory to the system now. glibc would keep it, in holes between blocks that are used."""
    with suppress(AttributeError, OSError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def return_freed_memory() -> bool:
    """Make the allocator return freed blocks of a mebibyte and more at once. Return False if not supported.

    For processes that must need little memory. Freed blocks of many sizes otherwise stay between those in use.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 1 << 20))


def keep_freed_memory() -> bool:
    """Make the allocator keep freed blocks in huge pages instead of returning them. Return False if not supported.

    Returning pages and faulting them in again would cost more time than computing on them. Linux with glibc only.
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
        blocks = [np.empty(size, np.uint8) for _ in range(RESERVED_BYTES // _LARGEST_BLOCK)]
    except MemoryError:  # a limit on address space; keep what was allocated so far
        blocks = []
    blocks.clear()  # the heap keeps its size
    advised = [_use_huge_pages(madvise, begin, end) for begin, end in _heaps()]
    return any(advised)


def _heaps() -> list[tuple[int, int]]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in maps if line.endswith("[heap]")]
    return [(int(begin, 16), int(end, 16)) for begin, end in ranges]


def _use_huge_pages(madvise: "ctypes._NamedFuncPointer", begin: int, end: int) -> bool:
    begin = (begin + _HUGE_PAGE - 1) // _HUGE_PAGE * _HUGE_PAGE
    return end > begin and madvise(begin, end - begin, _MADV_HUGEPAGE) == 0
