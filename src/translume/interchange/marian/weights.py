"""Copy Marian's arrays into a model of ours. Marian's weights are [in, out]; `Wt` and embeddings are [out, in]."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from translume.errors import ModelFolderError
from translume.interchange.marian.options import Architecture
from translume.model import Transformer

Array = NDArray[np.float32]

TABLES = ("encoder.embedding.table.weight", "decoder.embedding.table.weight", "head.weight")
"""Our tables of tokens. They have one row more than Marian's, for our begin mark."""
OUTPUT = "decoder_ff_logit_out_Wt"
"""The output layer [out, in] in newer files; older ones have `decoder_ff_logit_out_W` [in, out]."""
IMPOSSIBLE = -100.0
"""The logit bias of our begin mark: its probability is 0 in fp32, and label smoothing in fine-tuning stays small."""
_UNUSED = ("special:", "QuantMultA", "decoder_c", "lsh_output")
"""Parts of the names of arrays that the graph does not need."""


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The arrays of a file of Marian.

    place: names the file in errors.  names: of its arrays.  read: returns one of them as fp32.  options: the model's.
    quantised: whether arrays were read from integers.
    """

    place: str
    names: Collection[str]
    read: Callable[[str], Array]
    options: Mapping[str, object]
    quantised: bool = False


@torch.no_grad()
def fill(model: Transformer, architecture: Architecture, file: WeightsFile) -> None:
    """Copy the arrays of a file into a model of its shape, one at a time.

    Raises ModelFolderError naming the first array that is missing, unknown or of another shape.
    """
    weights = model.state_dict()  # tied tables share their memory
    used: set[str] = set()
    if not architecture.output_bias:
        weights["head.bias"].zero_()
        weights["head.bias"][-1] = IMPOSSIBLE
    for ours, theirs, change in _rows(architecture, file.names):
        whole = weights[ours]
        if ours in TABLES:  # Marian begins with a zero vector, which is the row of our begin mark
            whole[-1:].zero_()
            whole = whole[:-1]
        for name, part in zip(theirs, whole.chunk(len(theirs)), strict=True):
            found = _array(file, name)
            used.add(name)
            changed = change(found)
            if changed.shape != part.shape:
                raise ModelFolderError(
                    f"{file.place}: {name} is {list(found.shape)}, which does not fit the options of the model"
                )
            part.copy_(torch.from_numpy(changed if changed.flags.writeable else changed.copy()))
    for name in file.names:
        if name not in used and not any(part in name for part in _UNUSED):
            raise ModelFolderError(f"{file.place}: holds {name}, which a model of its options does not have")


def arrays_of(model: Transformer, architecture: Architecture) -> dict[str, Array]:
    """Return Marian's arrays of a model with this shape: the inverse of `fill`."""
    weights, found = model.state_dict(), {}
    for ours, theirs, _ in _rows(architecture, (OUTPUT,)):
        whole = weights[ours].detach().float().cpu()
        if ours in TABLES or ours == "head.bias":  # the last row is our begin mark
            whole = whole[:-1]
        for name, part in zip(theirs, whole.chunk(len(theirs)), strict=True):
            array = part.numpy()
            found[name] = np.ascontiguousarray(array[None] if array.ndim == 1 else array if ours in TABLES else array.T)
    return found


def _array(file: WeightsFile, name: str) -> Array:
    if name not in file.names:
        raise ModelFolderError(f"{file.place}: no {name}, expected it by the options of the model")
    found = file.read(name)
    if found.ndim != 2:
        raise ModelFolderError(f"{file.place}: {name} is {list(found.shape)}, expected rows and columns")
    return found


Change = Callable[[Array], Array]
Part = tuple[str, tuple[str, ...], Change]
"""Our name, their names, whose changed arrays are equal shares of its rows, and the change."""


def _rows(model: Architecture, names: Collection[str]) -> Iterator[Part]:
    """Yield what to copy.  names: of the arrays in the file."""
    yield from _tables(model, names)
    if model.values["norm"] == "pre":
        for side in ("encoder", "decoder"):
            yield from _norm(f"{side}.norm", f"{side}_top", "")
    for side, depth in (("encoder", "encoder_layers"), ("decoder", "decoder_layers")):
        for number in range(model.values[depth]):
            yield from _layer(model, side, f"{side}.layers.{number}", f"{side}_l{number + 1}")


