"""Measure the memory of an import: `python benchmarks/_import_memory.py FOLDER OUT [--alone]` (Linux).

Prints the largest resident memory of the process above that before the import, anonymous and with the mapped pages of
files, which the system can drop, as multiples of the weights in float32 and of OUT. With --alone, the import is not
compared with the original.
"""

import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from translume.checkpoint import load_checkpoint
from translume.interchange.ctranslate2_binary import needs_import
from translume.interchange.importing import import_folder


def resident() -> tuple[int, int]:
    """Return the bytes of anonymous memory, and of all resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "VmRSS"))
    }
    return values["RssAnon"], values["VmRSS"]


def main(source: str, out: str, *options: str) -> None:
    # Libraries are loaded before the measurement begins.
    other = needs_import(Path(source))
    for module in ("argos", "ctranslate2_reader") if other else ("huggingface.compare",):
        import_module(f"translume.interchange.{module}")
    before, peak, ended = resident(), [0, 0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[:] = map(max, peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    import_folder(Path(source), Path(out), "hf", Path(source).name, compare="--alone" not in options)
    seconds = time.perf_counter() - begin
    ended.set()
    watcher.join()
    begin = time.perf_counter()
    model = load_checkpoint(out).model
    loading = time.perf_counter() - begin
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    written = sum(path.stat().st_size for path in Path(out).iterdir())
    print(f"weights in float32: {weights / 1e6:,.0f} MB, {out}: {written / 1e6:,.0f} MB")
    print(f"import {seconds:.1f} s, load {loading:.1f} s")
    for name, most, start in zip(("anonymous", "resident"), peak, before, strict=True):
        used = most - start
        print(f"{name}: {used / 1e6:,.0f} MB, {used / weights:.2f} times float32, {used / written:.2f} times {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
