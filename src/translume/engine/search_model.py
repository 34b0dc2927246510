"""The model that a search of the kernels reads, and the draft that guesses tokens for it."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from translume.engine.layers import Layers, cache_struct
from translume.engine.logits import CopyKernels, LogitRefiner
from translume.engine.network import Array, Network
from translume.engine.packing import PackedLinear
from translume.engine.state import EngineState
from translume.kernels import loading
from translume.kernels.loading import address, empty


class SearchModel:
    """The parts of a model that the kernels read: packed layers and head, and the target embedding.

    table: [V, D], multiplied by `scale`.  positions: [positions, D], or None.  refiner: of an int8 head.
    copying: of a copy head.
    """

    def __init__(
        self,
        layers: Layers,
        head: PackedLinear,
        network: Network,
        refiner: LogitRefiner | None,
        copying: CopyKernels | None,
    ) -> None:
        self.layers, self.head, self.refiner, self.copying = layers, head, refiner, copying
        positions = network.positions("decoder")
        self.table, self.scale = np.ascontiguousarray(network.table("decoder")), network.scale
        self.positions = None if positions is None else np.ascontiguousarray(positions)

    def fits(self, state: EngineState, prompts: Array, limits: Array) -> bool:
        """Return whether a search from `state` after prompts [B, P] to `limits` [B] stays in bounds.

        The kernels do not check them.
        """
        begun = state.position or state.width > 1 or state.slots is not None
        if begun or not limits.size or not limits.size == state.sentences == len(prompts):
            return False
        if self.head.outputs > len(self.table):  # tokens that it generates are read
            return False
        if limits.min() < 1 or prompts.min() < 0 or prompts.max() >= len(self.table):
            return False
        longest = self.layers.longest if self.positions is None else len(self.positions)
        return longest is None or prompts.shape[1] - 1 + int(limits.max()) <= longest


@dataclass(frozen=True, slots=True)
class Draft:
    """A model that guesses up to `count` tokens after a hypothesis. What the search returns does not depend on it.

    model: reads and writes the tokens of the search's own.  start: encodes a source [1, S] and its mask.
    """

    model: SearchModel
    start: Callable[[Array, Array], EngineState]
    count: int = 4

    def begin(self, source: Array, mask: Array, prompts: Array, limits: Array, eos: int) -> "SentenceDraft | None":
        """Return what guesses for a source [1, S] after a prompt [1, P]; None if they are too long for the model.

        limits: [1], maximum number of tokens after the prompt.
        """
        state = self.start(source, mask)
        if not self.model.fits(state, prompts, limits):
            return None
        return SentenceDraft(self, state, prompts, int(limits[0]), eos)


class SentenceDraft:
    """A `draft` of draft.h for one sentence, and the memory that it points to."""

    def __init__(self, draft: Draft, state: EngineState, prompts: Array, limit: int, eos: int) -> None:
        model, cache, count = draft.model, state.cache, draft.count
        cache.grow(prompts.shape[1] + limit, None)
        source, width, size = cache.cross.shape[3], model.table.shape[1], model.head.outputs
        self.count, self._cache_struct = count, cache_struct(cache)
        workspace = model.layers.workspace(count + 1, max(source, prompts.shape[1] + limit), count + 1)
        buffers = prompts.copy(), empty([count], np.int64), empty([count + 1, width]), empty([size]), workspace
        self._kept = (draft, cache, buffers)  # own the memory that the kernels read
        self._struct = loading.Draft(
            model.layers.address, ctypes.addressof(model.head.struct), address(model.table), address(model.positions),
            model.scale, size, eos, count,
            loading.Lane(ctypes.addressof(self._cache_struct), 0, 0, 1, None),
            *map(address, buffers),
        )  # fmt: skip
        self.address = ctypes.addressof(self._struct)
