"""Time of a decoding step by prefix length and number of rows, and the memory of the decoder state.

An engine with random weights decodes random sources of 17 tokens; the targets never end. A step includes the 10 best
tokens. Printed: milliseconds per step (the median of `--rounds`) for prefixes of 16 to 96 tokens and 1 to 256 rows, and
the memory of the state (keys, values, encoded source). Two ratios: a step at 96 tokens to one at 16 (target: at most
1.3), and the time per row with the most rows to that with 64 rows (target: about 1).

    python benchmarks/step_speed.py [--shape 512 8 2048 6 32000] [--dtype int8] [--rounds 5] [--json]
"""

import argparse
import json
import os
import statistics
import time

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
LENGTHS = (16, 32, 64, 96)
ROWS = (1, 5, 16, 64) if SHORT else (1, 5, 16, 64, 256)
SOURCE = 17


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [128, 4, 256, 2, 4000] if SHORT else [512, 8, 2048, 6, 32000]
    names = ("WIDTH", "HEADS", "FEED_FORWARD", "LAYERS", "VOCABULARY")
    parser.add_argument("--shape", type=int, nargs=5, metavar=names, default=usual)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "int8"), default="int8")
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    import torch

    from translume.checkpoint import build_model
    from translume.config import ModelSettings, SoftmaxSettings
    from translume.engine import build_engine

    torch.set_num_threads(1)
    torch.manual_seed(1)
    width, heads, feed_forward, layers, vocabulary = options.shape
    settings = ModelSettings(
        width=width, attention_heads=heads, feed_forward=feed_forward, encoder_layers=layers, decoder_layers=layers,
        head=SoftmaxSettings(tie="all"),
    )  # fmt: skip
    engine = build_engine(build_model(settings, vocabulary, vocabulary).eval(), options.dtype)

    def reading(rows: int) -> tuple[dict[int, float], dict[int, int]]:
        """Return milliseconds per step, and bytes of the state, by prefix length."""
        source = torch.randint(4, vocabulary, (rows, SOURCE))
        state = engine.start(source, torch.ones_like(source, dtype=torch.bool))
        prefix = torch.randint(4, vocabulary, (rows, max(LENGTHS) + 1))
        taken, sizes = {}, {}
        for length in range(1, max(LENGTHS) + 1):
            began = time.perf_counter()
            belief, state = engine.step(prefix[:, :length], state)
            belief.topk(10)
            taken[length] = (time.perf_counter() - began) * 1e3
            sizes[length] = sum(each.nbytes for each in (state.cache.past, state.cache.cross))
        around = {length: [taken[near] for near in range(length - 4, length + 1)] for length in LENGTHS}
        return {length: statistics.median(near) for length, near in around.items()}, sizes

    table = {}
    for rows in ROWS:
        reading(rows)
        runs = [reading(rows) for _ in range(options.rounds)]
        milliseconds = {length: statistics.median(run[0][length] for run in runs) for length in LENGTHS}
        table[rows] = (milliseconds, {length: runs[0][1][length] / 2**20 for length in LENGTHS})
    most = max(ROWS)
    found = {
        "ratio_step_at_96_to_16": max(table[rows][0][96] / table[rows][0][16] for rows in ROWS),
        f"ratio_a_row_of_{most}_to_64": (table[most][0][16] / most) / (table[64][0][16] / 64),
    }
    if options.json:
        print(json.dumps({"milliseconds": {rows: each[0] for rows, each in table.items()},
                          "mebibytes": {rows: each[1] for rows, each in table.items()}, **found}))  # fmt: skip
        return
    print(f"{options.shape}, {options.dtype}, one thread: ms per step (MiB of state), by prefix length")
    print("rows " + "".join(f"{length:>20}" for length in LENGTHS))
    for rows, (milliseconds, sizes) in table.items():
        print(f"{rows:4} " + "".join(f"{milliseconds[each]:10.2f} ({sizes[each]:7.1f})" for each in LENGTHS))
    for name, ratio in found.items():
        print(f"{name}: {ratio:.2f}")


if __name__ == "__main__":
    main()
