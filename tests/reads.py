"""Counts what a GPU would be waited for, on the CPU."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_WAITING = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select", "nonzero",
    "repeat_interleave", "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Operations whose result, or its shape, the host must know."""


class Reads(TorchDispatchMode):
    """Records reads of tensors by the host in a block, and all operations with their shapes.

    reads: names of the operations or methods.  operations: (name, shapes of results).
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.operations: list[tuple[str, tuple[object, ...]]] = []
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Reads":
        for name in ("tolist", "numpy", "cpu"):
            self._patch.setattr(Tensor, name, self._recorded(name, getattr(Tensor, name)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.undo()

    def _recorded(self, name: str, method: Any) -> Any:
        def read(*given: Any, **options: Any) -> Any:
            self.reads.append(name)
            return method(*given, **options)

        return read

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        masks = [each for each in args[1] if each is not None] if name in ("index", "index_put", "index_put_") else []
        if (name in _WAITING and func._overloadname != "self_int") or any(each.dtype == torch.bool for each in masks):
            self.reads.append(name)
        results = result if isinstance(result, tuple | list) else (result,)
        self.operations.append((name, tuple(each.shape for each in results if isinstance(each, Tensor))))
        return result
