"""Load the C kernels, from the wheel or compiled on the machine that runs them, and declare their structures.

A library compiled here is cached in the user's cache folder. Its file name has the instruction set and a hash of the
sources, the flags and the compiler. A folder or a file that other users can write to is not used.
"""

import ctypes
import functools
import hashlib
import math
import os
import platform
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from translume import atomic
from translume.kernels.building import (
    COMPILER_TIMEOUT_SECONDS,
    FLAGS,
    LIBRARIES,
    SOURCES,
    CompilerError,
    InstructionSet,
    compile_library,
    compiler,
)
from translume.kernels.cpu import cache_folder, chosen_instructions, temporary_folder
from translume.processors import default_threads

FOLDER: Final = Path(__file__).parent
"""The folder of the C files and of the wheel's libraries."""
ALIGNMENT: Final = 64
"""Bytes of the widest vector, which is read fastest from a multiple of them."""


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
            for name in ("width", "heads", "head_size", "layers", "pre_norm", "ssru", "activation", "rms_norm", "inner")
        ),
        ("epsilon", ctypes.c_float),
        ("layer", ctypes.POINTER(Layer)),
        ("first_norm", Norm),
        ("final_norm", Norm),
        ("rotation", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("reach", ctypes.c_int64),
        ("distances", ctypes.c_int64),
    )


class SourceReader(ctypes.Structure):
    """`source_reader` of layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("encoder", "table", "positions")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("layers", "heads", "head_size")),
        ("key_values", ctypes.c_void_p),
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

    _fields_ = (
        ("lanes", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("sentences", "count")),
        ("attention", ctypes.c_void_p),
        ("attention_width", ctypes.c_int64),
    )


class Refinement(ctypes.Structure):
    """`refinement` of logits.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "weight", "bias")),
        ("inputs", ctypes.c_int64),
        ("margin", ctypes.c_float),
    )


class CopyGate(ctypes.Structure):
    """`copy_gate` of copying.h."""

    _fields_ = (("width", ctypes.c_int64), ("weight", ctypes.c_void_p), ("bias", ctypes.c_float))


class Rules(ctypes.Structure):
    """`rules` of rules.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("forbidden", "forbidden_first")),
        *((name, ctypes.c_int64) for name in ("eos", "min_length", "ngram")),
        ("repetition", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("phrase_states", "phrase_ends")),
        ("phrase_window", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("spelled", "spelled_begins")),
        ("forced_bytes", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("forced_lengths", "choices", "choices_left", "choices_begins")),
    )


class Sampling(ctypes.Structure):
    """`sampling` of sampling.h."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("top_k", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("temperature", "top_p", "log_min_p", "log_epsilon", "log_eta")),
    )


class Choices(ctypes.Structure):
    """`choices` of sampling.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weights", "exact", "near", "near_x", "near_weights")),
        *((name, ctypes.c_void_p) for name in ("tops", "sums")),
        *((name, ctypes.c_int64) for name in ("blocks", "block", "is_exact")),
        ("total", ctypes.c_double),
        ("least", ctypes.c_float),
        ("last", ctypes.c_int32),
    )


class SearchSettingsStruct(ctypes.Structure):
    """`search_settings` of search.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("stack", "head", "refinement", "copying", "table", "positions")),
        *((name, ctypes.c_float) for name in ("scale", "unshifted_limit")),
        *((name, ctypes.c_int64) for name in ("vocabulary", "block", "eos")),
        *((name, ctypes.c_void_p) for name in ("rules", "sampling")),
        ("coverage", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("beam", "candidates", "nbest")),
        ("patience", ctypes.c_float),
        ("divisors", ctypes.c_void_p),
    )


