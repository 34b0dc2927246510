"""Measure the memory of an import: `python benchmarks/_import_memory.py FOLDER OUT` (Linux).

Prints the largest resident memory of the process above that before the import, anonymous and with the mapped pages of
files, which the system can drop, as multiples of the weights in float32.
"""

import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import translume
from translume.checkpoint import load_checkpoint


def resident() -> tuple[int, int]:
    """Return the bytes of anonymous memory, and of all resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "VmRSS"))
    }
    return values["RssAnon"], values["VmRSS"]


def main(source: str, out: str) -> None:
    for module in ("importing", "huggingface.compare"):  # libraries are loaded before the measurement begins
        import_module(f"translume.interchange.{module}")
    before, peak, ended = resident(), [0, 0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.005):
            peak[:] = map(max, peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    translume.import_model(source, out)
    seconds = time.perf_counter() - begin
    ended.set()
    watcher.join()
    begin = time.perf_counter()
    model = load_checkpoint(out).model
    loading = time.perf_counter() - begin
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    print(f"weights in float32: {weights / 1e6:,.0f} MB; import {seconds:.1f} s, load {loading:.1f} s")
    for name, most, start in zip(("anonymous", "resident"), peak, before, strict=True):
        print(f"{name}: {(most - start) / 1e6:,.0f} MB, {(most - start) / weights:.2f} times the weights")


if __name__ == "__main__":
    main(*sys.argv[1:])
