"""Trace a model's encoder and decoder as one ONNX graph, and assemble the graphs of an export from its operations."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper
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
IR_VERSION = 10
"""The version of the file format, which ONNX Runtime 1.18 and later read."""
MAX_EMBEDDED_BYTES = 1_500_000_000
"""Weights above this size are written beside the graph, since an ONNX file is limited to 2 GiB."""
SMALL_BYTES = 1024
"""Weights up to this size are always in the graph, since ONNX Runtime reads shapes and axes there."""

Array = NDArray[Any]
Shape = Sequence[str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The operations of encoder and decoder, and their weights by name.

    From input_ids and attention_mask: last_hidden_state.  From encoder_hidden_states: cross.I.key and cross.I.value of
    each layer I.  From decoder_input_ids, encoder_attention_mask and past_key_values.I.PART.KIND, where PART is decoder
    or encoder, and KIND is key or value: logits and present.I.decoder.KIND.
    layers, heads, head_width: of the decoder.  width: D.
    """

    nodes: Sequence[NodeProto]
    weights: dict[str, Array]
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
    return Traced(
        nodes=_without_transposed_weights(list(onnx_ir.to_proto(graph).node), weights),
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


def _without_transposed_weights(nodes: Sequence[NodeProto], weights: dict[str, Array]) -> list[NodeProto]:
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


def save_graph(graph: GraphProto, path: Path, weights: Mapping[str, Array]) -> None:
    """Write a graph and the weights that it reads; large weights into a second file, PATH_data."""
    read = {name: weights[name] for name in _names_read(graph) if name in weights}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in read.items())
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], producer_name="translume", ir_version=IR_VERSION)
    large = sum(value.nbytes for value in read.values()) > MAX_EMBEDDED_BYTES
    onnx.save_model(
        model, path, save_as_external_data=large, location=f"{path.name}_data", size_threshold=SMALL_BYTES + 1
    )


