"""Trace a model's encoder and decoder as one ONNX graph with all weights."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnxscript import opset18
from torch import Tensor, nn

from translume.model import Transformer
from translume.model.state import DecoderState, KeyValue, Past

OPSET = 18
BATCH, SOURCE, TARGET, PAST = (
    "batch_size",
    "encoder_sequence_length",
    "decoder_sequence_length",
    "past_decoder_sequence_length",
)
"""Names of dimensions. transformers.js reads "batch_size"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The operations of encoder and decoder, and their weights by name.

    From input_ids and attention_mask: last_hidden_state.  From encoder_hidden_states: cross.I.key and cross.I.value of
    each layer I.  From decoder_input_ids, encoder_attention_mask and past_key_values.I.PART.KIND, where PART is decoder
    or encoder, and KIND is key or value: logits and present.I.decoder.KIND.
    layers, heads, head_width: of the decoder.  width: D.
    """

    nodes: Sequence[onnx.NodeProto]
    weights: dict[str, NDArray[Any]]
    layers: int
    heads: int
    head_width: int
    width: int


def past_names(layers: int, part: str, prefix: str = "past_key_values") -> list[str]:
    """Return the names of the keys and values of each layer.  part: "decoder" or "encoder"."""
    return [f"{prefix}.{layer}.{part}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def cross_names(layers: int) -> list[str]:
    """Return the names of the keys and values of the memory that a trace computes."""
    return [f"cross.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


class _GrowingKeyValue(KeyValue):
    """Keys and values without spare capacity, written by concatenation."""

    def write(self, keys: Tensor, values: Tensor, place: int) -> None:
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)

    def read(self, length: int) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


class _Parts(nn.Module):
    """The encoder, the keys and values of the memory, and the decoder: three functions that share no input."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source: Tensor, source_mask: Tensor, memory: Tensor, target: Tensor, memory_mask: Tensor,
        past: list[Tensor], cross: list[Tensor],
    ) -> tuple[Tensor, ...]:  # fmt: skip
        encoded = self.model.encoder.padded(source, source_mask.bool())
        read = [layer.cross_attention.read(memory) for layer in self.model.decoder.stack]
        layers: list[KeyValue] = [_GrowingKeyValue(keys, values, 0) for keys, values in _pairs(past)]
        state = DecoderState(
            memory=memory,
            memory_mask=memory_mask.bool(),
            cross=tuple(KeyValue(keys, values, 0) for keys, values in _pairs(cross)),
            past=Past([*layers]),
            position=past[0].size(2),
        )
        hidden, _ = self.model.decoder(target, state)
        head = self.model.head.plain()
        # Two dimensions make one Gemm, which reads the embedding itself if the weights are tied, not a transposed copy.
        logits = F.linear(hidden.flatten(0, 1), head["weight"], head.get("bias")).view(*hidden.shape[:2], -1)
        present = [each for layer in layers for each in (layer.keys, layer.values)]
        return encoded, *(each for layer in read for each in (layer.keys, layer.values)), logits, *present


def _pairs(tensors: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(tensors[::2], tensors[1::2], strict=True)


@torch.no_grad()
def trace(model: Transformer) -> Traced:
    """Trace a model in evaluation mode whose head is one linear map, with self-attention in its decoder."""
    width, layers = model.decoder.embedding.table.embedding_dim, len(list(model.decoder.stack))
    attention = next(iter(model.decoder.stack)).cross_attention
    heads, head_width = attention.heads, attention.output.in_features // attention.heads
    dtype = model.decoder.embedding.table.weight.dtype

    def keys(rows: int, length: int) -> list[Tensor]:
        return [torch.randn(rows, heads, length, head_width, dtype=dtype) for _ in range(2 * layers)]

    # Every dimension has another size, so that the exporter does not take two of them for one.
    arguments = (
        torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64), torch.randn(3, 6, width, dtype=dtype),
        torch.ones(7, 8, dtype=torch.int64), torch.ones(7, 9, dtype=torch.int64), keys(7, 10), keys(7, 9),
    )  # fmt: skip
    source = {0: "source_batch", 1: "source_length"}
    shapes = (
        source, source, {0: "memory_batch", 1: "memory_length"}, {0: BATCH, 1: TARGET}, {0: BATCH, 1: SOURCE},
        [{0: BATCH, 2: PAST}] * (2 * layers), [{0: BATCH, 2: SOURCE}] * (2 * layers),
    )  # fmt: skip
    inputs = ["input_ids", "attention_mask", "encoder_hidden_states", "decoder_input_ids", "encoder_attention_mask"]
    inputs += past_names(layers, "decoder") + past_names(layers, "encoder")
    outputs = ["last_hidden_state", *cross_names(layers), "logits", *past_names(layers, "decoder", "present")]
    with silenced():
        program = torch.onnx.export(
            _Parts(model).eval(),
            arguments,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=inputs,
            output_names=outputs,
            opset_version=OPSET,
            verbose=False,
            custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _attention},
        )
    assert program is not None  # without a file it returns the program
    graph = program.model.graph
    weights = {name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value}
    graph.initializers.clear()
    nodes = list(onnx_ir.to_proto(graph).node)
    return Traced(
        nodes=_without_transposed_weights(nodes, weights),
        weights=weights,
        layers=layers,
        heads=heads,
        head_width=head_width,
        width=width,
    )


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Write softmax(Q Kᵀ / √d + mask) V in seven operations; torch's own translation has fifteen."""
    op: Any = opset18
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = op.MatMul(op.Mul(query, op.Constant(value_float=factor)), op.Transpose(key, perm=[0, 1, 3, 2]))
    if attn_mask is not None:
        if attn_mask.dtype == onnx_ir.DataType.BOOL:
            least = op.Constant(value_float=float(np.finfo(np.float32).min))
            attn_mask = op.Where(attn_mask, op.Constant(value_float=0.0), least)
        scores = op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _without_transposed_weights(
    nodes: Sequence[onnx.NodeProto], weights: dict[str, NDArray[Any]]
) -> list[onnx.NodeProto]:
    """Replace transpositions of weights by transposed weights, which the exporter does only for small ones."""
    kept, used = [], {name for node in nodes if node.op_type != "Transpose" for name in node.input}
    for node in nodes:
        if node.op_type == "Transpose" and node.input[0] in weights:
            order = next((list(each.ints) for each in node.attribute if each.name == "perm"), None)
            weights[node.output[0]] = np.ascontiguousarray(weights[node.input[0]].transpose(order))
        else:
            kept.append(node)
    read = {name for node in kept for name in node.input} | used
    for name in [name for name in weights if name not in read]:
        del weights[name]
    return kept


@contextmanager
def silenced() -> Iterator[None]:
    """Suppress warnings and log messages, which in the exporter and the quantiser are about libraries."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
