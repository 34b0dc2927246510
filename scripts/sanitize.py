"""Run tests of the C kernels with sanitizers: AddressSanitizer with UndefinedBehaviorSanitizer, and ThreadSanitizer.

Compiles the kernels with each sanitizer into a copy of the package, and runs the tests there. Python itself is not
instrumented, so that only accesses of the kernels are checked: with "address" against all memory that torch and NumPy
allocate, with "thread" against each other, in searches and replicas that run in several threads.

    python scripts/sanitize.py [--only address] [--instructions avx2] [PYTEST OPTIONS]
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "thread": ("-fsanitize=thread",),
}
SEARCH = "tests/engine/test_search.py::test_searches_in_several_threads_share_the_weights_and_give_the_same_results"
STEP = "tests/training/test_updates.py::test_the_compiled_step_is_torchs"
TESTS = {
    "address": ["tests/engine", "tests/language_model/test_engine.py", "tests/model/test_compiled.py", STEP, "-k",
                "not failing_compiler and not native_0 and not compiled_library and not truncated"],
    "thread": [SEARCH,
               "tests/training/test_replicas.py::test_two_threads_with_dropout_give_the_same_weights_every_time", STEP],
}  # fmt: skip
OPTIONS = {
    # The interpreter does not free everything at its end.
    "address": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    "thread": {"TSAN_OPTIONS": f"exitcode=66 report_signal_unsafe=0 suppressions={ROOT / 'scripts/suppressions.txt'}"},
}


def building() -> ModuleType:
    """Return the module that compiles the kernels, without importing the package."""
    spec = importlib.util.spec_from_file_location("building", ROOT / "src/translume/kernels/building.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["building"] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(SANITIZERS), help="run one of the sanitizers")
    parser.add_argument("--instructions", default="avx2", help="the instruction set of the kernels")
    options, others = parser.parse_known_args()
    failed = [
        name
        for name in ([options.only] if options.only else SANITIZERS)
        if run(name, options.instructions, others).returncode or (name == "address" and check_functions())
    ]
    sys.exit(f"sanitizers that found faults: {', '.join(failed)}" if failed else 0)


def check_functions() -> int:
    """Run check_kernels.c with AddressSanitizer and every instruction set of this processor; return the failures."""
    kernels, failed = building(), 0
    features = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    known = (*kernels.INSTRUCTION_SETS[kernels.machine()], kernels.GENERIC)
    with tempfile.TemporaryDirectory() as folder:
        program, sources = Path(folder) / "check", ROOT / "src/translume/kernels"
        for each in (one for one in known if one.features <= features):
            flags = ["-O0", "-g", *SANITIZERS["address"], *each.flags, "-I", str(sources), "-o", str(program)]
            units = [str(ROOT / "tests/engine/check_kernels.c"), str(sources / "linear.c"), "-lm"]
            subprocess.run([str(kernels.compiler()), *flags, *units], check=True)
            code = subprocess.run([str(program)], check=False, stdout=subprocess.DEVNULL).returncode
            print(f"address, {each.name}: check_kernels.c {'fails' if code else 'agrees'}", flush=True)
            failed += code != 0
    return failed


def run(name: str, instructions: str, options: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Compile the kernels with a sanitizer and run the tests."""
    kernels = building()
    kernels.COMPILER_TIMEOUT_SECONDS = 900  # instrumented code takes minutes on a busy machine
    command = kernels.compiler() or sys.exit("no C compiler was found")
    known = {each.name: each for each in (*kernels.INSTRUCTION_SETS[kernels.machine()], kernels.GENERIC)}
    if instructions not in known:
        sys.exit(f"--instructions: found '{instructions}', expected one of {', '.join(known)}")
    flags = (*known[instructions].flags, "-O1", "-g", "-fno-omit-frame-pointer", *SANITIZERS[name])
    with tempfile.TemporaryDirectory() as folder:
        package = Path(shutil.copytree(ROOT / "src", Path(folder) / "src")) / "translume"
        libraries = package / "kernels" / kernels.LIBRARIES
        libraries.mkdir(exist_ok=True)
        instrumented = replace(known[instructions], flags=flags)
        kernels.compile_library(command, package / "kernels", instrumented, libraries / instrumented.library)
        # Without libstdc++ the sanitizer cannot handle exceptions of torch, which loads it later.
        runtimes = [
            subprocess.run([command, f"-print-file-name={each}"], check=True, capture_output=True, text=True).stdout
            for each in ("libasan.so" if name == "address" else "libtsan.so", "libstdc++.so.6")
        ]
        print(f"{name}, {instructions}: {' '.join(TESTS[name])}", flush=True)
        environment = {
            **os.environ,
            **OPTIONS[name],
            "LD_PRELOAD": " ".join(map(str.strip, runtimes)),
            "TRANSLUME_INSTRUCTIONS": instructions,
            "OMP_NUM_THREADS": "1",
        }
        # ThreadSanitizer of older compilers fails where the kernel places memory at random.
        fixed = ["setarch", "-R"] if shutil.which("setarch") else []
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"]
        tests += ["-o", f"pythonpath={package.parent}", *TESTS[name], *options]
        return subprocess.run([*fixed, *tests], env=environment, cwd=ROOT, check=False)


if __name__ == "__main__":
    main()
