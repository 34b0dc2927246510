"""The packed weights of a model in a file beside it, which later starts map into memory instead of packing again.

The file has tensors as safetensors writes them, then the `word_sums` of these bytes. Its name tells the dtype,
the kernels' instruction set and the weights. Processes that map it share its memory.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np

from translume import atomic
from translume.checkpoint.arrays import ALIGNMENT, DTYPES, arrays_in, header_of, map_file
from translume.checkpoint.loading import packed_name
from translume.checksums import BLOCK, word_sums
from translume.engine.network import Array
from translume.engine.packing import Dtype
from translume.errors import ModelFolderError, reason_of
from translume.kernels import loading

AUTOMATIC_BYTES = 1 << 25
"""Weights of smaller files are packed at every start, unless a packed file was asked for."""
_KINDS = {np.dtype(name): kind for kind, name in DTYPES.items()}

Kept = dict[str, dict[str, Array]]
"""What `Network.kept` holds."""


class PackedFile:
    """The file with the arrays that an engine of a dtype reads on this machine; `path` may not exist yet."""

    def __init__(self, weights: Path, digest: str, dtype: Dtype) -> None:
        """weights: the file of the model's weights, and its SHA-256."""
        self._weights, self._made_of = weights, {"weights": digest, "code": _code()}
        self.path = weights.with_name(packed_name(f"{dtype}-{loading.kernels().instructions}", weights))

    @property
    def wanted(self) -> bool:
        """Whether the first use writes the file: for a large model, into a folder of this user."""
        try:
            large = self._weights.stat().st_size >= AUTOMATIC_BYTES
            own = self.path.parent.stat().st_uid == getattr(os, "getuid", int)()
        except OSError:  # another process commits to the folder
            return False
        return large and own and _is_on() and os.access(self.path.parent, os.W_OK)

    def read(self, weights: Mapping[str, Array]) -> Kept:
        """Map the arrays, after comparing all checksums; return none if the file is missing or not of use.

        weights: the mapped tensors of the model's file, some of which are among the arrays.
        """
        if not (_is_on() and self.path.exists()):
            return {}
        try:
            return self._mapped(weights)
        except ModelFolderError as error:
            import logging  # takes milliseconds, and most starts need none

            logging.getLogger(__name__).warning("%s; the weights are packed again", error)
            return {}

    def _mapped(self, weights: Mapping[str, Array]) -> Kept:
        content = map_file(self.path)
        whole, sums = np.split(content, [len(content) - 8 * -(-len(content) // (BLOCK + 8))])
        self._compare(self.path, whole, sums.tobytes())
        arrays, made_of = arrays_in(whole, self.path)
        mapped = json.loads(made_of.pop("mapped", "{}"))
        if made_of != self._made_of:
            raise ModelFolderError(f"{self.path}: packed by another version of Translume, or from other weights")
        for key, (name, expected) in mapped.items():
            self._compare(self._weights, weights[name], bytes.fromhex(expected))
            arrays[key] = weights[name]
        kept: Kept = {}
        for key, array in arrays.items():
            name, _, part = key.rpartition("|")
            kept.setdefault(name, {})[part] = array
        return kept

    @staticmethod
    def _compare(path: Path, values: Array, sums: bytes) -> None:
        """Raise ModelFolderError if values of a file do not have these checksums."""
        if word_sums(values).tobytes() != sums:
            raise ModelFolderError(f"{path}: damaged: a checksum is wrong")

    def write(self, weights: Mapping[str, Array], kept: Kept) -> Path:
        """Write arrays, but for those that are `weights`; return the path. Raises ModelFolderError if it cannot."""
        names, arrays, mapped = {id(array): name for name, array in weights.items()}, {}, {}
        for name, made in kept.items():
            for kind, array in made.items():
                if (stored := names.get(id(array))) is not None:
                    mapped[f"{name}|{kind}"] = [stored, word_sums(array).tobytes().hex()]
                else:
                    arrays[f"{name}|{kind}"] = np.ascontiguousarray(array)
        entries = {name: (_KINDS[each.dtype], each.shape, each.nbytes) for name, each in arrays.items()}
        header = header_of(entries, {**self._made_of, "mapped": json.dumps(mapped)}, ALIGNMENT)
        part = atomic.beside(self.path)
        try:
            pieces = [memoryview(header), *(each.reshape(-1).view(np.uint8).data for each in arrays.values())]
            padded: Iterable[bytes | memoryview] = chain.from_iterable(
                (each, bytes(-len(each) % ALIGNMENT)) for each in pieces
            )
            atomic.write(part, padded, synced=False)  # what a power cut leaves has wrong checksums
            sums = word_sums(map_file(part)).tobytes()
            with part.open("ab") as file:
                file.write(sums)
            os.replace(part, self.path)
        except OSError as error:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise ModelFolderError(f"{self.path}: cannot be written: {reason_of(error)}") from None
        return self.path


def _is_on() -> bool:
    return os.environ.get("TRANSLUME_PACK") != "0"


@cache
def _code() -> str:
    """Return a digest of the modules that pack weights, and of the kernels that read them."""
    modules = sorted(Path(__file__).parent.glob("*.py"))
    files = [*modules, *(loading.FOLDER / name for name in ("linear.h", "linear.c", "stack.h"))]
    return hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
