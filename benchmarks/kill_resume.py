"""Kills a training run with SIGKILL at three random moments, one of them inside a commit, resumes it each time, and
compares the folder with that of a run nobody disturbed, byte by byte.

    python benchmarks/kill_resume.py [--updates 60] [--seed 7] [--json]
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
import time
from pathlib import Path

WORDS = [f"word{number}" for number in range(16)]
COMPARED = ("weights.safetensors", "resume/raw.safetensors", "resume/optimizer.safetensors", "resume/ema.safetensors")


def write_corpus(folder: Path, pairs: int = 2000) -> None:
    """Sentences of sixteen words, and the same backwards."""
    draw = random.Random(3)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(1, 12))] for _ in range(pairs)]
    (folder / "train.source").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "train.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))


def child(corpus: Path, folder: Path, updates: int) -> None:
    """Train, and tell the number of every update on standard output."""
    from translume.config import Config
    from translume.training import Progress, train

    config = Config.build(
        {
            "data": {
                "train_source": str(corpus / "train.source"),
                "train_target": str(corpus / "train.target"),
            },
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
    for event in train(config, folder):
        if isinstance(event, Progress):
            print(event.update, flush=True)


def start(corpus: Path, folder: Path, updates: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", str(corpus), str(folder), "--updates", str(updates)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_at(process: subprocess.Popen[str], folder: Path, update: int, *, inside_commit: bool, delay: float) -> str:
    """SIGKILL after `update` updates and `delay` seconds, or then as soon as a file of a commit is half written."""
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= update:
            break
    time.sleep(delay)
    where = "between commits"
    while inside_commit and process.poll() is None:
        parts = [path for parent in (folder, folder / "resume") for path in parent.glob(".*.part")]
        if parts:
            where = f"while {parts[0].name.removeprefix('.').split('.safetensors')[0]} was being written"
            break
    if process.poll() is not None:
        return "not killed: it was over before"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return f"killed {where} after update {update}"


def committed(folder: Path) -> dict[str, Path]:
    """The files of the last commit by name."""
    files = json.loads((folder / "manifest.json").read_text())["files"]
    return {name: folder / entry["file"] for name, entry in files.items()}


def run_to_the_end(corpus: Path, folder: Path, updates: int) -> None:
    process = start(corpus, folder, updates)
    process.communicate()
    if process.returncode:
        raise SystemExit(f"a run ended with exit code {process.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.updates)
        return
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_corpus(home)
        run_to_the_end(home, home / "whole", options.updates)
        third = options.updates // 4
        moments = [draw.randint(1 + third * index, third * (index + 1)) for index in range(3)]
        kills = []
        for index, update in enumerate(moments):
            process = start(home, home / "killed", options.updates)
            delay = 0.0 if index == 1 else draw.random() * 0.2
            kills.append(kill_at(process, home / "killed", update, inside_commit=index == 1, delay=delay))
        run_to_the_end(home, home / "killed", options.updates)
        first, second = committed(home / "whole"), committed(home / "killed")
        names = [*COMPARED, *sorted(each for each in first if each.startswith("resume/candidate-"))]
        same = {each: filecmp.cmp(first[each], second[each], shallow=False) for each in names}
    if options.json:
        print(json.dumps({"updates": options.updates, "kills": kills, "equal": same}))
    else:
        for line in kills:
            print(line)
        for each, equal in same.items():
            print(f"{each:44s} {'equal' if equal else 'DIFFERENT'}")
    if not all(same.values()) or any(line.startswith("not") for line in kills):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
