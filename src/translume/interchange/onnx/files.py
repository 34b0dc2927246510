"""Files of an ONNX export."""

FOLDER = "onnx"
"""The folder of the graphs, where transformers.js and Optimum look for them."""
SUFFIXES = {"float32": "", "int8": "_quantized"}
"""What file names end with for each format of the weights, as transformers.js expects."""


def file_name(graph: str, dtype: str) -> str:
    """Return the file name of a graph, such as "encoder_model"."""
    return f"{graph}{SUFFIXES[dtype]}.onnx"
