"""Kill a training run with SIGKILL at three random moments, one of them during a commit, and resume it each time.

The resulting folder is compared byte by byte with that of an uninterrupted run. The moments are defined in updates and
fractions of an update, so that they do not depend on the machine's speed. With --streaming, the pairs are read from
three files in buffers of 700 pairs, without a token cache.

    python benchmarks/kill_resume.py [--updates 60] [--seed 7] [--streaming] [--json]
"""

import argparse
import filecmp
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

WORDS = [f"word{number}" for number in range(16)]
COMPARED = ("weights.safetensors", "resume/raw.safetensors", "resume/optimizer.safetensors", "resume/ema.safetensors")


def write_corpus(folder: Path, streaming: bool, pairs: int = 2000) -> None:
    """Write sentences over a vocabulary of sixteen words, the same sentences reversed, and the settings of the data."""
    draw = random.Random(3)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(1, 12))] for _ in range(pairs)]
    parts = {"train": lines}
    data: dict[str, object] = {side: str(folder / f"train*.{side[6:]}") for side in ("train_source", "train_target")}
    if streaming:
        parts = {"valid": lines[:40], **{f"train{part}": lines[40 + part :: 3] for part in range(3)}}
        data |= {side: str(folder / f"valid.{side[6:]}") for side in ("valid_source", "valid_target")}
        data |= {"streaming": True, "shuffle_buffer": 700}
    for name, some in parts.items():
        (folder / f"{name}.source").write_text("".join(" ".join(line) + "\n" for line in some))
        (folder / f"{name}.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in some))
    (folder / "data.json").write_text(json.dumps(data))


def child(corpus: Path, folder: Path, updates: int, after: int, share: float) -> None:
    """Train and print the number of every update; die `share` of an update after update `after`, or in the next commit.

    after: 0 for never.  share: negative to die in the next commit.
    """
    from translume.config import Config
    from translume.training import Progress, train

    config = Config.build(
        {
            "data": json.loads((corpus / "data.json").read_text()),
            "tokenizer": {"size": 400, "dropout": 0.1},
            "model": {"width": 64, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2},
            "training": {
                "updates": updates,
                "max_tokens": 500,
                "accumulate": 2,
                "warmup_updates": 10,
                "validate_every": 7,
                "save_every": 5,
                "average_last": 3,
                "keep": 3,
                "ema": 0.99,
                "precision": "fp32",
            },
        }
    )
    before, dying = time.monotonic(), False
    for event in train(config, folder):
        if isinstance(event, Progress):
            print(event.update, flush=True)
            if dying:
                die()
            elif after and event.update >= after and share < 0:
                die_while_writing()
                after = 0
            elif after and event.update >= after:
                threading.Timer(share * (time.monotonic() - before), die).start()
                dying = True  # with the next update at the latest, since the first one took longer
            before = time.monotonic()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing() -> None:
    """Die in the next commit, after half of its first file of tensors is written; print the file's name."""
    from translume import atomic

    def half(write: Callable[..., None]) -> Callable[..., None]:
        def written(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
            pieces = list(chunks)
            write(path, pieces[: len(pieces) // 2] if len(pieces) > 1 else pieces)
            if len(pieces) > 1:
                print(path.name.removeprefix(".").split(".safetensors")[0], flush=True)
                die()

        return written

    atomic.write = half(atomic.write)


def run(corpus: Path, folder: Path, updates: int, after: int = 0, share: float = 0.0) -> tuple[int, list[str]]:
    """Return how a run ended and what it printed; `after` and `share` are those of `child`."""
    command = [sys.executable, __file__, "--child", str(corpus), str(folder), "--updates", str(updates)]
    command += ["--after", str(after), "--share", str(share)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout.split()


def killed(corpus: Path, folder: Path, updates: int, after: int, share: float) -> str:
    """Kill one run at the given moment and return where it was killed."""
    code, printed = run(corpus, folder, updates, after, share)
    if code != -signal.SIGKILL:
        return f"not killed: it ended with exit code {code}"
    where = f"while {printed[-1]} was being written" if share < 0 else "between commits"
    return f"killed {where} after update {after}"


def to_the_end(corpus: Path, folder: Path, updates: int) -> int:
    """Return the number of updates of an uninterrupted run; fewer than requested with TRANSLUME_SHORT."""
    code, printed = run(corpus, folder, updates)
    if code:
        raise SystemExit(f"a run ended with exit code {code}")
    return int(printed[-1])


def committed(folder: Path) -> dict[str, Path]:
    """Return the files of the last commit by name."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    return {name: folder / entry["file"] for name, entry in files.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--streaming", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options.child[0], options.child[1], options.updates, options.after, options.share)
        return
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_corpus(home, options.streaming)
        updates = to_the_end(home, home / "whole", options.updates)
        quarter = updates // 4
        moments = [draw.randint(1 + quarter * index, quarter * (index + 1)) for index in range(3)]
        shares = [draw.random(), -1.0, draw.random()]
        kills = [
            killed(home, home / "killed", options.updates, *moment) for moment in zip(moments, shares, strict=True)
        ]
        to_the_end(home, home / "killed", options.updates)
        first, second = committed(home / "whole"), committed(home / "killed")
        names = [*COMPARED, *sorted(each for each in first if each.startswith("resume/candidate-"))]
        same = {each: filecmp.cmp(first[each], second[each], shallow=False) for each in names}
    if options.json:
        print(json.dumps({"updates": updates, "kills": kills, "equal": same}))
    else:
        for line in kills:
            print(line)
        for each, equal in same.items():
            print(f"{each:44s} {'equal' if equal else 'DIFFERENT'}")
    if not all(same.values()) or any(line.startswith("not") for line in kills):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
