"""Bulk translation with worker processes and on a local Ray cluster: speed, and outputs after deaths.

Lines of a file are repeated with numbers, so that all differ. The files are translated with `--workers`, on Ray, on Ray
with one actor killed, and on Ray with the command killed and started again. All outputs must be the same.

    python benchmarks/bulk_ray.py [--lines 200000] [--shards 8] [--workers 2] [--only speed|deaths] [--ray auto] \
        MODEL LINES.txt [-- OPTIONS of translume translate]
"""

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path


def start(model: Path, folder: Path, out: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start the translation of the files."""
    command = [sys.executable, "-m", "translume", "translate", str(model), "--input", f"{folder}/in/*.txt"]
    with (folder / f"{out}.log").open("ab") as log:
        return subprocess.Popen([*command, "--output", str(folder / out), *options], stderr=log, stdout=log)


def finish(process: "subprocess.Popen[bytes]", folder: Path, out: str) -> str:
    """Wait for the end. Return the digest of all outputs."""
    if process.wait() != 0:
        raise SystemExit((folder / f"{out}.log").read_text())
    digest = sha256()
    for path in sorted((folder / out).iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def written(folder: Path) -> int:
    """Return the bytes of all outputs so far."""
    return sum(path.stat().st_size for path in folder.glob("*")) if folder.exists() else 0


def actors() -> list[int]:
    """Return the ids of Ray's processes that translate."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::_Actor.run"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    while not condition():
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=["speed", "deaths"], help="speed: kill nothing; deaths: kill only")
    parser.add_argument("--ray", default="local", help="address of the cluster; local starts one each time")
    parser.add_argument("words", nargs="*", help="more options of translume translate")
    options = parser.parse_args()
    count = options.lines // options.shards
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "in").mkdir()
        lines = itertools.cycle(options.file.read_text().splitlines())
        numbered = (f"{next(lines)} {number}\n" for number in itertools.count())
        for shard in range(options.shards):
            (folder / "in" / f"{shard:03}.txt").write_text("".join(itertools.islice(numbered, count)))
        workers = ["--workers", str(options.workers), *options.words]
        cluster = ["--ray", options.ray, *workers]

        for name, words in (("workers", workers), ("ray", cluster))[: 1 if options.only == "deaths" else 2]:
            begun = time.monotonic()
            process = start(options.model, folder, name, *words)
            while process.poll() is None and not written(folder / name):
                time.sleep(0.05)
            first, wait = written(folder / name), time.monotonic() - begun
            digest = finish(process, folder, name)
            seconds = time.monotonic() - begun
            total = written(folder / name)
            rate = count * options.shards / seconds
            later = count * options.shards * (total - first) / total / (seconds - wait)
            print(
                f"{name}: {rate:,.0f} lines/s with the start; first output after {wait:.1f} s, {later:,.0f} lines/s "
                f"from then; outputs {digest}",
                flush=True,
            )

        if options.only == "speed":
            return

        def begun_second() -> bool:
            return (folder / out / "000.txt").exists() and bool(actors())

        out = "actor"
        process = start(options.model, folder, out, *cluster)
        wait_for(begun_second)
        os.kill(actors()[0], signal.SIGKILL)
        print(f"an actor killed: outputs {finish(process, folder, out)}", flush=True)

        out = "driver"
        process = start(options.model, folder, out, *cluster)
        wait_for(begun_second)
        process.kill()
        process.wait()
        wait_for(lambda: not actors())
        left = sorted(path.name for path in (folder / out).iterdir())
        again = finish(start(options.model, folder, out, *cluster), folder, out)
        print(f"the command killed after {', '.join(left)}, started again: outputs {again}", flush=True)


if __name__ == "__main__":
    main()
