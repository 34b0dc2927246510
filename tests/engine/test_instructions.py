"""The kernels of every instruction set agree with scalar loops; a variable chooses a lower set.

Sets that this processor lacks are emulated: AMX by scalar C, NEON by qemu-user. That shows correctness, not speed.
"""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from translume.errors import SettingsError
from translume.kernels.building import GENERIC, INSTRUCTION_SETS, InstructionSet, compiler, machine
from translume.kernels.cpu import chosen_instructions, instruction_sets
from translume.kernels.loading import FOLDER

HERE = Path(__file__).parent
CROSS = shutil.which("aarch64-linux-gnu-gcc")
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
emulated = pytest.mark.skipif(
    CROSS is None or QEMU is None,
    reason="no emulator or cross compiler (Debian: qemu-user-static, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)",
)
KNOWN = {each.name: each for sets in INSTRUCTION_SETS.values() for each in sets}


@cache
def run_checks(instructions: InstructionSet, *options: str, cc: str | None = None) -> str:
    """Compile check_kernels.c for an instruction set and run it; return its output.

    It is compiled together with the kernels, so that the compiler reads its own headers of instructions once.
    """
    with TemporaryDirectory() as folder:
        program = f"{folder}/check"
        flags = ["-O0", "-I", str(FOLDER), "-o", program, *instructions.flags, *options]
        kernels = ["-include", "threads.c", "-include", "linear.c"]
        command = [cc or str(compiler()), *flags, *kernels, str(HERE / "check_kernels.c"), "-lm"]
        subprocess.run(command, check=True, capture_output=True)
        runner = [str(QEMU)] if cc else []
        return subprocess.run([*runner, program], check=False, capture_output=True, text=True).stdout


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_every_instruction_set_of_this_processor_agrees_and_has_the_same_int8_products():
    found = {each.name: run_checks(each) for each in instruction_sets()}
    assert found.pop(GENERIC.name) == "agrees 0\n"  # no int8
    assert {output.split()[0] for output in found.values()} <= {"agrees"}, found
    assert len({output for output in found.values() if output != "agrees 0\n"}) <= 1, found


def test_tiles_of_amx_have_the_products_of_vectors():
    vectors = KNOWN["avx512-bf16"]
    if compiler() is None or vectors not in instruction_sets():
        pytest.skip("no C compiler, or a processor without AVX512-BF16")
    emulated = run_checks(vectors, "-include", str(HERE / "emulated_tiles.h"))
    assert emulated == run_checks(vectors)
    assert emulated.startswith("agrees ")


@emulated
@pytest.mark.parametrize("name", ["neon", "neon-dotprod"])
def test_neon_agrees_in_an_emulator(name):
    assert run_checks(KNOWN[name], "-static", cc=CROSS).startswith("agrees ")


def run_models(name: str, folder: Path, cases: int) -> list[list[list[str]]]:
    """Compile run_kernels.c for an instruction set and run it; return what each part of each case prints."""
    instructions, arm = {**KNOWN, GENERIC.name: GENERIC}[name], name.startswith("neon")
    level = "-O2" if cases > 100 else "-O0"  # which compiles in a fifth of the time
    program, flags = folder / name, [level, *instructions.flags, *(["-static"] if arm else [])]
    command = [str(CROSS if arm else compiler()), *flags, "-I", str(FOLDER), str(HERE / "run_kernels.c"), "-lm"]
    subprocess.run([*command, "-o", str(program)], check=True, capture_output=True)
    run = [*([str(QEMU)] if arm else []), str(program), str(cases)]
    lines = subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()
    return [[part.split() for part in line.split("|")] for line in lines]


@emulated
@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("cases", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_models_and_searches_with_neon_are_those_without_vectors_of_a_set(tmp_path, cases):
    """Speed is not measured: there is only an emulator here."""
    wanted = run_models(GENERIC.name, tmp_path, cases)
    for name in ("neon", "neon-dotprod"):
        found = run_models(name, tmp_path, cases)
        assert len(found) == len(wanted) == cases
        for (exact, *ours), (expected, *theirs) in zip(found, wanted, strict=True):
            assert exact == expected  # sums of int8
            for one, other in zip(ours, theirs, strict=True):
                tokens = [[each for each in side if each[0] == "t"] for side in (one, other)]
                assert tokens[0] == tokens[1]
                numbers = [np.array([float(each) for each in side if each[0] != "t"]) for side in (one, other)]
                assert np.abs(numbers[0] - numbers[1]).max() <= 1e-6 * max(1.0, np.abs(numbers[1]).max())


def test_the_fastest_set_is_chosen_unless_the_variable_names_another(monkeypatch):
    names = [each.name for each in instruction_sets()]
    monkeypatch.delenv("TRANSLUME_INSTRUCTIONS", raising=False)
    assert chosen_instructions().name == names[0]
    monkeypatch.setenv("TRANSLUME_INSTRUCTIONS", "generic")
    assert chosen_instructions() == GENERIC
    monkeypatch.setenv("TRANSLUME_INSTRUCTIONS", "avx1024")
    with pytest.raises(SettingsError) as caught:
        chosen_instructions()
    assert str(caught.value).startswith(f"TRANSLUME_INSTRUCTIONS: found 'avx1024', expected one of {', '.join(names)}")


def test_sets_of_wider_vectors_come_first():
    names = ["amx", "avx512-bf16", "avx512-vnni", "avx2-vnni", "avx512", "avx2"]
    assert [each.name for each in INSTRUCTION_SETS["x86_64"]] == names
    assert machine() not in INSTRUCTION_SETS or instruction_sets()[-1] == GENERIC
