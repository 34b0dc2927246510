"""What settings of [model] gain and cost on Multi30k: at equal parameters, and at equal processor time.

    python benchmarks/architectures.py [--folder DIR] [--data DIR] [--rows base,rms,...] [--updates 750] [--seeds 3]

writes a TOML file for each row and trains it by `translume sweep`, first all rows with the first seed, then with the
next, so that an interrupted run is a table of fewer seeds; the same command goes on. `feed_forward` is changed until
all models have as many weights as the base, but for experts, which have as much work. Then it measures the processor
time of an update, all rows in turns, and prints the table of docs/architectures.md. --seeds 0: only the table.

A difference from the base is "none" if it is below two deviations: those between the seeds, over all rows. At equal
time it is that from the base with as many updates as take the same processor time. "longer" is the base with more
updates; between both, and beyond, the base's results are taken to be linear in the logarithm of the updates.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
DATA = Path(os.environ.get("TRANSLUME_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")

ROWS = {
    "base": "",
    "key_value_heads": "key_value_heads = 1",
    "swiglu": 'activation = "swiglu"',
    "norm-post": 'norm = "post"',
    "rms": 'normalization = "rms"',
    "rotary": 'positions = "rotary"',
    "relative": 'positions = "relative"',
    "modern": """normalization = "rms"
activation = "swiglu"
positions = "rotary"
key_value_heads = 1
query_key_norm = true
bias = false""",
    "longer": "",
    "merged": 'decoder_mixing = "merged"',
    "ssru": 'decoder_mixing = "ssru"',
    "query_key_norm": "query_key_norm = true",
    "norm-both": 'norm = "both"',
    "no-bias": "bias = false",
    "gelu": 'activation = "gelu"',
    "experts": "experts = [0, 4]",
    "capped": 'head = {kind = "capped", cap = 30.0}',
}
"""Lines of [model] of each row. "longer" is the base with more updates."""
LONGER = 1.4
"""How many times as many updates."""
VARIED = "training.validate_every=100000"
"""Validate once, at the end."""
VOCABULARY, FEED_FORWARD, STEP = 4000, 256, 16
FILES = """
[data]
source_language = "en"
target_language = "de"
train_source = "{data}/multi30k/tok/train.lc.norm.tok.en.gz"
train_target = "{data}/multi30k/tok/train.lc.norm.tok.de.gz"
valid_source = "{data}/multi30k/tok/val.lc.norm.tok.en"
valid_target = "{data}/multi30k/tok/val.lc.norm.tok.de"
[tokenizer]
size = {vocabulary}
shared = true
[training]
updates = {updates}
max_tokens = 1024
optimizer = "adam"
learning_rate = 0.002
schedule = "cosine"
warmup_updates = {warmup}
average_last = 1
save_every = 100000
[evaluation]
tokenize = "none"
lowercase = true
[decoding]
strategy = "greedy"
"""
MODEL = """[model]
width = 128
encoder_layers = 3
decoder_layers = 3
attention_heads = 4
max_positions = 256
feed_forward = {feed_forward}
{lines}
"""


def model_of(lines: str, feed_forward: int) -> Any:
    """Return the model of lines of [model], with random weights."""
    from translume.checkpoint import build_model
    from translume.config import Config

    settings = Config.parse(MODEL.format(feed_forward=feed_forward, lines=lines)).model
    return build_model(settings, VOCABULARY, VOCABULARY)


def feed_forward_of(row: str) -> int:
    """Return the `feed_forward`, a multiple of STEP, with which a row has about as many weights as the base."""
    if row == "experts":
        return FEED_FORWARD

    def count(lines: str, feed_forward: int) -> int:
        return sum(weight.numel() for weight in model_of(lines, feed_forward).parameters())

    least, slope = count(ROWS[row], STEP), count(ROWS[row], 2 * STEP) - count(ROWS[row], STEP)
    return STEP * (1 + round((count("", FEED_FORWARD) - least) / slope))


def train(folder: Path, data: Path, rows: Sequence[str], updates: int, seeds: int) -> None:
    """Train rows with each seed."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        length = round(updates * LONGER) if row == "longer" else updates
        tables = MODEL.format(feed_forward=feed_forward_of(row), lines=ROWS[row]) + FILES.format(
            data=data.resolve(), vocabulary=VOCABULARY, updates=length, warmup=updates // 5
        )
        (folder / f"{row}.toml").write_text(tables, encoding="utf-8")
    for count in range(1, seeds + 1):
        command = [sys.executable, "-m", "translume", "sweep", *(str(folder / f"{row}.toml") for row in rows)]
        command += ["--vary", VARIED, "--seeds", str(count), "--sentences", "0", "--threads", "1", "--quiet"]
        subprocess.run([*command, "--out", str(folder / "sweep")], check=True, stdout=subprocess.DEVNULL)


