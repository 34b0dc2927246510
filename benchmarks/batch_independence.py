"""Check that a translation does not depend on the batch: alone, in random batches, and sorted by length.

Every line of SOURCE is translated alone, then in batches of random lines, then all together as the translator batches
them. For each engine and dtype, the output gives the number of identical texts and of scores that are equal bit for
bit, and what the engine's self-test claims.

    python benchmarks/batch_independence.py MODEL SOURCE [--lines 1000] [--beam 5] [--dtypes fp32 int8] [--json]
"""

import argparse
import json
import os
import random
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from translume.translator import Translator

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))


def found(
    translator: "Translator", lines: list[str], beam: int, numbers: Sequence[int]
) -> dict[int, tuple[str, float]]:
    """Return the best target and its score for each line in `numbers`, translated together."""
    done = translator.translate_all([lines[number] for number in numbers], beam=beam)
    return {n: (each.text, each.hypotheses[0].score) for n, each in zip(numbers, done, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("--lines", type=int, default=20 if SHORT else 1000)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--dtypes", nargs="+", choices=("plain", "fp32", "bf16", "int8"), default=["fp32", "int8"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.source is None:
        print("skipped: expected MODEL SOURCE")
        return

    from translume.engine import self_test
    from translume.translator import load

    plain = load(options.model, device="cpu", dtype="fp32", threads=1)
    lines = options.source.read_text("utf-8").splitlines()[: options.lines]
    mixed = list(range(len(lines)))
    random.Random(options.seed).shuffle(mixed)
    report: dict[str, dict[str, Any]] = {}
    for dtype in options.dtypes:
        translator = plain if dtype == "plain" else plain.compile(dtype)
        claim = None if translator.engine is None else self_test(translator.engine, plain.checkpoint.model)
        find = partial(found, translator, lines, options.beam)
        alone, batched, numbers = dict[int, Any](), dict[int, Any](), iter(mixed)
        for number in range(len(lines)):
            alone |= find([number])
        while batch := list(islice(numbers, random.Random(len(batched)).randint(2, 61))):
            batched |= find(batch)
        together = find(range(len(lines)))
        report[dtype] = {
            name: {
                "same_texts": sum(alone[number][0] == other[number][0] for number in alone),
                "equal_scores": sum(alone[number][1] == other[number][1] for number in alone),
                "largest_difference": max(abs(alone[number][1] - other[number][1]) for number in alone),
            }
            for name, other in (("random", batched), ("sorted", together))
        }
        report[dtype]["claimed"] = claim and claim.alone_equals_batched
    if options.json:
        print(json.dumps({"lines": len(lines), **report}))
        return
    print(f"{len(lines)} lines, beam {options.beam}; compared with each line alone:")
    for dtype, rows in report.items():
        print(f"{dtype}: the self-test claims equality: {rows.pop('claimed')}")
        for name, row in rows.items():
            print(f"  {name:7} same text {row['same_texts']}, equal score {row['equal_scores']}, "
                  f"largest difference {row['largest_difference']:.2g}")  # fmt: skip


if __name__ == "__main__":
    main()
