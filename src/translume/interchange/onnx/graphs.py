"""Assemble the graphs of an ONNX export from the operations of a trace."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from translume.interchange.onnx.tracing import (
    BATCH,
    OPSET,
    PAST,
    SOURCE,
    TARGET,
    Traced,
    cross_names,
    past_names,
)

IR_VERSION = 10
"""The version of the file format, which ONNX Runtime 1.18 and later read."""
MAX_EMBEDDED_BYTES = 1_500_000_000
"""Weights above this size are written beside the graph, since an ONNX file is limited to 2 GiB."""

Weights = Mapping[str, NDArray[Any]]
Shape = Sequence[str | int]

SMALL_BYTES = 1024
"""Weights up to this size are always in the graph, since ONNX Runtime reads shapes and axes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """An ONNX graph without its weights, which are those of the trace and the constants of `constants`."""

    graph: onnx.GraphProto
    constants: Weights

    def save(self, path: Path, weights: Weights) -> None:
        """Write the graph and the weights that it reads; large weights into a second file, PATH_data."""
        model = helper.make_model(
            self.graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name="translume",
            ir_version=IR_VERSION,
        )
        known = {**weights, **self.constants}
        read = {name: known[name] for name in _read_by(self.graph) if name in known}
        large = {}
        if sum(value.nbytes for value in read.values()) > MAX_EMBEDDED_BYTES:
            large = {name: value for name, value in read.items() if value.nbytes > SMALL_BYTES}
            model.graph.initializer.extend(_external(large, path.with_name(path.name + "_data")))
        small = ((name, value) for name, value in read.items() if name not in large)
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in small)
        path.write_bytes(model.SerializeToString())


def _external(weights: Weights, path: Path) -> Iterable[onnx.TensorProto]:
    with path.open("wb") as file:
        for name, value in weights.items():
            tensor = TensorProto(name=name, dims=value.shape, data_location=TensorProto.EXTERNAL)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(value.dtype)
            file.write(b"\0" * (-file.tell() % 4096))
            for key, entry in (("location", path.name), ("offset", file.tell()), ("length", value.nbytes)):
                tensor.external_data.add(key=key, value=str(entry))
            file.write(np.ascontiguousarray(value).tobytes())
            yield tensor