def times_of(rows: Sequence[str], rounds: int) -> dict[str, float]:
    """Return the processor time in seconds of an update of each row: the median of `rounds`, all rows in turns."""
    import torch

    from translume.config import TrainingSettings
    from translume.data.batch import Batch
    from translume.kernels.allocator import keep_freed_memory
    from translume.model import LossOptions
    from translume.training.optimisation import Updater
    from translume.training.precision import choose_precision

    torch.set_num_threads(1)
    keep_freed_memory()
    device, settings = torch.device("cpu"), TrainingSettings(optimizer="adam")
    way = partial(Updater, options=LossOptions(0.1), precision=choose_precision("auto", device), device=device)
    updaters = {row: way(model_of(ROWS[row], feed_forward_of(row)).train(), settings) for row in rows}
    ids = torch.randint(4, VOCABULARY, (64, 16))
    mask = torch.ones_like(ids, dtype=torch.bool)
    sides = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask, "labels": ids}
    batch = Batch(**sides, lines=tuple(range(64)), tokens=ids.numel())
    taken: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(rounds + 2):
        for row, updater in updaters.items():
            began = time.process_time()
            updater.update(updater.add(batch).tokens, 1e-4)
            taken[row].append(time.process_time() - began)
    return {row: statistics.median(seconds[2:]) for row, seconds in taken.items()}


def results_of(folder: Path, row: str) -> list[tuple[float, float]]:
    """Return nll and BLEU of each seed that was measured."""
    from translume.experiments.sweep import read_run

    runs = [read_run(each) for each in sorted((folder / "sweep").glob(f"file={row},{VARIED}*")) if each.is_dir()]
    measures = [run.measured.measures for run in runs if run.measured is not None]
    return [(each.nll or math.inf, each.scores[0][1]) for each in measures]


def print_table(folder: Path, rows: Sequence[str], updates: int, times: dict[str, float]) -> None:
    """Print the rows that have results as Markdown."""
    found = {row: results for row in rows if (results := results_of(folder, row))}
    deviations = [
        math.sqrt(statistics.fmean(statistics.variance(column) for column in columns))
        for columns in zip(*(zip(*each, strict=True) for each in found.values() if len(each) > 1), strict=True)
    ] or [math.nan, math.nan]
    means = {row: [statistics.fmean(column) for column in zip(*each, strict=True)] for row, each in found.items()}
    base, longer = means["base"], means["longer"]
    usual_time = statistics.fmean((times["base"], times["longer"]))  # the same model twice

    def shown(value: float, measure: int) -> str:
        return "none" if abs(value) <= 2 * deviations[measure] else f"{value:+.{3 - 2 * measure}f}"

    print("| row | feed_forward | weights | seeds | time | nll | BLEU | Δ nll | Δ BLEU | Δ nll, same time | Δ BLEU |")
    print("|---|" + "---:|" * 10)
    for row, (nll, bleu) in means.items():
        size, time_ratio = (
            feed_forward_of(row),
            LONGER if row == "longer" else 1.0 if row == "base" else times[row] / usual_time,
        )
        weights = sum(weight.numel() for weight in model_of(ROWS[row], size).parameters())
        gained = [
            given + (more - given) * math.log(time_ratio) / math.log(LONGER)
            for given, more in zip(base, longer, strict=True)
        ]
        differences = [shown(value - usual, measure) for start in (base, gained)
                       for measure, (value, usual) in enumerate(zip((nll, bleu), start, strict=True))]  # fmt: skip
        cells = [row, size, f"{weights:,}", len(found[row]), f"{time_ratio:.2f}", f"{nll:.3f}", f"{bleu:.1f}"]
        print("|", " | ".join(map(str, [*cells, *differences])), "|")
    print(f"{updates} updates; deviation between seeds: nll {deviations[0]:.3f}, BLEU {deviations[1]:.2f}")
    print(f"seconds of an update of the base: {times['base']:.4f} and {times['longer']:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / f"architectures{'-short' * SHORT}")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    parser.add_argument("--rows", default="base,longer,rms" if SHORT else ",".join(ROWS))
    parser.add_argument("--updates", type=int, default=5 if SHORT else 750)
    parser.add_argument("--seeds", type=int, default=2 if SHORT else 3)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 15, help="of the time of an update")
    options = parser.parse_args()
    rows = options.rows.split(",")
    if options.seeds:
        train(options.folder, options.data, rows, options.updates, options.seeds)
    print_table(options.folder, rows, options.updates, times_of(rows, options.rounds))


if __name__ == "__main__":
    main()
