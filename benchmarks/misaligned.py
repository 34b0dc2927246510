"""Measure whether the corpus lens finds misaligned pairs, and how long it takes.

The targets of one percent of the pairs, drawn with a seed, are exchanged. The output counts how many of them are among
the two percent with the lowest gain, log p(y|x) − log p(y) per token, by which `translume inspect corpus` ranks, and
among the two percent with the lowest log p per token, which needs no second pass.

    python benchmarks/misaligned.py MODEL SOURCE TARGET [--seeds 4] [--lines N] [--json]
"""

import argparse
import json
import os
import random
import time
from itertools import islice
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
PLANTED, LOOKED_AT = 0.01, 0.02


def planted(targets: list[str], seed: int) -> tuple[list[str], set[int]]:
    """Return the targets with some of them exchanged, and the numbers of these lines from 1."""
    chosen = random.Random(seed).sample(range(len(targets)), max(2, round(PLANTED * len(targets))))
    found = list(targets)
    for one, other in zip(chosen, [*chosen[1:], chosen[0]], strict=True):
        found[one] = targets[other]
    return found, {1 + place for place in chosen if found[place] != targets[place]}


def measured(model: str, sources: list[str], targets: list[str], seeds: int) -> list[dict[str, Any]]:
    """Return the results of each seed."""
    from translume.inspection.corpus import inspect_corpus
    from translume.translator import load

    translator = load(model, device="cpu", dtype="fp32")
    rows = []
    for seed in range(seeds):
        shuffled, wrong = planted(targets, seed)
        began = time.perf_counter()
        lens = inspect_corpus(translator, zip(sources, shuffled, strict=True), show=round(LOOKED_AT * len(sources)))
        seconds = time.perf_counter() - began
        by_gain, by_log_p = (wrong & {view.line for view in views} for views in (lens.suspects, lens.hardest))
        rows.append({
            "seed": seed, "pairs": len(sources), "planted": len(wrong), "by_gain": len(by_gain),
            "by_log_p": len(by_log_p), "seconds": seconds,
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("source", nargs="?")
    parser.add_argument("target", nargs="?")
    parser.add_argument("--seeds", type=int, default=1 if SHORT else 4)
    parser.add_argument("--lines", type=int, default=200 if SHORT else None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.target is None:
        print("skipped: expected MODEL SOURCE TARGET")
        return
    from translume.data.lines import read_lines

    sources, targets = (list(islice(read_lines(path), options.lines)) for path in (options.source, options.target))
    rows = measured(options.model, sources, targets, options.seeds)
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'seed':>4} {'pairs':>8} {'planted':>8} {'by gain':>8} {'by log p':>9} {'seconds':>8}")
    for row in rows:
        print(
            f"{row['seed']:4} {row['pairs']:8,} {row['planted']:8,} {row['by_gain']:8,} {row['by_log_p']:9,} "
            f"{row['seconds']:8.1f}"
        )


if __name__ == "__main__":
    main()
