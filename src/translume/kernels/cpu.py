"""This machine's processor features and C compiler, and the user's cache folder."""

import atexit
import functools
import os
import platform
import shutil
import tempfile
from pathlib import Path

import torch


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


def has_amx() -> bool:
    """Return whether the processor has matrix instructions (AMX) for int8."""
    return "amx_int8" in _cpuinfo_field("flags").split()


def cpu_name() -> str:
    """Return the processor's name and stepping, and whether it has AMX."""
    if not _cpuinfo():
        return platform.processor()
    return f"{_cpuinfo_field('model name')} {_cpuinfo_field('stepping')} amx={has_amx()}"


def cpu_features() -> str:
    """Return the instruction sets of the processor. Machines that share a cache folder may have different ones."""
    if not _cpuinfo():
        return platform.machine()
    fields = ("flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join(sorted({line for line in _cpuinfo() if line.split(":")[0].strip() in fields}))


def instruction_limits() -> str:
    """Return the vector instructions that torch uses, and the environment variables that limit torch and oneDNN."""
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
    limits = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *limits])


def compiler() -> str | None:
    """Return the C compiler: $CC, else the first of cc, gcc and clang; None if there is none or TRANSLUME_NATIVE=0."""
    if os.environ.get("TRANSLUME_NATIVE") == "0" or os.name != "posix":
        return None
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for path in map(shutil.which, filter(None, names)) if path), None)
