"""Encoding of sources, and of the keys and values that a decoder reads of them, in one call of the kernels."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Self

import numpy as np

from translume.engine.layers import Layers, cache_struct
from translume.engine.network import Array, Network
from translume.engine.packing import PackedLinear
from translume.engine.state import GROWTH, KVCache
from translume.kernels import loading
from translume.kernels.loading import address, empty

SHORTEST = 16
"""Minimum number of positions of a source in a cache."""


class SourceKernels:
    """Reads sources of ids. The result is the same, bit for bit, for a source alone and in a batch."""

    def __init__(self, encoder: Layers, decoder: Layers, network: Network, key_values: Sequence[PackedLinear]) -> None:
        """The encoder's embedding is a table and vectors of positions."""
        network = network.encoder
        table, positions = np.ascontiguousarray(network.table("encoder")), network.positions("encoder")
        positions = None if positions is None else np.ascontiguousarray(positions)
        self._kept = (encoder, key_values, table, positions)  # own the memory that the kernels read
        self._library = loading.kernels().library
        limits = [encoder.longest, None if positions is None else len(positions)]
        self._size, self._longest = len(table), min(each for each in [*limits, sys.maxsize] if each is not None)
        self._decoder = decoder
        self._pointers = (ctypes.c_void_p * len(key_values))(*(ctypes.addressof(each.struct) for each in key_values))
        self._struct = loading.SourceReader(
            encoder=encoder.address,
            table=address(table),
            positions=address(positions),
            scale=network.scale,
            layers=len(key_values),
            heads=decoder.shape.heads,
            head_size=decoder.shape.head_size,
            key_values=ctypes.addressof(self._pointers),
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself: it holds addresses of arrays that are never written to."""
        return self

    def read(self, source: Array, mask: Array) -> KVCache | None:
        """Return the cache of sources [B, S] of ids, which begin at the first position.

        None: there is no source, or one is empty or too long, begins later or has other ids.
        """
        lengths = mask.sum(1)
        count, size = mask.shape
        longest = int(lengths.max(initial=0))
        if not 0 < longest <= self._longest or not lengths.all():
            return None
        if (mask != (np.arange(size) < lengths[:, None])).any():
            return None
        packed = source[mask].astype(np.int64, copy=False)
        if packed.min() < 0 or packed.max() >= self._size:
            return None
        begins = np.zeros(count + 1, np.int64)
        lengths.cumsum(out=begins[1:])
        cache = empty_cache(self._decoder, count, size, padded=len(packed) < count * max(size, SHORTEST))
        struct, reader = cache_struct(cache), ctypes.addressof(self._struct)
        memory = empty([self._library.translume_sources_workspace(reader, len(packed), longest)], np.uint8)
        self._library.translume_read_sources(
            reader,
            address(packed),
            address(begins),
            count,
            ctypes.addressof(struct),
            address(cache.source_bias),
            address(memory),
        )
        return cache


def empty_cache(decoder: Layers, count: int, size: int, *, padded: bool) -> KVCache:
    """Return a cache for `count` sources of up to `size` positions.  padded: whether some are shorter."""
    shape, kind = decoder.shape, decoder.cache_dtype
    width = max(size, SHORTEST)
    cross = empty([2 * shape.count, count, shape.heads, width, shape.head_size], kind)
    past = empty([2 * shape.count, count, shape.heads, GROWTH, 1, shape.head_size], kind)
    return KVCache(past, cross, empty([count, 1, 1, width]) if padded else None)
