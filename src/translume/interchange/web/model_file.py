"""The file that web.c of the kernels reads: numbers, int8 weights in the layout of WebAssembly, tables in fp16."""

from collections.abc import Callable

import numpy as np

from translume.belief import BLOCK, UNSHIFTED
from translume.engine.layers import Layers
from translume.engine.logits import REFINED_NATS
from translume.engine.network import Array, Linear, Network
from translume.engine.packing import quantized
from translume.engine.search import KernelSearchSettings
from translume.errors import SettingsError
from translume.kernels import loading

MAGIC = b"TLMWEB01"
PANEL, GROUP = 8, 2
"""Of linear.h for WebAssembly: outputs, and inputs of an output, whose weights are stored together."""
_NUMBERS = (
    "width", "heads", "head_size", "layers", "pre_norm", "ssru", "activation", "rms_norm", "inner", "reach",
    "distances", "epsilon",
)  # fmt: skip
"""Fields of `stack`, in the order of `read_stack`."""


class ModelFile:
    """What web.c reads, in the order of its calls."""

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self._arrays: list[bytes] = []

    def add(self, array: Array | None, dtype: str = "f4") -> None:
        """Add an array; None: the model has none."""
        data = b"" if array is None else np.ascontiguousarray(array, f"<{dtype}").tobytes()
        self._arrays.append(len(data).to_bytes(16, "little") + data + bytes(-len(data) % 16))

    def add_table(self, name: str, table: Array | None) -> None:
        """Add an embedding in fp16. Raises SettingsError for numbers that fp16 does not have."""
        if table is not None and np.abs(table).max(initial=0.0) > np.finfo(np.float16).max:
            raise SettingsError(f"{name}: found {np.abs(table).max():g}, expected numbers of fp16 for web")
        self.add(table, "f2")

    def add_linear(self, linear: Linear) -> None:
        """Add a weight [N, K] in int8, its scales and its bias."""
        weight, bias = linear
        missing = -len(weight) % PANEL
        packed, scales = quantized(np.pad(weight, ((0, missing), (0, 0))), PANEL, GROUP, 0)
        self.add(packed, "i1")
        self.add(scales)
        self.add(np.zeros(len(scales)) if bias is None else np.pad(bias, (0, missing)))

    def to_bytes(self) -> bytes:
        """Return the file."""
        head = MAGIC + len(self.numbers).to_bytes(8, "little") + np.array(self.numbers, "<f8").tobytes()
        return b"".join([head, bytes(-len(head) % 16), *self._arrays])


class _FileLayers(Layers):
    """The layers of a side, whose weights go into a file where the engine packs them."""

    def __init__(self, network: Network, side: str, file: ModelFile, longest: int) -> None:
        self._file = file
        super().__init__(network, side, "int8")
        file.numbers += [getattr(self._stack, name) for name in _NUMBERS]
        inside = self.longest is not None
        rotation = network.rotation(self.shape.head_size) if inside else None
        file.add(None if rotation is None else rotation[:longest])
        file.add(network.distance_biases(side) if inside else None)

    def _pack(self, name: str, make: Callable[[], Linear]) -> loading.Linear:
        self._file.add_linear(make())
        return loading.Linear()

    def _norm(self, name: str, *, there: bool = True) -> loading.Norm:
        for each in self._network.norm(name) if there else (None, None):
            self._file.add(each)
        return loading.Norm()


def _same(one: Array, other: Array) -> bool:
    """Return whether two tables are tied."""
    return one.shape == other.shape and np.may_share_memory(one, other)


def model_file(network: Network, search: KernelSearchSettings, longest: int) -> bytes:
    """Return the file of a model whose parts the kernels have.

    longest: maximum number of tokens of a source, and of a target with its prompt.
    """
    file, head = ModelFile(), network.head()
    source, target = network.table("encoder"), network.table("decoder")[: len(head[0])]
    file.numbers += [longest, len(source), len(head[0])]
    _FileLayers(network, "encoder", file, longest)
    decoder = _FileLayers(network, "decoder", file, longest)
    file.numbers.append(network.scale)
    for layer in range(decoder.shape.count):
        file.add_linear(decoder.padded(network.key_value(layer)))
    sides = (network.positions(side) for side in ("encoder", "decoder"))
    first, second = (None if each is None else each[:longest] for each in sides)
    file.add_table("encoder.embedding", source)
    file.add(first)
    file.add_table("decoder.embedding", None if _same(source, target) else target)
    file.add(None if first is None or second is None or np.array_equal(first, second) else second)
    file.add_linear(head)
    file.add_table("head", None if _same(head[0], target) else head[0])
    rules = search.rules.struct
    file.numbers += [REFINED_NATS, UNSHIFTED, BLOCK, rules.eos, rules.min_length, rules.ngram, rules.repetition]
    file.add(np.array([1.0, *(search.penalty.divisor(float(length)) for length in range(1, longest + 2))]))
    for name in ("forbidden", "forbidden_first"):
        file.add(search.rules.table(name), "u1")
    return file.to_bytes()
