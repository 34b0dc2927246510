"""Random numbers that are a function of what they are for: of a seed, a sentence, a place and a step.

No generator is advanced, so that what is drawn for a sentence does not depend on what else is drawn, in which order or
in which batch. Each counter is mixed into 64 bits by the finaliser of SplitMix64 (Steele, Lea and Flood 2014, figure
16), in int64, whose sums and products wrap as unsigned ones do.
"""

import torch
from torch import Tensor

_BITS = 64
_GOLDEN, _FIRST, _SECOND = (
    each - (1 << _BITS) for each in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_KEPT = 52
"""Bits of a uniform: with half a step added to them, neither 0 nor 1 can come out in fp64."""


def uniforms(seed: int, *counters: Tensor | int) -> Tensor:
    """Uniform numbers in (0, 1), fp64, each by the seed and its own counters, which are broadcast to one shape.

    counters: int64, such as keys [B, 1], places [K] and a step; their order matters.
    """
    mixed = _mixed(torch.tensor(_as_signed(seed)) + _GOLDEN)
    for counter in counters:
        steps = counter if isinstance(counter, Tensor) else torch.tensor(counter, device=mixed.device)
        mixed = _mixed(mixed.to(steps.device) + (steps + 1) * _GOLDEN)
    return _shifted(mixed, _BITS - _KEPT).double().add_(0.5).mul_(2.0**-_KEPT)


def gumbels(seed: int, *counters: Tensor | int) -> Tensor:
    """Standard Gumbel numbers −log(−log u), fp64, by seed and counters as `uniforms`."""
    return uniforms(seed, *counters).log_().neg_().log_().neg_()


def _mixed(state: Tensor) -> Tensor:
    """A bijection of 64 bits after which each depends on all."""
    state = (state ^ _shifted(state, 30)).mul_(_FIRST)
    state.bitwise_xor_(_shifted(state, 27)).mul_(_SECOND)
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(state: Tensor, bits: int) -> Tensor:
    """To the right, zeros coming in: int64's own shift copies the sign."""
    return (state >> bits).bitwise_and_((1 << (_BITS - bits)) - 1)


def _as_signed(number: int) -> int:
    number &= (1 << _BITS) - 1
    return number - (1 << _BITS) if number >= 1 << (_BITS - 1) else number
