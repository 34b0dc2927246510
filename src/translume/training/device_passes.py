"""Forward and backward passes on a GPU: by torch's operations, by compiled layers, and replayed as CUDA graphs.

A pass through 6 + 6 layers launches a thousand kernels. Each costs the host 5 to 20 µs, as long as many of them
compute. `torch.compile` joins the elementwise ones; one function serves all layers of a kind and all shapes. A CUDA
graph launches a whole pass at once. There is one for each shape of the batches, which therefore must be few.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from subprocess import SubprocessError
from typing import Any

import torch
from torch import Tensor

from translume.heads import fixed_cross_entropy
from translume.kernels.cpu import cache_folder
from translume.model import HeadLoss, LossOptions
from translume.model.classifier import Network
from translume.model.feed_forward import MixtureOfExperts
from translume.model.layers import DecoderLayer, EncoderLayer
from translume.training.data_parallel import Share
from translume.training.events import Event, Preparing, Warned

MAX_VARIANTS = 64
"""Maximum number of variants that the compiler makes of a layer before it gives up, for shapes such as one row."""

COMPILER_ERRORS = (
    RuntimeError, ImportError, OSError, SubprocessError, AssertionError, AttributeError, LookupError, TypeError,
    ValueError,
)  # fmt: skip
"""What a compiler, a driver or an operation that cannot be captured may raise. None of them must end a training."""

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names the folder in which the compiler keeps its results.

They are programs. Therefore they are in the user's cache, and not in the folder of a training, which may come from
somebody else.
"""


class DevicePasses:
    """The passes of a network.  scale: [], the factor of the objective before the backward pass; None: 1."""

    def __init__(self, network: Network, options: LossOptions, scale: Tensor | None) -> None:
        self._network, self._options, self._scale = network, options, scale
        self._graphs: dict[tuple[torch.Size, ...], _Graph] = {}
        self._pool: Any = None

    def __call__(self, batch: Share, tokens: int) -> HeadLoss:
        """Compute a batch forward and backward, and add up the gradients of the sum of its losses.

        tokens: the number of labels that count. Nothing is read back: the losses are tensors.
        """
        graph = self._graphs.get(_shape(batch))
        return self._compute(batch, tokens) if graph is None else graph.replay(batch, tokens)

    def _compute(self, batch: Share, tokens: int) -> HeadLoss:
        loss = self._network.loss(*batch, self._options, tokens=tokens)
        objective = loss.objective
        if objective.requires_grad:
            (objective if self._scale is None else objective * self._scale).backward()  # type: ignore[no-untyped-call]  # torch's has no types
        return replace(loss, objective=objective.detach(), nll=None if loss.nll is None else loss.nll.detach())

    def compile(self, examples: Sequence[tuple[Share, int]], clear: Callable[[], None], update: int) -> Iterator[Event]:
        """Compile the layers and the loss, and capture a graph for each shape; yield an event before each.

        examples: a batch of each shape and its tokens, the largest first.  clear: sets the gradients to zero.
        If the compiler or a capture fails, one line says so, and the passes are computed without.
        """
        if any(isinstance(each, MixtureOfExperts) for each in self._network.modules()):
            return  # how many tokens an expert reads depends on them
        if not self._network.has_fixed_shapes(self._options):
            examples = [(batch, tokens) for batch, tokens in examples if tokens]
        try:
            for number, (batch, tokens) in enumerate(examples, 1):
                yield Preparing(what=f"compiling shape {number} of {len(examples)}")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of torch's own code, which its compiler imports and traces
                    if number == 1:
                        self._compile()
                    self._compute(batch, tokens)
        except COMPILER_ERRORS as error:
            self._forget_compiled()
            yield Warned(
                update=update, message=f"the compiler failed ({_line(error)}); the training goes on uncompiled"
            )
        clear()
        if examples and examples[0][0][0].is_cuda and self._can_be_captured:
            yield from self._capture(examples, update)
            clear()

    @property
    def _can_be_captured(self) -> bool:
        """Whether passes over batches of a shape differ only in numbers, and no random numbers are drawn again."""
        recomputes = any(getattr(module, "recomputes", False) for module in self._network.modules())
        return self._network.has_fixed_shapes(self._options) and not recomputes

    def _compile(self) -> None:
        os.environ.setdefault(CACHE_VARIABLE, str(cache_folder() / "compiled"))
        import torch._dynamo  # takes seconds, so only where it is needed

        config: Any = torch._dynamo.config
        limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.7
        setattr(config, limit, max(getattr(config, limit), MAX_VARIANTS))
        for kind in (EncoderLayer, DecoderLayer):
            compute = torch.compile(kind.compute)
            for layer in self._network.modules():
                if type(layer) is kind:
                    layer.compute = partial(_with_dynamic_lengths, compute, layer)  # type: ignore[method-assign]  # for this layer
        row_losses = partial(_with_dynamic_rows, torch.compile(fixed_cross_entropy.row_losses))
        self._options = replace(self._options, row_losses=row_losses)

    def _forget_compiled(self) -> None:
        for layer in self._network.modules():
            if isinstance(layer, EncoderLayer | DecoderLayer):
                layer.__dict__.pop("compute", None)
        self._options = replace(self._options, row_losses=None)

    def _capture(self, examples: Sequence[tuple[Share, int]], update: int) -> Iterator[Event]:
        try:
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's has no types
            for batch, _ in examples:
                self._graphs[_shape(batch)] = graph = _Graph(self._compute, batch, self._pool, aside)
                self._pool = graph.pool
        except COMPILER_ERRORS as error:
            self._graphs.clear()
            self._pool = None
            torch.cuda.synchronize()
            yield Warned(update=update, message=f"CUDA graphs failed ({_line(error)}); the training goes on without")


