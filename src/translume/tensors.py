"""The operations of torch that searches use, on NumPy arrays: `translume.lazy.torch` where torch is not installed.

Names, arguments and results are torch's. So the decoding loop, its strategies and its rules are written once, for GPUs,
the plain model and machines without torch. What is not here needs torch.
"""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]


def _computed(self: Any, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
    """Return fp64 for fp64 only, where NumPy also returns it for int64; do not warn of infinities."""
    inputs = tuple(map(_plain, inputs))
    with np.errstate(all="ignore"):
        result = getattr(ufunc, method)(*inputs, **options)
    if out and out[0] is not None:
        np.copyto(_plain(out[0]), result, casting="same_kind")
        return out[0]
    doubles = any(isinstance(each, np.ndarray | np.generic) and each.dtype == np.float64 for each in inputs)
    return _tensors(result.astype(np.float32) if result.dtype == np.float64 and not doubles else result)


class Tensor(np.ndarray):
    """An array with the methods of `METHODS`."""

    device: None = None  # type: ignore[assignment]  # NumPy's is "cpu"
    is_cpu, requires_grad = True, False
    __array_ufunc__ = _computed


class Pair(NamedTuple):
    """What sorting returns."""

    values: Any
    indices: Any


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, Tensor) else value


def _tensors(values: Any) -> Any:
    if isinstance(values, tuple):
        return Pair(*map(_tensors, values)) if isinstance(values, Pair) else tuple(map(_tensors, values))
    return np.asarray(values).view(Tensor) if isinstance(values, np.ndarray | np.generic) else values


