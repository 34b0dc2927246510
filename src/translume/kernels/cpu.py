"""This machine's processor, the instruction set that the kernels use on it, and the user's cache folder."""

import atexit
import ctypes
import functools
import os
import platform
import shutil
import tempfile
from pathlib import Path

import numpy as np

from translume.errors import SettingsError, nearest
from translume.kernels.building import GENERIC, INSTRUCTION_SETS, InstructionSet, machine


def cache_folder() -> Path:
    """Return the cache folder: $TRANSLUME_CACHE, or translume/ in the user's cache.

    In a container whose user has no home directory it is a temporary folder, deleted when the process ends.
    """
    given = os.environ.get("TRANSLUME_CACHE")
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "translume"
    except RuntimeError:  # raised by pathlib if there is no home directory
        return temporary_folder()


@functools.cache
def temporary_folder() -> Path:
    """Return a temporary folder that is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="translume-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _cpuinfo() -> tuple[str, ...]:
    """Return the lines of /proc/cpuinfo; empty if the system has no such file."""
    try:
        return tuple(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
    except OSError:
        return ()


def _cpuinfo_field(name: str) -> str:
    """Return the value of a field for the last processor listed; empty if the field is missing."""
    values = [line.partition(":")[2] for line in _cpuinfo() if line.partition(":")[0].strip() == name]
    return values[-1].strip() if values else ""


def multiplies_bf16() -> bool:
    """Return whether the processor has instructions that multiply bf16: AMX, or those of AVX-512."""
    return not {"amx_bf16", "avx512_bf16"}.isdisjoint(_cpuinfo_field("flags").split())


_NUMPY_FEATURES = {"avx2": {"AVX2", "FMA3", "F16C"}, "avx512": {"AVX2", "FMA3", "F16C", "AVX512_SKX"}}


def _numpy_features() -> set[str]:
    """Return the processor's features by NumPy's names; empty if this version of NumPy does not tell them."""
    core = getattr(np, "_core", None) or getattr(np, "core", None)
    found = getattr(getattr(core, "_multiarray_umath", None), "__cpu_features__", {})
    return {name for name, present in found.items() if present}


@functools.cache
def instruction_sets() -> tuple[InstructionSet, ...]:
    """Return the instruction sets of the kernels that this processor has, the fastest first.

    Without /proc/cpuinfo, on macOS and Windows, only those that are certain.
    """
    known = INSTRUCTION_SETS.get(machine(), ())
    if _cpuinfo():
        features = {*_cpuinfo_field("flags").split(), *_cpuinfo_field("Features").split()}
    elif machine() == "arm64":
        features = {"asimddp"} if platform.system() == "Darwin" else set()  # every Mac with such a processor
    else:
        names = [name for name, wanted in _NUMPY_FEATURES.items() if wanted <= _numpy_features()]
        features = {feature for each in known if each.name in names for feature in each.features}
    found = [each for each in known if each.features <= features]
    return (*(each for each in found if each.name != "amx" or _may_use_amx()), GENERIC)


def _may_use_amx() -> bool:
    """Ask Linux for the tile registers of AMX for this process; return whether it grants them."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    try:
        return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0
    except (AttributeError, OSError):
        return False


def chosen_instructions() -> InstructionSet:
    """Return the instruction set that the kernels use: $TRANSLUME_INSTRUCTIONS, else the processor's fastest.

    Raises SettingsError if the variable names none that this processor has.
    """
    supported = instruction_sets()
    given = os.environ.get("TRANSLUME_INSTRUCTIONS")
    if not given:
        return supported[0]
    names = [each.name for each in supported]
    if given not in names:
        raise SettingsError(
            f"TRANSLUME_INSTRUCTIONS: found '{given}', expected one of {', '.join(names)}{nearest(given, names)}"
        )
    return supported[names.index(given)]