class Draft(ctypes.Structure):
    """`draft` of draft.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("stack", "head", "table", "positions")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int64) for name in ("vocabulary", "eos", "count")),
        ("lane", Lane),
        *((name, ctypes.c_void_p) for name in ("prompt", "tokens", "x", "logits", "workspace")),
    )


class Sentence(ctypes.Structure):
    """`sentence` of search.c."""

    _fields_ = (
        ("lane", Lane),
        *((name, ctypes.c_int64) for name in ("begin", "limit", "state", "key", "forced")),
        *((name, ctypes.c_void_p) for name in ("copied", "draft", "limit_divisor", "ancestors", "spare")),
        *((name, ctypes.c_void_p) for name in ("read_tokens", "read_log_probs", "phrase_states", "totals")),
        *((name, ctypes.c_void_p) for name in ("attended", "spare_attended")),
        ("finished", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("best", "lengths", "tokens", "log_probs", "finished_totals", "coverage")
        ),
    )


class SearchState(ctypes.Structure):
    """`search_state` of search.c."""

    _fields_ = (
        ("step", StepInput),
        ("live", ctypes.c_void_p),
        ("group", ctypes.c_int64),
        ("ranked", ctypes.c_void_p),
        ("choices", Choices),
        *((name, ctypes.c_void_p) for name in ("known_states", "known_ends")),
        *((name, ctypes.c_void_p) for name in ("own_tokens", "banned", "x", "logits", "maxima", "sums", "peaks")),
        *((name, ctypes.c_void_p) for name in ("log_sums", "first", "shares", "workspace")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The loaded library and its capabilities.

    instructions: name of its instruction set.  origin: who compiled it.  fp16: whether keys and values may be fp16.
    panel: number of outputs whose weights are stored together.  group: number of inputs of an output whose int8 weights
        are stored together; 0 without int8 products.  offset: added to stored int8 weights.
    """

    library: ctypes.CDLL
    instructions: str
    origin: Literal["wheel", "compiled"]
    fp16: bool
    panel: int
    group: int
    offset: int

    @property
    def int8(self) -> bool:
        """Whether the library has int8 products."""
        return self.group > 0


def address(data: Any) -> int | None:
    """Return the address of the data of an array or a tensor, which the caller must keep alive; None for None."""
    if data is None:
        return None
    return int(data.ctypes.data if isinstance(data, np.ndarray) else data.data_ptr())