def _on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of arrays as one of tensors."""

    def _called(*values: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return _tensors(function(*map(_plain, values), **{name: _plain(each) for name, each in options.items()}))

    return _called


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes


def _tensor(data: Any, dtype: Any = None, device: None = None) -> Array:
    made = np.array(data, dtype)
    return made.astype(np.float32) if dtype is None and made.dtype == np.float64 else made


def _filled(value: float, kind: Any = np.float32) -> Callable[..., Array]:
    return lambda *sizes, dtype=kind, device=None: np.full(_shape(sizes), value, dtype)


def _to(x: Array, kind: Any = None) -> Array:
    return x if kind is None else x.astype(kind, copy=False)


def _flatten(x: Array, start: int = 0, end: int = -1) -> Array:
    end %= x.ndim
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _expand(x: Array, *sizes: Any) -> Array:
    sizes = _shape(sizes)
    own = (*[1] * (len(sizes) - x.ndim), *x.shape)
    return np.broadcast_to(x, [there if size == -1 else size for size, there in zip(sizes, own, strict=True)])


def _sort(x: Array, dim: int = -1, descending: Any = False, stable: Any = True) -> Pair:
    places = np.argsort(np.flip(x, dim) if descending else x, dim, kind="stable")
    places = x.shape[dim] - 1 - np.flip(places, dim) if descending else places
    return Pair(np.take_along_axis(x, places, dim), places)


def _topk(x: Array, k: int, dim: int = -1, **_: Any) -> Pair:
    whole = k == x.shape[dim]
    some = np.broadcast_to(np.arange(k), x.shape) if whole else np.argpartition(-x, k - 1)[..., :k]
    values, order = _sort(np.take_along_axis(x, some, -1), descending=True)
    return Pair(values, np.take_along_axis(some, order, -1))


def _max(x: Array, dim: int | None = None, keepdim: Any = False) -> Any:
    return x.max() if dim is None else Pair(x.max(dim, keepdims=keepdim), x.argmax(dim, keepdims=keepdim))


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim=None, keepdim=False: function(x, axis=dim, keepdims=keepdim)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def _changed(x: Array, *rest: Any, **options: Any) -> Array:
        np.copyto(x, function(x, *rest, **options))
        return x

    return _changed


def _log_softmax(x: Array, dim: int) -> Any:
    x = x - x.max(dim, keepdims=True)
    return x - np.log(np.exp(x).sum(dim, keepdims=True))


def _added(x: Array, places: Any, values: Array) -> Array:
    np.add.at(x, places, values)
    return x


def _put(x: Array, dim: int, places: Array, source: Any = None, value: Any = None) -> Array:
    np.put_along_axis(x, places, value if source is None else source, dim)
    return x


def _copied(x: Array, places: Array, source: Array) -> Array:
    x = x.copy()
    x[places] = source
    return x


def _pad(x: Array, widths: Any, value: Any = 0) -> Array:
    pairs = [*zip(widths[::2], widths[1::2], strict=True)]
    return np.pad(x, [*[(0, 0)] * (x.ndim - len(pairs)), *pairs[::-1]], constant_values=value)


def _searchsorted(ordered: Array, values: Array, right: Any = False) -> Array:
    side: Any = "right" if right else "left"
    if ordered.ndim == 1:
        return np.searchsorted(ordered, values, side)
    return np.stack([np.searchsorted(*row, side) for row in zip(ordered, values, strict=True)])


_KINDS = {"float": np.float32, "double": np.float64, "long": np.int64, "byte": np.uint8, "bool": np.bool_}
_ALONE = {
    **{name: getattr(np, name) for name in ("abs", "exp", "expm1", "isfinite", "isnan", "log", "log1p", "maximum")},
    **{name: getattr(np, name) for name in ("add", "bitwise_and", "bitwise_xor", "logical_and", "minimum")},
    "neg": np.negative,
    "mul": np.multiply,
    "isneginf": lambda x: x == -math.inf,
    "clamp": lambda x, min=None, max=None: np.clip(x, min, max),
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "masked_fill": lambda x, mask, value: np.where(mask, x.dtype.type(value), x),
}
"""Operations on each element; with "_" at the end of the name, in place."""
METHODS: dict[str, Callable[..., Any]] = {
    **_ALONE,
    **{f"{name}_": _in_place(function) for name, function in _ALONE.items()},
    **{name: _reduced(getattr(np, name)) for name in ("all", "any", "sum", "mean", "argmax", "amax", "amin")},
    **{name: lambda x: x for name in ("contiguous", "cpu", "detach")},
    **dict.fromkeys(("view", "reshape"), lambda x, *sizes: x.reshape(_shape(sizes))),
    **{name: partial(_to, kind=kind) for name, kind in _KINDS.items()},
    "to": _to,
    "size": lambda x, dim=None: x.shape if dim is None else x.shape[dim],
    "dim": lambda x: x.ndim,
    "numel": lambda x: x.size,
    "is_contiguous": lambda x: True,
    "flatten": _flatten,
    "expand": _expand,
    "expand_as": lambda x, other: np.broadcast_to(x, other.shape),
    "transpose": np.swapaxes,
    "repeat": lambda x, *sizes: np.tile(x, sizes),
    "repeat_interleave": np.repeat,
    "unfold": lambda x, dim, size, step: sliding_window_view(x, size, dim),
    "tril": np.tril,
    "diff": lambda x, dim: np.diff(x, axis=dim),
    "cumsum": np.cumsum,
    "cumprod": np.cumprod,
    "cummax": lambda x, dim: Pair(np.maximum.accumulate(x, dim), None),
    "sort": _sort,
    "argsort": lambda x, **options: _sort(x, **options).indices,
    "topk": _topk,
    "max": _max,
    "log_softmax": _log_softmax,
    "logsumexp": lambda x, dim, keepdim=False: np.logaddexp.reduce(x, dim, keepdims=keepdim),
    "logcumsumexp": np.logaddexp.accumulate,
    "nonzero": lambda x, as_tuple=False: x.nonzero() if as_tuple else np.argwhere(x),
    "bincount": np.bincount,
    "gather": lambda x, dim, places: np.take_along_axis(x, places, dim),
    "index_select": lambda x, dim, places: x.take(places, dim),
    "index_add_": lambda x, dim, places, values: _added(x, places, values),
    "index_put": lambda x, places, values, accumulate: _added(x.copy(), tuple(map(_plain, places)), values),
    "index_copy": lambda x, dim, places, source: _copied(x, places, source),
    "scatter_": _put,
    **dict.fromkeys(
        ("new_empty", "new_zeros"), lambda x, *sizes, dtype=None: np.zeros(_shape(sizes), dtype or x.dtype)
    ),
    "new_full": lambda x, sizes, value, dtype=None: np.full(sizes, value, dtype or x.dtype),
}
for _name, _method in METHODS.items():
    setattr(Tensor, _name, _on_arrays(_method))
setattr(Tensor, "numpy", lambda self: np.asarray(self))  # noqa: B010 - NumPy's type has no such attribute

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("add", "expm1", "isin", "log1p", "logaddexp", "maximum", "nextafter")},
    **{name: getattr(np, name) for name in ("unique", "where")},
    "tensor": _tensor,
    "as_tensor": lambda data, device=None: np.asarray(data),
    "from_numpy": lambda array: array,
    "arange": lambda *numbers, device=None: np.arange(*numbers),
    "zeros": _filled(0),
    "ones": _filled(1),
    "empty": _filled(0),
    "full": lambda sizes, value, device=None: _tensor(np.full(sizes, value)),
    **dict.fromkeys(("empty_like", "zeros_like"), lambda x, dtype=None: np.zeros_like(x, dtype)),
    "ones_like": lambda x, dtype=None: np.ones_like(x, dtype),
    "full_like": lambda x, value, dtype=None, memory_format=None: np.full_like(x, value, dtype),
    "cat": lambda parts, dim=0: np.concatenate([*map(_plain, parts)], dim),
    "stack": lambda parts: np.stack([*map(_plain, parts)]),
    "searchsorted": _searchsorted,
}
NAMES: dict[str, Any] = {
    **{name: _on_arrays(function) for name, function in _FUNCTIONS.items()},
    **{"bool": np.bool_, "long": np.int64, "float32": np.float32, "float64": np.float64, "contiguous_format": None},
    **{"Tensor": Tensor, "inf": math.inf, "finfo": np.finfo, "iinfo": np.iinfo},
    "nn": SimpleNamespace(functional=SimpleNamespace(pad=_on_arrays(_pad))),
    "special": SimpleNamespace(entr=_on_arrays(lambda x: np.where(x > 0, -x * np.log(x), 0))),
}
"""What stands for `torch.` and a name."""
