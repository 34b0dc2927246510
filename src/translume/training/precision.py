"""Choose the precision of a run (`choose_precision`) and its attention backend (`choose_attention`)."""

import time
from pathlib import Path
from typing import Literal

import torch

from translume.config import ModelSettings
from translume.model.attention import AttentionBackend, AttentionOptions, packed_attention
from translume.model.layout import Layout

Precision = Literal["fp32", "bf16"]

FASTER = 1.5
"""Minimum speed-up of the fused kernels over "plain"; with a smaller margin the choice could vary between runs."""

_BACKENDS: tuple[AttentionBackend, AttentionBackend] = ("plain", "fused")
ROWS, PLACES, ROUNDS = 64, 24, 12


def choose_precision(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """Return the precision of a run; "auto" is bf16 on GPUs that support it and on processors with AMX, else fp32.

    Without AMX a processor multiplies bf16 no faster than fp32 (half as fast where it was measured), even if it has
    other bf16 instructions. The choice goes by processor flags, not by timing, so it is the same at every start.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if "amx_bf16" in _processor_features() else "fp32"


def _processor_features() -> frozenset[str]:
    """Return the processor's flags in /proc/cpuinfo; empty if there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(word for line in lines[:64] if line.startswith("flags") for word in line.split())


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
