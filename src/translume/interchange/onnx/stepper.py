"""Decoding steps by ONNX Runtime, from the files of an ONNX export."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as runtime
from torch import Tensor

from translume.belief import Logits, NextToken
from translume.errors import ModelFolderError, expect_file

FOLDER = "onnx"
"""The folder of the graphs, where transformers.js and Optimum look for them."""
SUFFIXES = {"float32": "", "int8": "_quantized"}
"""What file names end with for each format of the weights, as transformers.js expects."""
Array = NDArray[Any]
_ERRORS = (
    runtime.Fail, runtime.InvalidArgument, runtime.InvalidGraph, runtime.InvalidProtobuf, runtime.NotImplemented,
    runtime.RuntimeException,
)  # fmt: skip
"""What ONNX Runtime raises for a damaged file; these classes have no base class of their own."""


def file_name(graph: str, dtype: str) -> str:
    """Return the file name of a graph, such as "encoder_model"."""
    return f"{graph}{SUFFIXES[dtype]}.onnx"


def open_session(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """Return an ONNX Runtime session on the CPU.

    threads: None uses as many as torch. Raises ModelFolderError for a missing file or one that cannot be read.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3
    expect_file(path, "one as `translume export … onnx` writes it")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except _ERRORS as error:
        raise ModelFolderError(f"{path}: not a model that ONNX Runtime reads: {str(error).splitlines()[0]}") from None


@dataclass(frozen=True, slots=True, eq=False)
class OnnxState:
    """The state of N rows of a search.

    memory: [B, S, D].  mask: [N, S].  past: by name, the keys and values of target and memory, [N, H, …, D/H]; empty
    before the first step.  owners: [N], the sentence of each row.  position: target tokens read so far.
    """

    memory: Array
    mask: Array
    past: dict[str, Array]
    owners: Array
    position: int = 0

    def branch(self) -> "OnnxState":
        """Return this state, which steps leave usable."""
        return self

    def select(self, rows: Tensor) -> "OnnxState":
        """Return the state of rows [M]; the memory's keys and values are copied only if the rows' sentences change."""
        index = rows.cpu().numpy()
        owners = self.owners[index]
        same = np.array_equal(owners, self.owners)
        past = {
            name: value if same and ".encoder." in name else np.take(value, index, 0)
            for name, value in self.past.items()
        }
        # The memory is read before the first step only.
        memory = np.take(self.memory, index, 0) if not self.past else self.memory
        mask = self.mask if same else np.take(self.mask, index, 0)
        return replace(self, memory=memory, mask=mask, past=past, owners=owners)


class OnnxStepper:
    """Encodes sources and takes decoding steps with the encoder and the merged decoder of an export.

    Without `start_with_attention`: a search with a coverage penalty uses the plain model.
    """

    def __init__(self, folder: Path | str, *, threads: int | None = None) -> None:
        """folder: of the export.  threads: of ONNX Runtime; None uses as many as torch."""
        self._made_by = (Path(folder).absolute(), threads)
        files = Path(folder) / FOLDER
        quantized = not (files / file_name("encoder_model", "float32")).exists()
        dtype = "int8" if quantized else "float32"
        self._encoder = open_session(files / file_name("encoder_model", dtype), threads)
        self._decoder = open_session(files / file_name("decoder_model_merged", dtype), threads)
        self._outputs = [each.name for each in self._decoder.get_outputs()]
        self._past = {
            each.name: each.shape for each in self._decoder.get_inputs() if each.name.startswith("past_key_values.")
        }

    def __reduce__(self) -> tuple[Any, ...]:
        folder, threads = self._made_by
        return partial(OnnxStepper, threads=threads), (folder,)

    def start(self, source: Tensor, mask: Tensor) -> OnnxState:
        """Return the state before the first target token of sources [B, S], read where mask [B, S] is True."""
        allowed = mask.cpu().numpy().astype(np.int64)
        (memory,) = self._encoder.run(None, {"input_ids": source.cpu().numpy(), "attention_mask": allowed})
        return OnnxState(memory, allowed, {}, np.arange(len(allowed)))

    def step(self, prefix: Tensor, state: OnnxState) -> tuple[NextToken, OnnxState]:
        """Return the distribution of the token after prefix [N, 1 + t]. Reads only tokens that are not in the state."""
        logits, state = self.read(prefix[:, state.position :].cpu().numpy(), state)
        return Logits(torch.from_numpy(logits[:, -1]).to(prefix.device)), state

    def read(self, ids: Array, state: OnnxState) -> tuple[Array, OnnxState]:
        """Read the next t target ids [N, t]; return logits [N, t, V] and the new state."""
        rows = len(ids)
        past = state.past or {name: _empty(rows, shape) for name, shape in self._past.items()}
        inputs = {
            "input_ids": ids,
            "encoder_attention_mask": state.mask,
            "encoder_hidden_states": state.memory,
            "use_cache_branch": np.array([bool(state.past)]),
            **past,
        }
        logits, *present = self._decoder.run(self._outputs, inputs)
        names = [name.replace("present", "past_key_values", 1) for name in self._outputs[1:]]
        return logits, replace(
            state, past=dict(zip(names, present, strict=True)), position=state.position + ids.shape[1]
        )


def _empty(rows: int, shape: Sequence[int | str]) -> Array:
    """Return keys or values of no tokens.  shape: rows, heads, length, width; a dimension without a size has a name."""
    return np.zeros((rows, int(shape[1]), 0, shape[3] if isinstance(shape[3], int) else 1), np.float32)
