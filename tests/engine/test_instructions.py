"""The kernels of every instruction set agree with scalar loops; a variable chooses a lower set.

Sets that this processor lacks are emulated: AMX by scalar C, NEON by qemu-user. That shows correctness, not speed.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from translume.errors import SettingsError
from translume.kernels.building import GENERIC, INSTRUCTION_SETS, InstructionSet, compiler, machine
from translume.kernels.cpu import chosen_instructions, instruction_sets
from translume.kernels.loading import FOLDER

HERE = Path(__file__).parent
KNOWN = {each.name: each for sets in INSTRUCTION_SETS.values() for each in sets}


def run_checks(instructions: InstructionSet, folder: Path, *options: str, cc: str | None = None) -> str:
    """Compile check_kernels.c for an instruction set and run it; return its output."""
    program = folder / "check"
    sources = [str(HERE / "check_kernels.c"), *(str(FOLDER / name) for name in ("threads.c", "linear.c"))]
    flags = ["-O0", "-I", str(FOLDER), "-o", str(program), *instructions.flags, *options]
    subprocess.run([cc or str(compiler()), *flags, *sources, "-lm"], check=True, capture_output=True)
    runner = ["qemu-aarch64"] if cc else []
    return subprocess.run([*runner, str(program)], check=False, capture_output=True, text=True).stdout


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_every_instruction_set_of_this_processor_agrees_and_has_the_same_int8_products(tmp_path):
    found = {each.name: run_checks(each, tmp_path) for each in instruction_sets()}
    assert found.pop(GENERIC.name) == "agrees 0\n"  # no int8
    assert {output.split()[0] for output in found.values()} <= {"agrees"}, found
    assert len({output for output in found.values() if output != "agrees 0\n"}) <= 1, found


def test_tiles_of_amx_have_the_products_of_vectors(tmp_path):
    vectors = KNOWN["avx512-bf16"]
    if compiler() is None or vectors not in instruction_sets():
        pytest.skip("no C compiler, or a processor without AVX512-BF16")
    emulated = run_checks(vectors, tmp_path, "-include", str(HERE / "emulated_tiles.h"))
    assert emulated == run_checks(vectors, tmp_path)
    assert emulated.startswith("agrees ")


@pytest.mark.parametrize("name", ["neon", "neon-dotprod"])
def test_neon_agrees_in_an_emulator(tmp_path, name):
    cross = shutil.which("aarch64-linux-gnu-gcc")
    if cross is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("no cross compiler or emulator of arm64")
    assert run_checks(KNOWN[name], tmp_path, "-static", cc=cross).startswith("agrees ")


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
