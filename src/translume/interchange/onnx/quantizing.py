"""Quantise a trace to int8 with ONNX Runtime."""

import tempfile
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from translume.interchange.onnx.graphs import MAX_EMBEDDED_BYTES, Graphs
from translume.interchange.onnx.tracing import Traced, silenced


def quantized(traced: Traced) -> Traced:
    """Return the trace with int8 weights, one scale for each output, and activations quantised while it runs.

    Weights have 7 bits: on processors with AVX2 or AVX-512 and no VNNI, ONNX Runtime adds two products of 8 bits in 16
    bits, which saturates. See `onnxruntime.quantization.quantize_dynamic`.
    """
    with tempfile.TemporaryDirectory() as folder, silenced():
        whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
        graph = Graphs(traced).whole()
        graph.save(whole, traced.weights)
        large = sum(value.nbytes for value in traced.weights.values()) > MAX_EMBEDDED_BYTES
        quantize_dynamic(
            whole,
            small,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            use_external_data_format=large,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        made = onnx.load(small).graph
    return Traced(
        nodes=list(made.node),
        weights={each.name: numpy_helper.to_array(each) for each in made.initializer},
        layers=traced.layers,
        heads=traced.heads,
        head_width=traced.head_width,
        width=traced.width,
    )