class _Graph:
    """A pass over a batch of one shape, captured once and replayed for others."""

    def __init__(
        self, compute: Callable[[Share, int], HeadLoss], batch: Share, pool: Any, aside: torch.cuda.Stream
    ) -> None:
        """pool: the memory of other graphs, which this one shares, since no two run at a time; None: a new one.

        aside: a stream on which kernels are loaded and workspaces allocated before the capture.
        """
        self._inputs = [each.clone() for each in batch]
        source, source_mask, target, labels, target_mask = self._inputs
        share = (source, source_mask, target, labels, target_mask)
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute(share, 0)
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._loss = compute(share, 0)
        self.pool = self._graph.pool()

    def replay(self, batch: Share, tokens: int) -> HeadLoss:
        """Compute the pass for another batch of the same shape."""
        torch._foreach_copy_(self._inputs, list(batch))
        self._graph.replay()
        nll = self._loss.nll
        return HeadLoss(self._loss.objective.clone(), None if nll is None else nll.clone(), tokens)


def _with_dynamic_lengths(compute: Callable[..., Tensor], layer: Any, x: Tensor, *attend: Any) -> Tensor:
    """Call a compiled `compute` of a layer for x [B, T, D], so that one variant of it serves all B, T and S."""
    given = [x, *(each for part in attend if part is not None for each in part.keywords.values())]
    for tensor in given:
        if isinstance(tensor, Tensor):
            _mark(tensor, (0, 1) if tensor.dim() == 3 else (0, 2, 3))  # a mask has four dimensions
    return compute(layer, x, *attend)


def _with_dynamic_rows(row_losses: Callable[..., Any], *arguments: Any) -> Any:
    """Call the compiled `row_losses` for logits [c, V], so that one variant of it serves all c."""
    for tensor in arguments[:4]:  # the others do not depend on the rows
        _mark(tensor, (0,))
    return row_losses(*arguments)


def _mark(tensor: Tensor, dimensions: Sequence[int]) -> None:
    """Tell the compiler that the sizes of some dimensions change."""
    from torch._dynamo import maybe_mark_dynamic

    for dimension in dimensions:
        if tensor.size(dimension) > 1:  # the compiler makes variants of their own for sizes 0 and 1
            maybe_mark_dynamic(tensor, dimension)


@contextmanager
def deterministic_kernels(*, wanted: bool) -> Iterator[None]:
    """Let torch choose kernels in the block whose results are the same each time, if `wanted`."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which cuBLAS needs for that
    filling: Any = torch.utils.deterministic
    before, filled = torch.are_deterministic_algorithms_enabled(), filling.fill_uninitialized_memory
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(wanted)
    filling.fill_uninitialized_memory = False  # it would cost a kernel more for each tensor
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        filling.fill_uninitialized_memory = filled


def accept_other_kernels(error: RuntimeError) -> bool:
    """Return whether an operation failed because it has no deterministic kernel; from then on it uses another one."""
    if "deterministic" not in str(error) or torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    torch.use_deterministic_algorithms(True, warn_only=True)
    return True


def _shape(batch: Share) -> tuple[torch.Size, ...]:
    return tuple(each.shape for each in batch)


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
