"""Compile the C kernels on the machine that runs them, load them, and declare their structures.

The compiled library is cached in the user's cache folder. Its file name is a hash of the sources, the compiler and the
processor. A folder that other users can write to is not used.
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

from translume.kernels.cpu import cache_folder, compiler, cpu_features, cpu_name, temporary_folder

SOURCES: Final = (
    "vectors.h", "linear.h", "stack.h", "attention.h", "logits.h", "rules.h", "layers.c", "logits.c", "search.c",
)  # fmt: skip
"""The C files of this package."""
FLAGS: Final = ("-O2", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
COMPILER_TIMEOUT_SECONDS: Final = 120
ALIGNMENT: Final = 64
"""Alignment in bytes of the blocks in a workspace."""


class NativeError(RuntimeError):
    """The compiled kernels are not available or do not support this model; the message gives the reason."""


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
        *(
            (name, Linear)
            for name in ("query_key_value", "self_output", "cross_query", "cross_output", "inner", "outer")
        ),
        *((name, Norm) for name in ("norm_self", "norm_cross", "norm_feed_forward")),
    )


class Stack(ctypes.Structure):
    """`stack` of stack.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("width", "heads", "layers", "pre_norm", "ssru", "activation", "rms_norm", "inner")
        ),
        ("epsilon", ctypes.c_float),
        ("layer", ctypes.POINTER(Layer)),
        ("first_norm", Norm),
        ("final_norm", Norm),
    )


class KeyValueCache(ctypes.Structure):
    """`key_value_cache` of stack.h."""

    _fields_ = (
        ("past", ctypes.c_void_p),
        *((f"past_{name}", ctypes.c_int64) for name in ("layer", "sentence", "head", "position")),
        ("cross", ctypes.c_void_p),
        *((f"cross_{name}", ctypes.c_int64) for name in ("layer", "sentence", "head")),
        ("source_bias", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("source", "capacity", "fp16")),
    )


class Lane(ctypes.Structure):
    """`lane` of stack.h."""

    _fields_ = (
        ("cache", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("slot", "position", "beam")),
        ("ancestors", ctypes.c_void_p),
    )


class StepInput(ctypes.Structure):
    """`step_input` of stack.h."""

    _fields_ = (("lanes", ctypes.c_void_p), ("sentences", ctypes.c_int64), ("count", ctypes.c_int64))


class Refinement(ctypes.Structure):
    """`refinement` of logits.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "weight", "bias")),
        ("inputs", ctypes.c_int64),
        ("margin", ctypes.c_float),
    )


class Rules(ctypes.Structure):
    """`rules` of rules.h."""

    _fields_ = (
        ("forbidden", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("eos", "min_length", "ngram")),
        ("repetition", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("phrase_states", "phrase_ends")),
        ("phrase_window", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("spelled", "spelled_begins")),
        ("forced_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("forced_lengths", "choices", "choices_left", "choices_begins")),
    )


class SearchSettingsStruct(ctypes.Structure):
    """`search_settings` of search.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("stack", "head", "refinement", "table", "positions")),
        *((name, ctypes.c_float) for name in ("scale", "unshifted_limit")),
        *((name, ctypes.c_int64) for name in ("vocabulary", "block", "eos")),
        ("rules", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("beam", "candidates", "nbest")),
        ("patience", ctypes.c_float),
        ("divisors", ctypes.c_void_p),
    )


class Sentence(ctypes.Structure):
    """`sentence` of search.c."""

    _fields_ = (
        ("lane", Lane),
        *((name, ctypes.c_int64) for name in ("begin", "limit", "state", "forced")),
        *((name, ctypes.c_void_p) for name in ("limit_divisor", "ancestors", "spare")),
        *((name, ctypes.c_void_p) for name in ("read_tokens", "read_log_probs", "phrase_states", "totals")),
        ("finished", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("best", "lengths", "tokens", "log_probs", "finished_totals")),
    )


