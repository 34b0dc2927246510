"""Encoding of sources, and of the keys and values that a decoder reads of them, in one call of the kernels."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from translume.engine.layers import Layers
from translume.engine.native_layers import NativeLayers, cache_struct
from translume.engine.packing import NativeLinear, PackedLinear
from translume.engine.state import KVCache
from translume.kernels import loading
from translume.kernels.loading import address
from translume.model import Transformer
from translume.model.embedding import Embedding
from translume.model.layout import SHORTEST
from translume.model.state import GROWTH


class SourceKernels:
    """Reads sources of ids. The result is the same, bit for bit, for a source alone and in a batch."""

    def __init__(
        self, encoder: NativeLayers, decoder: NativeLayers, embedding: Embedding, key_values: Sequence[NativeLinear]
    ) -> None:
        table, positions = embedding.table.weight.detach(), embedding.positions.table
        self._kept = (encoder, key_values, table, positions)  # own the memory that the kernels read
        self._library = loading.kernels().library
        limits = [encoder.longest, None if positions is None else len(positions)]
        self._size, self._longest = len(table), min(each for each in [*limits, sys.maxsize] if each is not None)
        self._shape, self._dtype = decoder.shape, decoder.cache_dtype
        self._pointers = (ctypes.c_void_p * len(key_values))(*(ctypes.addressof(each.struct) for each in key_values))
        self._struct = loading.SourceReader(
            encoder=encoder.address,
            table=address(table),
            positions=address(positions),
            scale=embedding.scale,
            layers=len(key_values),
            heads=decoder.shape.heads,
            head_size=decoder.shape.head_size,
            key_values=ctypes.addressof(self._pointers),
        )

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return itself: it holds addresses of tensors that are never written to."""
        return self

    @classmethod
    def of(
        cls, encoder: NativeLayers | None, decoder: Layers, model: Transformer, key_values: Sequence[PackedLinear]
    ) -> Self | None:
        """Return them, or None if the kernels do not support a part."""
        embedding, native = model.encoder.embedding, [each for each in key_values if isinstance(each, NativeLinear)]
        if encoder is None or not isinstance(decoder, NativeLayers) or len(native) != decoder.shape.count:
            return None
        if type(embedding) is not Embedding or embedding.segments is not None:
            return None
        tables = [each for each in (embedding.table.weight, embedding.positions.table) if each is not None]
        if any(each.dtype != torch.float32 or not each.is_contiguous() for each in tables):
            return None
        return cls(encoder, decoder, embedding, native)

    def read(self, source: Tensor, mask: Tensor) -> KVCache | None:
        """Return the cache of sources [B, S] of ids, which begin at the first position.

        None: there is no source, or one is empty or too long, begins later or has other ids.
        """
        there, ids = mask.numpy(), source.numpy()
        lengths = there.sum(1)
        count, size = there.shape
        longest = int(lengths.max(initial=0))
        if not 0 < longest <= self._longest or not lengths.all():
            return None
        if (there != (np.arange(size) < lengths[:, None])).any():
            return None
        packed = ids[there].astype(np.int64, copy=False)
        if packed.min() < 0 or packed.max() >= self._size:
            return None
        begins = np.zeros(count + 1, np.int64)
        lengths.cumsum(out=begins[1:])
        width, shape = max(size, SHORTEST), self._shape
        layers = 2 * shape.count
        cross = torch.empty(layers, count, shape.heads, width, shape.head_size, dtype=self._dtype)
        past = torch.empty(layers, count, shape.heads, GROWTH, 1, shape.head_size, dtype=self._dtype)
        bias = torch.empty(count, 1, 1, width) if len(packed) < count * width else None
        cache = KVCache(past, cross, bias, indirect=True)
        struct, reader = cache_struct(cache), ctypes.addressof(self._struct)
        memory = torch.empty(self._library.translume_sources_workspace(reader, len(packed), longest), dtype=torch.uint8)
        self._library.translume_read_sources(
            reader,
            packed.ctypes.data,
            begins.ctypes.data,
            count,
            ctypes.addressof(struct),
            address(bias),
            memory.data_ptr(),
        )
        return cache