def _names_read(graph: GraphProto) -> dict[str, None]:
    """Return the names that a graph and the graphs in its operations read, in order."""
    names: dict[str, None] = {}
    for node in graph.node:
        names |= dict.fromkeys(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                names |= _names_read(attribute.g)
    return names | dict.fromkeys(each.name for each in graph.output)


class Graphs:
    """The graphs of one trace.  weights: those of the trace, and constants."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self.weights = traced.weights | {"none/shape": np.array([traced.heads, 0, traced.head_width], np.int64)}
        self._layers = traced.layers
        self._past, self._memory = past_names(traced.layers, "decoder"), past_names(traced.layers, "encoder")
        self._present = past_names(traced.layers, "decoder", "present")
        self._present_memory = past_names(traced.layers, "encoder", "present")
        self._encoder = self._part(["input_ids", "attention_mask"], ["last_hidden_state"], "encoder")
        self._cross = self._part(["encoder_hidden_states"], cross_names(traced.layers), "cross")
        read = ["decoder_input_ids", "encoder_attention_mask", *self._past, *self._memory]
        self._decoder = self._part(read, ["logits", *self._present], "decoder")
        heads = traced.heads
        # The dimension has a name where config.json cannot express it, since Optimum's empty past has another.
        width = traced.head_width if heads * traced.head_width == traced.width else "head_width"
        self._shapes: dict[str, Shape] = {
            "input_ids": (BATCH, SOURCE),
            "attention_mask": (BATCH, SOURCE),
            "last_hidden_state": (BATCH, SOURCE, traced.width),
            "encoder_hidden_states": (BATCH, SOURCE, traced.width),
            "encoder_attention_mask": (BATCH, SOURCE),
            "decoder_input_ids": (BATCH, TARGET),
            "logits": (BATCH, TARGET, "vocabulary"),
            **dict.fromkeys(self._past, (BATCH, heads, PAST, width)),
            **dict.fromkeys(self._memory, (BATCH, heads, SOURCE, width)),
            **dict.fromkeys(self._present, (BATCH, heads, f"{PAST} + {TARGET}", width)),
            **dict.fromkeys([*cross_names(self._layers), *self._present_memory], (BATCH, heads, SOURCE, width)),
            "use_cache_branch": (1,),
            "max_length": ("limits",),
            "ids": (BATCH, "target_length"),
        }

    def whole(self) -> GraphProto:
        """Return the whole trace: its three parts side by side."""
        inputs = ["input_ids", "attention_mask", "encoder_hidden_states", "decoder_input_ids", "encoder_attention_mask"]
        outputs = ["last_hidden_state", *cross_names(self._layers), "logits", *self._present]
        return self._graph("whole", self._traced.nodes, [*inputs, *self._past, *self._memory], outputs)

    def encoder(self) -> GraphProto:
        """input_ids, attention_mask → last_hidden_state."""
        return self._graph("encoder_model", self._encoder, ["input_ids", "attention_mask"], ["last_hidden_state"])

    def decoder(self) -> GraphProto:
        """The first tokens: encoder_attention_mask, input_ids, encoder_hidden_states → logits, present.*."""
        nodes = [
            *_renamed(self._cross, dict(zip(cross_names(self._layers), self._memory, strict=True))),
            *self._empty(self._past, "decoder_input_ids"),
            *self._decoder,
            *self._copies(self._memory, self._present_memory),
        ]
        return self._decoder_graph("decoder_model", nodes, [])

    def decoder_with_past(self) -> GraphProto:
        """Later tokens: encoder_attention_mask, input_ids, past_key_values.* → logits, present.*.decoder.*."""
        return self._decoder_graph("decoder_with_past_model", self._decoder, self._every(self._past, self._memory))

    def merged(self) -> GraphProto:
        """Both in one graph: without `use_cache_branch` the past is ignored and the memory's keys are computed."""
        chosen = [f"chosen/{name}" for name in (*self._past, *self._memory)]
        kept = [f"kept/{name}" for name in (*self._past, *self._memory)]
        made = [f"made/{name}" for name in self._past] + cross_names(self._layers)
        later = helper.make_graph(
            self._copies([*self._past, *self._memory], kept), "with_past", [], [_value(name) for name in kept]
        )
        first = helper.make_graph(
            [*self._empty(made[: len(self._past)], "input_ids"), *self._cross],
            "without_past",
            [],
            [_value(name) for name in made],
        )
        branch = helper.make_node(
            "If", ["use_cache_branch"], chosen, "choose_past", then_branch=later, else_branch=first
        )
        nodes = [
            branch,
            *_renamed(self._decoder, dict(zip((*self._past, *self._memory), chosen, strict=True))),
            *self._copies(chosen[len(self._past) :], self._present_memory),
        ]
        return self._decoder_graph("decoder_model_merged", nodes, self._every(self._past, self._memory), merged=True)

    def greedy(
        self, *, bos: int, eos: int, pad: int, banned: Sequence[int], vocabulary: int, tags: int = 0
    ) -> GraphProto:
        """Greedy search: input_ids, attention_mask, max_length → ids.

        ids: [B, T], each target's tokens, with eos if it ended, then pad.
        max_length: [1] or [B], the maximum number of tokens, eos counted, of all targets or of each.
        banned: tokens that are never chosen.
        tags: the number of tokens between bos and each target; then target_tags [B, tags] is a fourth input.
        """
        forbidden = np.zeros(vocabulary, dtype=np.float32)
        forbidden[list(banned)] = -np.inf
        carried = ["done", "token", *self._past]
        body = [
            *_renamed(self._decoder, {"decoder_input_ids": "token", "encoder_attention_mask": "attention_mask"}),
            helper.make_node("Gather", ["logits", "search/last"], ["search/logits"], axis=1),
            helper.make_node("Add", ["search/logits", "search/forbidden"], ["search/allowed"]),
            helper.make_node("ArgMax", ["search/allowed"], ["search/best"], axis=-1, keepdims=0),
            helper.make_node("Where", ["done", "search/pad", "search/best"], ["search/chosen"]),
            helper.make_node("Equal", ["search/best", "search/eos"], ["search/ended"]),
            helper.make_node("Add", ["step", "search/one"], ["search/length"]),
            helper.make_node("GreaterOrEqual", ["search/length", "max_length"], ["search/full"]),
            helper.make_node("Or", ["search/ended", "search/full"], ["search/over"]),
            helper.make_node("Or", ["done", "search/over"], ["search/done"]),
            helper.make_node("Cast", ["search/done"], ["search/counted"], to=TensorProto.INT32),
            helper.make_node("ReduceMin", ["search/counted"], ["search/least"], keepdims=0),
            helper.make_node("Equal", ["search/least", "search/zero"], ["search/more"]),
            helper.make_node("Unsqueeze", ["search/chosen", "search/axis"], ["search/token"]),
            helper.make_node("Identity", ["search/chosen"], ["search/scanned"]),
        ]
        outputs = ["search/more", "search/done", "search/token", *self._present, "search/scanned"]
        types = {"done": TensorProto.BOOL, "token": TensorProto.INT64}
        loop = helper.make_graph(
            body,
            "step",
            [
                helper.make_tensor_value_info("step", TensorProto.INT64, []),
                helper.make_tensor_value_info("more", TensorProto.BOOL, []),
                *(helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in carried),
            ],
            [_value(name) for name in outputs],
        )
        cross = dict(zip(cross_names(self._layers), self._memory, strict=True))
        begin = "search/begin" if tags else "search/bos_column"
        starts = ["search/not_done", begin, *(f"none/{name}" for name in self._past)]
        nodes = [
            *self._encoder,
            *_renamed(self._cross, {"encoder_hidden_states": "last_hidden_state", **cross}),
            *self._empty(starts[2:], "input_ids"),
            helper.make_node("Shape", ["input_ids"], ["search/batch"], start=0, end=1),
            helper.make_node("ConstantOfShape", ["search/batch"], ["search/not_done"], value=_scalar(False, np.bool_)),
            helper.make_node("Concat", ["search/batch", "search/axis"], ["search/column"], axis=0),
            helper.make_node("ConstantOfShape", ["search/column"], ["search/bos_column"], value=_scalar(bos, np.int64)),
            *([helper.make_node("Concat", ["search/bos_column", "target_tags"], [begin], axis=1)] if tags else []),
            helper.make_node("ReduceMax", ["max_length"], ["search/longest"], keepdims=0),
            helper.make_node(
                "Loop",
                ["search/longest", "search/true", *starts],
                [*(f"end/{name}" for name in carried), "search/columns"],
                body=loop,
            ),
            helper.make_node("Transpose", ["search/columns"], ["ids"], perm=[1, 0]),
        ]
        self._shapes["target_tags"] = (BATCH, tags)
        self.weights |= {
            "search/last": np.array(-1, np.int64),
            "search/forbidden": forbidden,
            "search/pad": np.array(pad, np.int64),
            "search/eos": np.array(eos, np.int64),
            "search/one": np.array(1, np.int64),
            "search/zero": np.array(0, np.int32),
            "search/axis": np.array([1], np.int64),
            "search/true": np.array(True),
        }
        inputs = ["input_ids", "attention_mask", "max_length", *(["target_tags"] if tags else [])]
        return self._graph("translate", nodes, inputs, ["ids"])

    def _part(self, inputs: Sequence[str], outputs: Sequence[str], name: str) -> list[NodeProto]:
        """Return the operations that compute the outputs from the inputs, with names of their own."""
        by_output = {output: node for node in self._traced.nodes for output in node.output}
        needed: set[str] = set()
        open_names = list(outputs)
        while open_names:
            value = open_names.pop()
            if value in needed or value in inputs or value in self._traced.weights or not value:
                continue
            needed.add(value)
            open_names += by_output[value].input
        nodes = [node for node in self._traced.nodes if needed & set(node.output)]
        own = {output for node in nodes for output in node.output} - set(outputs)
        return _renamed(nodes, {value: f"{name}/{value}" for value in own})

    def _decoder_graph(
        self, name: str, nodes: Sequence[NodeProto], past: Sequence[str], *, merged: bool = False
    ) -> GraphProto:
        """Return a graph of the decoder, with the names that Optimum and transformers.js expect."""
        inputs, outputs = ["encoder_attention_mask", "input_ids"], ["logits", *self._present]
        if merged or not past:
            inputs.append("encoder_hidden_states")
            outputs = ["logits", *self._every(self._present, self._present_memory)]
        inputs += [*past, *(["use_cache_branch"] if merged else [])]
        return self._graph(name, _renamed(nodes, {"decoder_input_ids": "input_ids"}), inputs, outputs, ids=TARGET)

    def _graph(
        self, name: str, nodes: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str], ids: str = SOURCE
    ) -> GraphProto:
        """Return a graph.  ids: the name of the length of `input_ids`."""
        shapes = self._shapes | {"input_ids": (BATCH, ids)}

        def described(value: str) -> onnx.ValueInfoProto:
            integers = value.endswith(("ids", "attention_mask", "max_length", "target_tags"))
            kind = TensorProto.INT64 if integers else TensorProto.FLOAT
            kind = TensorProto.BOOL if value == "use_cache_branch" else kind
            return helper.make_tensor_value_info(value, kind, shapes[value])

        return helper.make_graph(nodes, name, [*map(described, inputs)], [*map(described, outputs)])

    def _empty(self, names: Sequence[str], ids: str) -> list[NodeProto]:
        """Return operations that make keys and values of no tokens, for as many rows as `ids` has."""
        own = names[0]
        return [
            helper.make_node("Shape", [ids], [f"rows/{own}"], start=0, end=1),
            helper.make_node("Concat", [f"rows/{own}", "none/shape"], [f"shape/{own}"], axis=0),
            *(
                helper.make_node("ConstantOfShape", [f"shape/{own}"], [name], value=_scalar(0.0, np.float32))
                for name in names
            ),
        ]

    @staticmethod
    def _copies(names: Sequence[str], copies: Sequence[str]) -> list[NodeProto]:
        return [helper.make_node("Identity", [name], [copy]) for name, copy in zip(names, copies, strict=True)]

    @staticmethod
    def _every(target: Sequence[str], memory: Sequence[str]) -> list[str]:
        """Return names layer by layer: the target's key and value, the memory's key and value."""
        pairs = zip(target[::2], target[1::2], memory[::2], memory[1::2], strict=True)
        return [name for layer in pairs for name in layer]


def _renamed(nodes: Iterable[NodeProto], names: Mapping[str, str]) -> list[NodeProto]:
    """Return copies of operations with other names of values, also in the graphs inside them."""
    copies = []
    for node in nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = ""
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        for attribute in copy.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = _renamed(attribute.g.node, names)
                del attribute.g.node[:]
                attribute.g.node.extend(inner)
        copies.append(copy)
    return copies


def _value(name: str) -> onnx.ValueInfoProto:
    """Return the description of an inner graph's output, whose type follows from its operations."""
    return onnx.ValueInfoProto(name=name)


def _scalar(value: float, dtype: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([value], dtype))