def empty(shape: Sequence[int], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return an array without values whose data begin at a multiple of ALIGNMENT bytes."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    begin = -buffer.ctypes.data % ALIGNMENT
    return buffer[begin : begin + size].view(kind).reshape(shape)


def aligned(data: NDArray[Any], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return the data as an array of a dtype, contiguous and aligned as by `empty`; itself if it is so already."""
    if data.dtype == dtype and data.flags.c_contiguous and data.ctypes.data % ALIGNMENT == 0:
        return data
    made = empty(data.shape, dtype)
    made[...] = data
    return made


def kernels() -> Kernels:
    """Return the kernels for this machine: from the wheel, from the cache, or compiled now.

    Raises NativeError if there are none, and SettingsError if $TRANSLUME_INSTRUCTIONS is none of this processor's.
    """
    found = load_once()
    if isinstance(found, str):
        raise NativeError(found)
    return found


def has_kernels() -> bool:
    """Return whether this process has kernels."""
    return not isinstance(load_once(), str)


def describe_kernels() -> str:
    """Return which kernels this process uses, or why it has none."""
    found = load_once()
    if isinstance(found, str):
        return f"none: {found}"
    return f"{found.instructions}, {'from the wheel' if found.origin == 'wheel' else 'compiled on this machine'}"


def set_threads(count: int) -> None:
    """Set the number of threads of the kernels in this process, and of torch if it is imported later."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    if load_once.cache_info().currsize and not isinstance(found := load_once(), str):
        found.library.translume_set_threads(count)


@functools.cache
def load_once() -> "Kernels | str":
    """Return the kernels, or the reason why they are not available. Computed once per process."""
    if os.environ.get("TRANSLUME_NATIVE") == "0":
        return "TRANSLUME_NATIVE is 0"
    instructions = chosen_instructions()
    packaged = FOLDER / LIBRARIES / instructions.library
    reason = ""
    if packaged.is_file():
        try:
            return _load(str(packaged), instructions, "wheel")
        except OSError as error:  # made for another C library
            reason = f"; the wheel's do not load: {error}"
    command = compiler()
    if command is None or os.name != "posix":
        return f"no C compiler was found (cc, gcc, clang){reason}"
    try:
        return _compiled(command, instructions)
    except (NativeError, CompilerError) as error:
        reason = f"{error}{reason}"
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"{command}: {error}{reason}"
    import logging

    logging.getLogger(__name__).warning("no compiled kernels, which makes the engine slow: %s", reason)
    return reason


def _compiled(command: str, instructions: InstructionSet) -> Kernels:
    """Return the kernels from the cache, compiling them if they are not there, damaged or do not load."""
    stem = f"kernels-{instructions.name}-{_digest(command, instructions)}"
    folder = _private_folder(cache_folder() / "native")
    for path in folder.glob(f"{stem}-*.so"):
        try:
            return _load_checked(path, instructions)
        except OSError:  # damaged, or compiled for another C library
            path.unlink(missing_ok=True)
    return _load_checked(_compile(command, instructions, folder, stem), instructions)


def _private_folder(folder: Path) -> Path:
    """Return the folder if the user owns it and no other user can write to it, else a temporary folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError:
        return temporary_folder()
    return folder if _is_private(status) and os.access(folder, os.W_OK) else temporary_folder()


def _is_private(status: os.stat_result) -> bool:
    """Return whether the user owns a file or folder and no other user can write to it."""
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(command: str, instructions: InstructionSet) -> str:
    version = subprocess.run(
        [command, "--version"], capture_output=True, timeout=COMPILER_TIMEOUT_SECONDS, check=True
    ).stdout
    texts = [(FOLDER / name).read_text(encoding="utf-8") for name in SOURCES]
    facts = (*texts, command, version.decode(errors="replace"), *FLAGS, *instructions.flags, platform.machine())
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _compile(command: str, instructions: InstructionSet, home: Path, stem: str) -> Path:
    """Compile the sources, move the library into `home` in one rename, and return its path, which has its digest."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        library = Path(folder) / "kernels.so"
        compile_library(command, FOLDER, instructions, library)
        library.chmod(0o700)  # other users must not write to a library that is loaded, whatever the umask
        return library.replace(home / f"{stem}-{atomic.digest(library)[:16]}.so")


def _load_checked(path: Path, instructions: InstructionSet) -> Kernels:
    """Load a compiled library if it is intact and no other user can have written it.

    The file that is checked is the one loaded. Raises OSError if its digest is not the one in its name.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    if not _is_private(os.fstat(file)):
        os.close(file)
        raise NativeError(f"{path}: found a file that other users can write to, expected one of this user alone")
    # The file stays open: the loader would take a library opened later under the same number for this one.
    opened = Path(f"/proc/self/fd/{file}") if Path("/proc/self/fd").exists() else path
    try:
        if not path.stem.endswith(atomic.digest(opened)[:16]):
            raise OSError(f"{path}: damaged")
        return _load(str(opened), instructions, "compiled")
    except OSError:
        os.close(file)
        raise


def _load(path: str, instructions: InstructionSet, origin: Literal["wheel", "compiled"]) -> Kernels:
    library = ctypes.CDLL(path)
    for name in (
        "translume_has_fp16",
        "translume_panel",
        "translume_group",
        "translume_weight_offset",
        "translume_summarize",
        "translume_add_copies",
        "translume_workspace",
        "translume_encode_workspace",
        "translume_linear_workspace",
        "translume_sources_workspace",
        "translume_search",
        "translume_stable_prefix",
        "translume_attention_workspace",
        "translume_has_weight_gradient",
        "translume_weight_gradient_workspace",
    ):
        getattr(library, name).restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.translume_workspace.argtypes = [pointer, number, number, number]
    library.translume_encode_workspace.argtypes = [pointer, number, number]
    library.translume_linear_workspace.argtypes = [number, number]
    library.translume_step.argtypes = [pointer, pointer, pointer, pointer]
    library.translume_sources_workspace.argtypes = [pointer, number, number]
    library.translume_read_sources.argtypes = [pointer, pointer, pointer, number, pointer, pointer, pointer]
    library.translume_encode.argtypes = [pointer, pointer, number, number, pointer, pointer]
    library.translume_gelu.argtypes = [pointer, number]
    library.translume_set_threads.argtypes = [number]
    library.translume_linear.argtypes = [pointer, pointer, number, pointer, pointer]
    library.translume_summarize.argtypes = [pointer, number, number, number, ctypes.c_float, *[pointer] * 6]
    library.translume_add_copies.argtypes = [*[pointer] * 4, number, number, number, *[pointer] * 7]
    library.translume_search.argtypes = [pointer, pointer, number]
    library.translume_stable_prefix.argtypes = [pointer, pointer, number, pointer]
    library.translume_square_sum.restype = ctypes.c_double
    library.translume_square_sum.argtypes = [pointer, number, number]
    library.translume_adam.argtypes = [*[pointer] * 6, number, number]
    library.translume_drop_add.argtypes = [number, number, *[pointer] * 3, ctypes.c_float, pointer]
    library.translume_sum_rows.argtypes = [number, number, number, *[pointer] * 4]
    for name in ("exponentials", "divergence"):
        getattr(library, f"translume_{name}").argtypes = [number, number, number, *[pointer] * 3]
    library.translume_attention_workspace.argtypes = [number, number, number]
    library.translume_weight_gradient_workspace.argtypes = [number, number, number]
    library.translume_weight_gradient.argtypes = [number, number, number, *[pointer] * 4, number, pointer]
    for name in ("norm", "norm_gradient", "attention", "attention_gradient"):
        getattr(library, f"translume_{name}").argtypes = [number, pointer]
    library.translume_set_threads(default_threads())
    return Kernels(
        library=library,
        instructions=instructions.name,
        origin=origin,
        fp16=bool(library.translume_has_fp16()),
        panel=int(library.translume_panel()),
        group=int(library.translume_group()),
        offset=int(library.translume_weight_offset()),
    )
