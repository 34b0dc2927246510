"""Train one model with 1, 2 and 4 processes and with threads, and compare speed and weights.

The corpus is random words and their reverse. All weights are compared as one vector, except the biases of keys, which
softmax ignores, so that Adam follows the noise of their gradients.

    python benchmarks/world_sizes.py [--updates 200] [--width 64] [--layers 3] [--sizes 1 2 4] [--threads 2]
        [--shard optimizer]
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

WORDS = [f"word{number}" for number in range(500)]
KEY_BIASES = ("query_key_value.bias", "key_value.bias")


def write_run(folder: Path, updates: int, shape: tuple[int, int], max_tokens: int, shard: str) -> None:
    """Write the corpus and the settings of the run.  shape: width, and layers of the encoder and of the decoder."""
    width, layers = shape
    draw = random.Random(3)
    lines = [[draw.choice(WORDS) for _ in range(draw.randint(1, 40))] for _ in range(4000)]
    (folder / "train.source").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / "train.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))
    (folder / "run.toml").write_text(
        f"""[data]
train_source = "train.source"
train_target = "train.target"
[tokenizer]
kind = "word"
size = 1000
[model]
width = {width}
feed_forward = {4 * width}
encoder_layers = {layers}
decoder_layers = {layers}
attention_heads = 4
dropout = 0.0
[training]
updates = {updates}
max_tokens = {max_tokens}
warmup_updates = 50
precision = "fp32"
shard = "{shard}"
validate_every = 1000000
save_every = 1000000
log_every = {max(1, updates // 2)}
"""
    )


def run(out: Path, folder: Path, processes: int, threads: int) -> tuple[float, float, float]:
    """Train. Return target tokens per second in the second half of the run, and the loss logged before and there."""
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    subprocess.run(
        [*start, "translume", "train", str(folder / "run.toml"), "--out", str(out), "--threads", str(threads)],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
    )
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    first, last = [line for line in lines if line["event"] == "progress"][-2:]
    return last["tokens_per_second"], first["loss"], last["loss"]


def difference(first: Path, second: Path) -> float:
    """Return the relative difference of the weights of two runs."""
    from translume.checkpoint import Manifest, committed, read_tensors

    one, two = (dict(read_tensors(committed(f, Manifest.read(f), "resume/raw.safetensors"))) for f in (first, second))
    names = [name for name in one if not name.endswith(KEY_BIASES)]
    distance = sum(float((two[name] - one[name]).double().square().sum()) for name in names)
    return float((distance / sum(float(one[name].double().square().sum()) for name in names)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", type=int, nargs="*", default=[2], help="One process with this many threads.")
    parser.add_argument("--shard", default="none")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_run(folder, options.updates, (options.width, options.layers), options.max_tokens, options.shard)
        kinds = [(size, 1) for size in options.sizes] + [(1, count) for count in options.threads]
        for number, (processes, threads) in enumerate(kinds):
            speed, earlier, loss = run(folder / str(number), folder, processes, threads)
            apart = difference(folder / "0", folder / str(number))
            rows.append(
                {
                    "processes": processes,
                    "threads": threads,
                    "tokens_per_second": speed,
                    "losses": [earlier, loss],
                    "difference": apart,
                }
            )
            if options.json:
                print(json.dumps(rows[-1]), flush=True)
            else:
                print(
                    f"{processes} processes of {threads} threads: {speed:,.0f} tokens/s, losses {earlier:.6f} and "
                    f"{loss:.6f}, weights differ by {apart:.1e}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
