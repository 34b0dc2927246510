"""Choose the precision of a run (`choose_precision`) and its attention backend (`choose_attention`)."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch

from translume.config import ModelSettings
from translume.data import Batch
from translume.errors import SettingsError
from translume.kernels.cpu import has_bf16
from translume.model.attention import AttentionBackend, AttentionOptions, packed_attention
from translume.model.device import describe, supports_bf16, supports_fp16
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


Wanted = Literal["auto", "fp32", "bf16", "fp16"]
"""Values of `training.precision`."""


def choose_precision(wanted: Wanted, device: torch.device, seconds: Callable[[Precision], float]) -> Precision:
    """Return the precision of a run.

    "auto" is the faster of fp32 and bf16 on a CPU. On a GPU it is what its tensor cores compute: bf16, else fp16, else
    fp32; nothing is measured there.

    seconds: measures an update in a precision. It is called on processors with bf16 instructions only; others convert
    every bf16 number, which takes many times as long.
    Raises SettingsError for a precision that the device does not have.
    """
    if wanted != "auto":
        refuse_precision(wanted, device)
        return wanted
    if device.type != "cpu":
        return "bf16" if supports_bf16(device) else "fp16" if supports_fp16(device) else "fp32"
    return "bf16" if has_bf16() and seconds("fp32") > MARGIN * seconds("bf16") else "fp32"


def refuse_precision(wanted: Wanted, device: torch.device) -> None:
    """Raise SettingsError for a value of `training.precision` that the device does not support."""
    if device.type == "cpu":
        known: tuple[Wanted, ...] = ("auto", "fp32", "bf16")
    elif device.type == "cuda":
        known = ("auto", "fp32", "fp16", "bf16") if supports_bf16(device) else ("auto", "fp32", "fp16")
    else:
        known = ("auto", "fp32")
    if wanted not in known:
        *most, last = map(repr, known)
        raise SettingsError(
            f"training.precision: found {wanted!r}, which {describe(device)} does not support; "
            f"expected {', '.join(most)} or {last}"
        )


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
    """Return "fused" on a GPU. On a CPU: if it is clearly faster, forward and backward, at the lengths of sentences.

    It is measured once; the result is stored with the run and used again when the run resumes. With dropout of
    attention weights a CPU gets "plain", because the fused kernel draws from a generator that threads share.
    """
    if device.type != "cpu":
        return "fused"
    if settings.attention_dropout > 0:
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
    return time.perf_counter() - begun
