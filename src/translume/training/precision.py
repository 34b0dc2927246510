"""Choose the precision of a run (`choose_precision`) and its attention backend (`choose_attention`)."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch

from translume.config import ModelSettings
from translume.data import Batch
from translume.kernels.cpu import has_bf16
from translume.model.attention import AttentionBackend, AttentionOptions, packed_attention
from translume.model.layout import Layout
from translume.training.batches import gather
from translume.training.optimisation import Precision, Updater

FASTER = 1.5
"""Minimum speed-up of the fused kernels over "plain"; with a smaller margin the choice could vary between runs."""

_BACKENDS: tuple[AttentionBackend, AttentionBackend] = ("plain", "fused")
ROWS, PLACES, ROUNDS = 64, 24, 12

MARGIN = 1.05
"""Minimum speed-up of bf16 over fp32, which is more exact."""
UPDATE_ROUNDS = 4
"""How often each of the measured updates is repeated, after a first time that allocates memory."""
SECONDS = 8.0
"""Time after which no further round of updates begins; at least one is measured."""


def choose_precision(
    wanted: Literal["auto", "fp32", "bf16"], device: torch.device, seconds: Callable[[Precision], float]
) -> Precision:
    """Return the precision of a run; "auto" is the faster one on a CPU, and bf16 on GPUs that support it.

    seconds: measures an update in a precision. It is called on processors with bf16 instructions only; others convert
    every bf16 number, which takes many times as long.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if has_bf16() and seconds("fp32") > MARGIN * seconds("bf16") else "fp32"


def update_seconds(updater: Updater, updates: Sequence[Mapping[tuple[int, ...], Batch]]) -> float:
    """Return the mean seconds of updates with learning rate 0.

    updates: the batches of each, by their keys for `gather`. To discount other load on the machine, seconds are the
    processor's, and the shortest of several rounds counts.
    """
    best = [float("inf")] * len(updates)
    end = time.perf_counter() + SECONDS
    with torch.random.fork_rng(devices=[]):
        for round_ in range(1 + UPDATE_ROUNDS):
            for index, batches in enumerate(updates):
                begun = time.process_time()
                sums = gather(updater, batches, seed=0, update=index)
                updater.update(sums.tokens, 0.0)
                if round_:
                    best[index] = min(best[index], time.process_time() - begun)
            if round_ and time.perf_counter() > end:
                break
    return sum(best) / len(best)


def choose_attention(settings: ModelSettings, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """Return "fused" if it is clearly faster, forward and backward, at the lengths of sentences; else "plain".

    It is measured once; the result is stored with the run and used again when the run resumes. With dropout of
    attention weights a CPU gets "plain", because the fused kernel draws from a generator that threads share.
    """
    if device.type == "cpu" and settings.attention_dropout > 0:
        return "plain"
    best = dict.fromkeys(_BACKENDS, float("inf"))
    with torch.random.fork_rng(devices=[]):
        for _ in range(ROUNDS):  # in turns, and the best of each, to discount other load on the machine
            for backend in _BACKENDS:
                best[backend] = min(best[backend], _seconds(settings, device, dtype, backend))
    return "fused" if best["fused"] * FASTER < best["plain"] else "plain"


def _seconds(settings: ModelSettings, device: torch.device, dtype: torch.dtype, backend: AttentionBackend) -> float:
    layout = Layout.of(torch.arange(PLACES, device=device) < torch.full((ROWS, 1), PLACES - 1, device=device))
    packed = torch.zeros(
        layout.tokens.numel(), 3 * settings.attention_width, device=device, dtype=dtype, requires_grad=True
    )
    mixing = AttentionOptions(settings.attention_heads, backend, settings.attention_dropout, causal=True)
    begun = time.perf_counter()
    packed_attention(packed, None, (layout, layout), mixing).sum().backward()  # type: ignore[no-untyped-call]  # torch's has no types
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
