"""Which form of attention trains faster here: measured once, stored with the run, replayed when it is resumed."""

import time

import torch

from translume.config import ModelSettings
from translume.model.attention import AttentionBackend, AttentionOptions, packed_attention
from translume.model.layout import Layout

FASTER = 1.5
"""How many times faster than "plain" the fused kernels must be; a closer race could end differently the next time."""

FORMS: tuple[AttentionBackend, AttentionBackend] = ("plain", "fused")
ROWS, PLACES, ROUNDS = 64, 24, 12


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
