"""The precision of a run: which one "auto" stands for on a device, and which ones a device has."""

from typing import Literal

import torch

from translume.device import describe, supports_bf16, supports_fp16
from translume.errors import SettingsError
from translume.kernels.cpu import multiplies_bf16
from translume.training.optimisation import Precision

Wanted = Literal["auto", "fp32", "bf16", "fp16"]
"""Values of `training.precision`."""


def choose_precision(wanted: Wanted, device: torch.device) -> Precision:
    """Return the precision of a run.

    "auto" is what the device multiplies in hardware: on a GPU bf16, else fp16, else fp32; on a CPU bf16 with
    instructions for it (AMX or AVX512-BF16), else fp32: other processors multiply bf16 more slowly.
    Raises SettingsError for a precision that the device does not have.
    """
    if wanted != "auto":
        refuse_precision(wanted, device)
        return wanted
    if device.type == "cpu":
        return "bf16" if multiplies_bf16() else "fp32"
    return "bf16" if supports_bf16(device) else "fp16" if supports_fp16(device) else "fp32"


def refuse_precision(wanted: Wanted, device: torch.device) -> None:
    """Raise SettingsError for a value of `training.precision` that the device does not support."""
    if device.type == "cpu":
        known: tuple[Wanted, ...] = ("auto", "fp32", "bf16")
    elif device.type == "cuda":
        known = ("auto", "fp32", "fp16", "bf16") if supports_bf16(device) else ("auto", "fp32", "fp16")
    else:
        known = ("auto", "fp32")
    if wanted not in known:
        *first, last = map(repr, known)
        raise SettingsError(
            f"training.precision: found {wanted!r}, which {describe(device)} does not support; "
            f"expected {', '.join(first)} or {last}"
        )
