"""How a run computes: fp32 or bf16, and which attention kernels."""

import time
from pathlib import Path
from typing import Literal

import torch

from translume.config import ModelSettings
from translume.model.attention import AttentionBackend, AttentionOptions, packed_attention
from translume.model.layout import Layout

Precision = Literal["fp32", "bf16"]

FASTER = 1.5
"""How many times faster than "plain" the fused kernels must be; a closer race could end differently the next time."""

FORMS: tuple[AttentionBackend, AttentionBackend] = ("plain", "fused")
ROWS, PLACES, ROUNDS = 64, 24, 12


def choose_precision(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """What a run computes in; "auto" is bf16 on a GPU that has it, and on a processor with AMX.

    Without AMX a processor multiplies bf16 no faster than fp32 (half as fast where this was measured), whatever it
    says of bf16. Flags decide and not a stopwatch, so that the same machine always answers the same.
    """
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if "amx_bf16" in _processor_features() else "fp32"


def _processor_features() -> frozenset[str]:
    """What the processor can do, in Linux's words; empty where Linux does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(word for line in lines[:64] if line.startswith("flags") for word in line.split())


def choose_attention(settings: ModelSettings, device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """ "fused" where it is clearly faster, forwards and backwards, at the lengths of sentences; else "plain".

    With dropout of attention weights a CPU gets "plain": the fused one's is drawn from a generator that threads share.
    """
    if device.type == "cpu" and settings.attention_dropout > 0:
        return "plain"
    best = dict.fromkeys(FORMS, float("inf"))
    with torch.random.fork_rng(devices=[]):
        for _ in range(ROUNDS):  # by turns, and the best of each, so that other work on the machine hardly counts
            for form in FORMS:
                best[form] = min(best[form], _seconds(settings, device, dtype, form))
    return "fused" if best["fused"] * FASTER < best["plain"] else "plain"


def _seconds(settings: ModelSettings, device: torch.device, dtype: torch.dtype, form: AttentionBackend) -> float:
    layout = Layout.of(torch.arange(PLACES, device=device) < torch.full((ROWS, 1), PLACES - 1, device=device))
    packed = torch.zeros(layout.tokens.numel(), 3 * settings.width, device=device, dtype=dtype, requires_grad=True)
    mixing = AttentionOptions(settings.attention_heads, form, settings.attention_dropout, causal=True)
    begun = time.perf_counter()
    packed_attention(packed, None, (layout, layout), mixing).sum().backward()  # type: ignore[no-untyped-call]  # torch's has no types
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun
