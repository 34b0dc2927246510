"""What machine this is, and where findings about it are kept."""

import atexit
import functools
import os
import platform
import shutil
import tempfile
from pathlib import Path

import torch


def cache_folder() -> Path:
    """Where findings about this machine are kept: $TRANSLUME_CACHE, or translume/ in the user's cache.

    Nobody's home is there for some users of containers: then it is a folder that is gone when the process ends.
    """
    given = os.environ.get("TRANSLUME_CACHE")
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "translume"
    except RuntimeError:  # what pathlib raises for want of a home
        return folder_for_now()


@functools.cache
def folder_for_now() -> Path:
    """A folder of this process, which is gone when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="translume-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _processor_lines() -> tuple[str, ...]:
    """The lines of /proc/cpuinfo; empty where the system has no such file."""
    try:
        return tuple(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
    except OSError:
        return ()


def _processor_field(name: str) -> str:
    """The value of a field of /proc/cpuinfo, of the last processor listed; empty if the field is missing."""
    values = [line.partition(":")[2] for line in _processor_lines() if line.partition(":")[0].strip() == name]
    return values[-1].strip() if values else ""


def has_amx() -> bool:
    """Return whether the processor has matrix instructions (AMX) for int8."""
    return "amx_int8" in _processor_field("flags").split()


def processor() -> str:
    """The processor's name and stepping, and whether it has AMX, which bf16 and int8 are fastest with."""
    if not _processor_lines():
        return platform.processor()
    return f"{_processor_field('model name')} {_processor_field('stepping')} amx={has_amx()}"


def instruction_limits() -> str:
    """The vector instructions that torch uses, and the environment variables that limit torch and oneDNN."""
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
    limits = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *limits])


def abilities() -> str:
    """Which instructions there are, as far as the system says: a cache may be shared by machines of one name."""
    lines = _processor_lines()
    if not lines:
        return platform.machine()
    named = ("flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join(sorted({line for line in lines if line.split(":")[0].strip() in named}))


def compiler() -> str | None:
    """The C compiler: $CC, or what is called cc, gcc or clang; None where there is none, or TRANSLUME_NATIVE is 0."""
    if os.environ.get("TRANSLUME_NATIVE") == "0" or os.name != "posix":
        return None
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for path in map(shutil.which, filter(None, names)) if path), None)