def _read_by(graph: onnx.GraphProto) -> dict[str, None]:
    """Return the names that a graph and the graphs in its operations read, in order."""
    names: dict[str, None] = {}
    for node in graph.node:
        names |= dict.fromkeys(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                names |= _read_by(attribute.g)
    return names | dict.fromkeys(each.name for each in graph.output)


class Graphs:
    """The graphs of one trace."""

    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._layers = traced.layers
        self._past, self._memory = past_names(traced.layers, "decoder"), past_names(traced.layers, "encoder")
        self._present = past_names(traced.layers, "decoder", "present")
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
        }

    def whole(self) -> Graph:
        """Return the whole trace: its three parts side by side."""
        inputs = ["input_ids", "attention_mask", "encoder_hidden_states", "decoder_input_ids", "encoder_attention_mask"]
        outputs = ["last_hidden_state", *cross_names(self._layers), "logits", *self._present]
        cross = dict.fromkeys(cross_names(self._layers), self._shapes[self._memory[0]])
        shapes = self._shapes | cross
        graph = helper.make_graph(
            self._traced.nodes,
            "whole",
            [self._info(each, shapes[each]) for each in (*inputs, *self._past, *self._memory)],
            [self._info(each, shapes[each]) for each in outputs],
        )
        return Graph(graph=graph, constants={})

    def encoder(self) -> Graph:
        """input_ids, attention_mask → last_hidden_state."""
        return self._graph("encoder_model", self._encoder, ["input_ids", "attention_mask"], ["last_hidden_state"])

    def decoder(self) -> Graph:
        """The first tokens: encoder_attention_mask, input_ids, encoder_hidden_states → logits, present.*."""
        nodes = [
            *_renamed(self._cross, dict(zip(cross_names(self._layers), self._memory, strict=True))),
            *self._empty(self._past, "decoder_input_ids"),
            *self._decoder,
            *self._copies(self._memory, past_names(self._layers, "encoder", "present")),
        ]
        return self._decoder_graph("decoder_model", nodes, [])

    def decoder_with_past(self) -> Graph:
        """Later tokens: encoder_attention_mask, input_ids, past_key_values.* → logits, present.*.decoder.*."""
        return self._decoder_graph("decoder_with_past_model", self._decoder, self._every(self._past, self._memory))

    def merged(self) -> Graph:
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
        names = dict(zip((*self._past, *self._memory), chosen, strict=True))
        nodes = [
            branch,
            *_renamed(self._decoder, names),
            *self._copies(chosen[len(self._past) :], past_names(self._layers, "encoder", "present")),
        ]
        return self._decoder_graph("decoder_model_merged", nodes, self._every(self._past, self._memory), merged=True)

    def greedy(self, *, bos: int, eos: int, pad: int, banned: Sequence[int], vocabulary: int, tags: int = 0) -> Graph:
        """Greedy search: input_ids, attention_mask, max_length → ids.

        ids: [B, T], each target's tokens, with eos if it ended, then pad.
        max_length: [1] or [B], the maximum number of tokens, eos counted, of all targets or of each.
        banned: tokens that are never chosen.
        tags: the number of tokens between bos and each target; then target_tags [B, tags] is a fourth input.
        """
        forbidden = np.zeros(vocabulary, dtype=np.float32)
        forbidden[list(banned)] = -np.inf
        carried = ["done", "token", *self._past]
        inside = {"decoder_input_ids": "token", "encoder_attention_mask": "attention_mask"}
        body = [
            *_renamed(self._decoder, inside),
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
        inputs: dict[str, Shape] = {
            "input_ids": (BATCH, SOURCE),
            "attention_mask": (BATCH, SOURCE),
            "max_length": ("limits",),
        }
        if tags:
            inputs["target_tags"] = (BATCH, tags)
        graph = helper.make_graph(
            nodes,
            "translate",
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info("ids", TensorProto.INT64, (BATCH, "target_length"))],
        )
        constants: dict[str, NDArray[Any]] = {
            "search/last": np.array(-1, np.int64),
            "search/forbidden": forbidden,
            "search/pad": np.array(pad, np.int64),
            "search/eos": np.array(eos, np.int64),
            "search/one": np.array(1, np.int64),
            "search/zero": np.array(0, np.int32),
            "search/axis": np.array([1], np.int64),
            "search/true": np.array(True),
        }
        return Graph(graph=graph, constants={**constants, **self._constants()})

    def _part(self, inputs: Sequence[str], outputs: Sequence[str], name: str) -> list[onnx.NodeProto]:
        """Return the operations that compute the outputs from the inputs, with names of their own."""
        by_output = {output: node for node in self._traced.nodes for output in node.output}
        needed: set[str] = set()
        open_names = list(outputs)
        while open_names:
            each = open_names.pop()
            if each in needed or each in inputs or each in self._traced.weights or not each:
                continue
            needed.add(each)
            open_names += by_output[each].input
        nodes = [node for node in self._traced.nodes if needed & set(node.output)]
        own = {output for node in nodes for output in node.output} - set(outputs)
        return _renamed(nodes, {each: f"{name}/{each}" for each in own})

    def _decoder_graph(
        self, name: str, nodes: Sequence[onnx.NodeProto], past: Sequence[str], *, merged: bool = False
    ) -> Graph:
        """Return a graph of the decoder, with the names that Optimum and transformers.js expect."""
        inputs = ["encoder_attention_mask", "input_ids"]
        outputs = ["logits", *self._present]
        if merged or not past:
            inputs.append("encoder_hidden_states")
            outputs = ["logits", *self._every(self._present, past_names(self._layers, "encoder", "present"))]
        shapes = dict(self._shapes) | {"input_ids": (BATCH, TARGET)}
        for name_of_memory in past_names(self._layers, "encoder", "present"):
            shapes[name_of_memory] = self._shapes[self._memory[0]]
        infos = [self._info(each, shapes[each]) for each in (*inputs, *past)]
        if merged:
            infos.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, (1,)))
        graph = helper.make_graph(
            _renamed(nodes, {"decoder_input_ids": "input_ids"}),
            name,
            infos,
            [self._info(each, shapes[each]) for each in outputs],
        )
        return Graph(graph=graph, constants=self._constants())

    def _graph(
        self, name: str, nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str]
    ) -> Graph:
        made = helper.make_graph(
            nodes,
            name,
            [self._info(each, self._shapes[each]) for each in inputs],
            [self._info(each, self._shapes[each]) for each in outputs],
        )
        return Graph(graph=made, constants={})

    @staticmethod
    def _info(name: str, shape: Shape) -> onnx.ValueInfoProto:
        whole = name.endswith(("input_ids", "attention_mask"))
        return helper.make_tensor_value_info(name, TensorProto.INT64 if whole else TensorProto.FLOAT, shape)

    def _constants(self) -> dict[str, NDArray[Any]]:
        return {"none/shape": np.array([self._traced.heads, 0, self._traced.head_width], np.int64)}

    def _empty(self, names: Sequence[str], ids: str) -> list[onnx.NodeProto]:
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
    def _copies(names: Sequence[str], copies: Sequence[str]) -> list[onnx.NodeProto]:
        return [helper.make_node("Identity", [name], [copy]) for name, copy in zip(names, copies, strict=True)]

    @staticmethod
    def _every(target: Sequence[str], memory: Sequence[str]) -> list[str]:
        """Return names layer by layer: the target's key and value, the memory's key and value."""
        pairs = zip(target[::2], target[1::2], memory[::2], memory[1::2], strict=True)
        return [name for layer in pairs for name in layer]


def _renamed(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> list[onnx.NodeProto]:
    """Return copies of operations with other names of values, also in the graphs inside them."""
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
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
