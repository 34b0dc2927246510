"""The engine's own kernels, compiled on the machine that runs them; without a C compiler there are none.

What is compiled is `kernels/` beside this file. It is kept in the user's cache under a name that its text, the compiler
and the processor decide, in a folder that nobody else can write to.
"""

import ctypes
import functools
import hashlib
import os
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from torch import Tensor

from translume.engine.machine import abilities, cache_folder, compiler, folder_for_now, processor

SOURCES: Final = (
    "vectors.h", "linear.h", "stack.h", "attention.h", "logits.h", "layers.c", "logits.c", "search.c",
)  # fmt: skip
"""What is in `kernels/`."""
FLAGS: Final = ("-O2", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
SECONDS: Final = 120
"""Longest time that a compiler gets."""
ALIGNED: Final = 64
"""Bytes by which blocks in a call's room are parted."""


class NativeError(RuntimeError):
    """There are no compiled kernels here; the text says why."""


class Linear(ctypes.Structure):
    """`linear` of linear.h."""

    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("format", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class Norm(ctypes.Structure):
    """`norm` of stack.h."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class Layer(ctypes.Structure):
    """`layer` of stack.h."""

    _fields_ = (
        *((name, Linear) for name in ("query_key_value", "mixed", "query", "looked", "inner", "outer")),
        *((name, Norm) for name in ("around_self", "around_cross", "around_feed_forward")),
    )


class Stack(ctypes.Structure):
    """`stack` of stack.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("width", "heads", "layers", "before", "cells", "activation", "root_mean_square", "inner")
        ),
        ("epsilon", ctypes.c_float),
        ("layer", ctypes.POINTER(Layer)),
        ("last", Norm),
    )


class Reading(ctypes.Structure):
    """`reading` of stack.h."""

    _fields_ = (
        ("past", ctypes.c_void_p),
        *((f"past_{name}", ctypes.c_int64) for name in ("layer", "sentence", "head", "place")),
        ("cross", ctypes.c_void_p),
        *((f"cross_{name}", ctypes.c_int64) for name in ("layer", "sentence", "head")),
        ("hidden", ctypes.c_void_p),
        ("reach", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("sentences", "width", "count", "place", "source", "halves")),
    )


class Origin(ctypes.Structure):
    """`origin` of logits.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "weight", "bias")),
        ("inputs", ctypes.c_int64),
        ("margin", ctypes.c_float),
    )


class Task(ctypes.Structure):
    """`task` of search.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("stack", "head", "sharp", "table", "places")),
        *((name, ctypes.c_float) for name in ("scale", "unshifted")),
        *((name, ctypes.c_int64) for name in ("size", "block", "eos")),
        ("forbidden", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("forbids", "shortest", "width", "wanted", "nbest")),
        ("patience", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("divisors", "last", "limits")),
    )


class Search(ctypes.Structure):
    """`search` of search.c."""

    _fields_ = (
        ("read", Reading),
        *((name, ctypes.c_int64) for name in ("sentences", "length", "longest", "capacity")),
        *((name, ctypes.c_void_p) for name in ("slots", "reach", "free", "said", "sums", "total", "ranked")),
        *((name, ctypes.c_void_p) for name in ("best", "ended", "lengths", "tokens", "log_probs")),
        ("together", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("x", "logits", "maxima", "each", "peaks", "rests", "first", "block")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The compiled functions, and what they can do here.

    int8: whether products of bytes are there.  halves: whether keys and values may be kept in fp16.  panel: outputs
    whose weights stand together.
    """

    library: ctypes.CDLL
    int8: bool
    halves: bool
    panel: int


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers stand; the tensor must outlive the use."""
    return None if tensor is None else tensor.data_ptr()


def kernels() -> Kernels:
    """The kernels of this machine, compiled at the first call that finds none.

    Raises NativeError where there is no compiler, it fails, or the user wants none ($TRANSLUME_NATIVE is "0").
    """
    found = found_once()
    if isinstance(found, str):
        raise NativeError(found)
    return found


@functools.cache
def found_once() -> "Kernels | str":
    """The kernels, or why there are none; a process tries once."""
    command = compiler()
    if command is None:
        return "no C compiler was found (cc, gcc, clang), or none is wanted (TRANSLUME_NATIVE is 0)"
    folder = files("translume.engine").joinpath("kernels")
    texts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in SOURCES}
    try:
        path = _own(cache_folder() / "native") / f"step-{_digest(texts, command)}.so"
        if not path.exists():
            _compile(command, texts, path)
        try:
            return _loaded(path)
        except OSError:  # cut off by a full disk, or made for another C library
            _compile(command, texts, path)
            return _loaded(path)
    except NativeError as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command}: {error}"


def _own(folder: Path) -> Path:
    """The folder if it is the user's and nobody else can write to it, else a new one for this process."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError:
        return folder_for_now()
    alone = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if alone and os.access(folder, os.W_OK) else folder_for_now()


def _digest(texts: dict[str, str], command: str) -> str:
    version = subprocess.run([command, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    facts = "\n".join(
        (*texts.values(), command, version.decode(errors="replace"), " ".join(FLAGS), processor(), abilities())
    )
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _compile(command: str, texts: dict[str, str], path: Path) -> None:
    """Compile to `path`, which is there whole or not at all."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        made, units = Path(folder) / "step.so", [str(Path(folder) / name) for name in texts if name.endswith(".c")]
        line = [command, *FLAGS, "-o", str(made), *units, "-lm"]
        done = subprocess.run(line, capture_output=True, timeout=SECONDS, check=False)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise NativeError(f"{command} failed: {lines[0]}")
        made.chmod(0o700)  # whatever the umask: nobody else may write what is loaded
        made.replace(path)


def _loaded(path: Path) -> Kernels:
    library = ctypes.CDLL(str(path))
    for name in (
        "translume_has_int8",
        "translume_has_halves",
        "translume_panel",
        "translume_summarise",
        "translume_room",
        "translume_search",
    ):
        getattr(library, name).restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.translume_room.argtypes = [pointer, number, number, number]
    library.translume_step.argtypes = [pointer, pointer, number, pointer, pointer]
    library.translume_encode.argtypes = [pointer, pointer, number, number, pointer, pointer]
    library.translume_linear.argtypes = [pointer, pointer, number, pointer, pointer]
    library.translume_summarise.argtypes = [pointer, number, number, number, ctypes.c_float, *[pointer] * 6]
    library.translume_search.argtypes = [pointer, pointer, number]
    return Kernels(
        library=library,
        int8=bool(library.translume_has_int8()),
        halves=bool(library.translume_has_halves()),
        panel=int(library.translume_panel()),
    )