class SearchState(ctypes.Structure):
    """`search_state` of search.c."""

    _fields_ = (
        ("step", StepInput),
        ("live", ctypes.c_void_p),
        ("group", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("ranked", "own_tokens", "banned", "x", "logits", "maxima", "sums", "peaks", "log_sums")
        ),
        *((name, ctypes.c_void_p) for name in ("first", "workspace")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The loaded library and its capabilities on this processor.

    int8: whether it has int8 products.  fp16: whether keys and values may be stored in fp16.
    panel: number of outputs whose weights are stored together.
    """

    library: ctypes.CDLL
    int8: bool
    fp16: bool
    panel: int


def address(tensor: Tensor | None) -> int | None:
    """Return the address of a tensor's data. The caller must keep the tensor alive while the address is in use."""
    return None if tensor is None else tensor.data_ptr()


def kernels() -> Kernels:
    """Return the kernels for this machine, compiling them if they are not cached.

    Raises NativeError if there is no compiler, if it fails, or if $TRANSLUME_NATIVE is "0".
    """
    found = load_once()
    if isinstance(found, str):
        raise NativeError(found)
    return found


@functools.cache
def load_once() -> "Kernels | str":
    """Return the kernels, or the reason why they are not available. Computed once per process."""
    command = compiler()
    if command is None:
        return "no C compiler was found (cc, gcc, clang), or TRANSLUME_NATIVE is 0"
    folder = files("translume.kernels")
    texts = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in SOURCES}
    try:
        path = _private_folder(cache_folder() / "native") / f"kernels-{_digest(texts, command)}.so"
        if not path.exists():
            _compile(command, texts, path)
        try:
            return _load(path)
        except OSError:  # truncated by a full disk, or compiled for another C library
            _compile(command, texts, path)
            return _load(path)
    except NativeError as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command}: {error}"


def _private_folder(folder: Path) -> Path:
    """Return the folder if the user owns it and no other user can write to it, else a temporary folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError:
        return temporary_folder()
    private = status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private and os.access(folder, os.W_OK) else temporary_folder()


def _digest(texts: dict[str, str], command: str) -> str:
    version = subprocess.run(
        [command, "--version"], capture_output=True, timeout=COMPILER_TIMEOUT_SECONDS, check=True
    ).stdout
    facts = "\n".join(
        (*texts.values(), command, version.decode(errors="replace"), " ".join(FLAGS), cpu_name(), cpu_features())
    )
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _compile(command: str, texts: dict[str, str], path: Path) -> None:
    """Compile the sources and move the library to `path` in one rename."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        library, units = (
            Path(folder) / "kernels.so",
            [str(Path(folder) / name) for name in texts if name.endswith(".c")],
        )
        arguments = [command, *FLAGS, "-o", str(library), *units, "-lm"]
        done = subprocess.run(arguments, capture_output=True, timeout=COMPILER_TIMEOUT_SECONDS, check=False)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise NativeError(f"{command} failed: {lines[0]}")
        library.chmod(0o700)  # other users must not write to a library that is loaded, whatever the umask
        library.replace(path)


def _load(path: Path) -> Kernels:
    library = ctypes.CDLL(str(path))
    for name in (
        "translume_has_int8",
        "translume_has_fp16",
        "translume_panel",
        "translume_summarize",
        "translume_workspace",
        "translume_search",
        "translume_stable_prefix",
    ):
        getattr(library, name).restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.translume_workspace.argtypes = [pointer, number, number, number]
    library.translume_step.argtypes = [pointer, pointer, pointer, pointer]
    library.translume_encode.argtypes = [pointer, pointer, number, number, pointer, pointer]
    library.translume_linear.argtypes = [pointer, pointer, number, pointer, pointer]
    library.translume_summarize.argtypes = [pointer, number, number, number, ctypes.c_float, *[pointer] * 6]
    library.translume_search.argtypes = [pointer, pointer, number]
    library.translume_stable_prefix.argtypes = [pointer, pointer, number, pointer]
    return Kernels(
        library=library,
        int8=bool(library.translume_has_int8()),
        fp16=bool(library.translume_has_fp16()),
        panel=int(library.translume_panel()),
    )
