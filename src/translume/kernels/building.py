"""The instruction sets of the kernels and their compilation, by the build of a wheel or at the user's place.

The build loads this file by its path, before Translume or its dependencies are installed: it imports only the standard
library.
"""

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCES: Final = (
    "vectors.h", "threads.h", "linear.h", "stack.h", "attention.h", "logits.h", "copying.h", "draft.h", "rules.h",
    "sampling.h", "numbers.h",
    "threads.c", "linear.c", "layers.c", "logits.c", "copying.c", "search.c", "training.c", "packed_attention.c",
    "weight_gradient.c",
)  # fmt: skip
"""The C files of this package."""
FLAGS: Final = ("-O2", "-fno-math-errno", "-shared", "-fPIC", *(() if sys.platform == "win32" else ("-pthread",)))
COMPILER_TIMEOUT_SECONDS: Final = 120
LIBRARIES: Final = "libraries"
"""The folder in this package with the libraries of a wheel."""


class CompilerError(Exception):
    """A C compiler failed; the message is one line."""


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Instructions that a library of kernels uses.

    flags: of the compiler.  features: that the processor must have, as in /proc/cpuinfo.
    """

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]

    @property
    def library(self) -> str:
        """The file name of its library in a wheel."""
        return f"kernels-{self.name}{'.dll' if sys.platform == 'win32' else '.so'}"


def _sets(flags: str, features: str, *steps: tuple[str, str, str]) -> tuple[InstructionSet, ...]:
    """Return sets that each add flags and features to those given; steps: name, flags, features."""
    return tuple(
        InstructionSet(name, (*flags.split(), *added.split()), frozenset((*features.split(), *more.split())))
        for name, added, more in steps
    )


_AVX2 = ("-mavx2 -mfma -mf16c -mbmi -mbmi2", "avx2 fma f16c bmi1 bmi2")
_AVX512 = (
    f"{_AVX2[0]} -mavx512f -mavx512bw -mavx512dq -mavx512vl",
    f"{_AVX2[1]} avx512f avx512bw avx512dq avx512vl",
)
INSTRUCTION_SETS: Final = {
    "x86_64": (
        *_sets(
            *_AVX512,
            (
                "amx",
                "-mavx512vnni -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16",
                "avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16",
            ),
            ("avx512-bf16", "-mavx512vnni -mavx512bf16", "avx512_vnni avx512_bf16"),
            ("avx512-vnni", "-mavx512vnni", "avx512_vnni"),
        ),
        *_sets(*_AVX2, ("avx2-vnni", "-mavxvnni", "avx_vnni")),
        *_sets(*_AVX512, ("avx512", "", "")),
        *_sets(*_AVX2, ("avx2", "", "")),
    ),
    "arm64": _sets("", "", ("neon-dotprod", "-march=armv8.2-a+dotprod", "asimddp"), ("neon", "", "")),
}
"""By processor, the fastest first."""
GENERIC: Final = InstructionSet("generic", (), frozenset())
"""For other processors. Wheels have no library for it."""


def machine() -> str:
    """Return the processor's architecture, a key of INSTRUCTION_SETS or another name."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "aarch64": "arm64"}.get(name, name)


def compiler() -> str | None:
    """Return the C compiler: $CC, else the first of cc, gcc and clang; None if there is none."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for path in map(shutil.which, filter(None, names)) if path), None)


def compile_library(command: str, sources: Path, instructions: InstructionSet, target: Path) -> None:
    """Compile the C files in the folder `sources` to the shared library `target`.

    Raises CompilerError if the compiler fails.
    """
    units = [str(sources / name) for name in SOURCES if name.endswith(".c")]
    _run([command, *FLAGS, *instructions.flags, "-o", str(target), *units, "-lm"])


WEB: Final = "kernels.wasm"
"""The file name of the kernels in WebAssembly, in the folder LIBRARIES."""
_WEB_FLAGS = (
    "--target=wasm32-wasi", "-O2", "-msimd128", "-mbulk-memory", "-fno-math-errno", "-nostartfiles", "-Wl,--no-entry",
    "-Wl,-z,stack-size=262144", "-Wl,--strip-all",
)  # fmt: skip


def compile_web(sources: Path, target: Path) -> None:
    """Compile the C files in the folder `sources` to WebAssembly. Raises CompilerError, which says what that needs."""
    try:
        _run([shutil.which("clang") or "clang", *_WEB_FLAGS, "-o", str(target), str(sources / "web.c")])
    except CompilerError as error:
        needs = "needs clang with lld and wasi-libc (Debian: apt install clang lld wasi-libc), or a wheel that has it"
        raise CompilerError(f"{WEB} {needs}: {error}") from None


def _run(arguments: list[str]) -> None:
    command = arguments[0]
    try:
        done = subprocess.run(arguments, capture_output=True, timeout=COMPILER_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerError(f"{command}: {error}") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise CompilerError(f"{command} failed: {lines[0]}")