def _layer(model: Architecture, side: str, ours: str, theirs: str) -> Iterator[Part]:
    suffix = "_pre" if model.values["norm"] == "pre" else ""
    around = "around_attention" if side == "encoder" else "around_self"
    norms = [("around_feed_forward", f"{theirs}_ffn_ffn", suffix)]
    if side == "decoder" and model.ssru:
        yield f"{ours}.self_attention.update.weight", (f"{theirs}_rnn_W",), _transposed
        yield f"{ours}.self_attention.forget.weight", (f"{theirs}_rnn_Wf",), _transposed
        yield f"{ours}.self_attention.forget.bias", (f"{theirs}_rnn_bf",), _flat
        norms.append((around, f"{theirs}_rnn" if suffix else f"{theirs}_rnn_ffn", suffix))
    else:
        yield from _linear(f"{ours}.self_attention.query_key_value", f"{theirs}_self", "qkv")
        yield from _linear(f"{ours}.self_attention.output", f"{theirs}_self", "o")
        norms.append((around, f"{theirs}_self_Wo", suffix))
    if side == "decoder":
        yield from _linear(f"{ours}.cross_attention.query", f"{theirs}_context", "q")
        yield from _linear(f"{ours}.cross_attention.key_value", f"{theirs}_context", "kv")
        yield from _linear(f"{ours}.cross_attention.output", f"{theirs}_context", "o")
        norms.append(("around_cross", f"{theirs}_context_Wo", suffix))
    yield from _feed_forward(model, side, f"{ours}.feed_forward", f"{theirs}_ffn")
    for name, prefix, end in norms:
        yield from _norm(f"{ours}.{name}.norm", prefix, end)


def _tables(model: Architecture, names: Collection[str]) -> Iterator[Part]:
    """Yield the tables of tokens."""
    encoder, decoder, head = TABLES
    shared = model.tied in ("all", "embeddings")
    yield encoder, ("Wemb" if shared else "encoder_Wemb",), _unchanged
    if not shared:
        yield decoder, ("decoder_Wemb",), _unchanged
    if model.tied in ("embeddings", "none"):
        if OUTPUT in names:
            yield head, (OUTPUT,), _unchanged
        else:
            yield head, ("decoder_ff_logit_out_W",), _transposed
    if model.output_bias:
        yield "head.bias", ("decoder_ff_logit_out_b",), lambda array: np.append(array, np.float32(IMPOSSIBLE))


def _feed_forward(model: Architecture, side: str, ours: str, theirs: str) -> Iterator[Part]:
    """Yield the two maps. Units that the narrower side lacks are 0, which changes nothing."""
    more = max(model.feed_forward) - model.feed_forward[side == "decoder"]

    def inner(array: Array) -> Array:
        return np.pad(array.T, ((0, more), (0, 0)))

    def outer(array: Array) -> Array:
        return np.pad(array.T, ((0, 0), (0, more)))

    yield f"{ours}.inner.weight", (f"{theirs}_W1",), inner
    yield f"{ours}.outer.weight", (f"{theirs}_W2",), outer
    yield f"{ours}.inner.bias", (f"{theirs}_b1",), lambda array: np.pad(array.ravel(), (0, more))
    yield f"{ours}.outer.bias", (f"{theirs}_b2",), _flat


def _linear(ours: str, theirs: str, letters: str) -> Iterator[Part]:
    yield f"{ours}.weight", tuple(f"{theirs}_W{letter}" for letter in letters), _transposed
    yield f"{ours}.bias", tuple(f"{theirs}_b{letter}" for letter in letters), _flat


def _norm(ours: str, theirs: str, suffix: str) -> Iterator[Part]:
    yield f"{ours}.weight", (f"{theirs}_ln_scale{suffix}",), _flat
    yield f"{ours}.bias", (f"{theirs}_ln_bias{suffix}",), _flat


def _unchanged(array: Array) -> Array:
    return array


def _transposed(array: Array) -> Array:
    return array.T


def _flat(array: Array) -> Array:
    return array.ravel()
