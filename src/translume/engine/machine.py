"""What machine this is, and where findings about it are kept."""

import atexit
import functools
import os
import platform
import shutil
import tempfile
from pathlib import Path


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


def processor() -> str:
    """The processor's name and whether it has the matrix unit that bf16 and int8 need to be fast."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    return f"{facts.get('model name', '')} {facts.get('stepping', '')} amx={'amx_int8' in facts.get('flags', '')}"


def abilities() -> str:
    """Which instructions there are, as far as the system says: a cache may be shared by machines of one name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = ("flags", "Features", "CPU implementer", "CPU part", "isa")
    return "\n".join(sorted({line for line in lines if line.split(":")[0].strip() in named}))


def compiler() -> str | None:
    """The C compiler: $CC, or what is called cc, gcc or clang; None where there is none, or TRANSLUME_NATIVE is 0."""
    if os.environ.get("TRANSLUME_NATIVE") == "0" or os.name != "posix":
        return None
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for path in map(shutil.which, filter(None, names)) if path), None)
