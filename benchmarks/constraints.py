"""Measure what forced phrases cost: the share of phrases met, BLEU and time.

For each of the first lines, one or two phrases of one to three words are drawn from its reference with a seed,
preferring those that the plain beam's output does not contain. The lines are translated without and with them, in
turns, `--rounds` times. Printed: the number of phrases contained as whole words, BLEU (texts as they are tokenized) and
the median processor time with its spread. The phrases come from the references, so BLEU rises by what they reveal; it
shows whether they are placed correctly.

    python benchmarks/constraints.py MODEL SOURCE REFERENCE [--lines 200] [--beam 5] [--seed 0] [--rounds 3] [--json]
"""

import argparse
import json
import os
import random
import statistics
import time
from itertools import islice
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
LONGEST = 3


def spans(words: list[str]) -> list[tuple[int, int]]:
    """Return the spans [begin, end) that may be forced: up to three words, each with a letter or a digit."""
    spoken = [any(character.isalnum() for character in word) for word in words]
    return [
        (begin, end)
        for begin in range(len(words))
        for end in range(begin + 1, min(begin + LONGEST, len(words)) + 1)
        if all(spoken[begin:end])
    ]


def phrases_of(reference: str, output: str, draw: random.Random) -> list[str]:
    """Return one or two phrases of the reference without common words, preferably ones that the output lacks."""
    from translume.translator.constraints import places

    words = reference.split()
    chosen: list[tuple[int, int]] = []
    for _ in range(draw.choice((1, 2))):
        free = [(b, e) for b, e in spans(words) if all(e <= begin or end <= b for begin, end in chosen)]
        lacking = [(b, e) for b, e in free if not places(" ".join(words[b:e]), output)]
        if free:
            chosen.append(draw.choice(lacking or free))
    return [" ".join(words[begin:end]) for begin, end in chosen]


def measured(model: str, data: tuple[list[str], list[str]], beam: int, seed: int, rounds: int) -> dict[str, Any]:
    """Return the results without and with constraints."""
    import sacrebleu

    from translume.translator import load
    from translume.translator.constraints import places

    translator = load(model, device="cpu", dtype="fp32", threads=1)
    sources, references = data
    draw = random.Random(seed)
    plain = [each.text for each in translator.translate_all(sources, strategy="beam", beam=beam)]
    forced = [phrases_of(reference, output, draw) for reference, output in zip(references, plain, strict=True)]
    ways = {"plain": [[] for _ in sources], "constrained": forced}
    found: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, wanted in ways.items():
            began = time.process_time()
            found[way] = list(translator.translate_all(sources, strategy="beam", beam=beam, constraints=wanted))
            seconds[way].append(time.process_time() - began)
    rows = []
    for way, translations in found.items():
        texts = [each.text for each in translations]
        rows.append({
            "way": way,
            "met": sum(len(places(phrase, text)) >= phrases.count(phrase)
                       for phrases, text in zip(forced, texts, strict=True) for phrase in phrases),
            "unmet": sum(warning.startswith("constraint_unmet") for each in translations for warning in each.warnings),
            "bleu": sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score,
            "chrf": sacrebleu.corpus_chrf(texts, [references]).score,
            "seconds": statistics.median(seconds[way]),
            "spread": max(seconds[way]) / min(seconds[way]),
        })  # fmt: skip
    return {
        "lines": len(sources),
        "phrases": sum(map(len, forced)),
        "beam": beam,
        "seed": seed,
        "rows": rows,
        "slower": rows[1]["seconds"] / rows[0]["seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("source", nargs="?")
    parser.add_argument("reference", nargs="?")
    parser.add_argument("--lines", type=int, default=5 if SHORT else 200)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.reference is None:
        print("skipped: expected MODEL SOURCE REFERENCE")
        return
    sides = []
    for path in (options.source, options.reference):
        with open(path, encoding="utf-8") as file:
            sides.append([line.rstrip("\n") for line in islice(file, options.lines)])
    result = measured(options.model, (sides[0], sides[1]), options.beam, options.seed, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['phrases']} phrases in {result['lines']} lines, beam {result['beam']}")
    print(f"{'':12}{'phrases met':>12}{'reported':>12}{'BLEU':>8}{'chrF':>8}{'seconds':>9}{'spread':>8}")
    for row in result["rows"]:
        print(
            f"{row['way']:12}{row['met']:>12}{row['unmet']:>12}{row['bleu']:>8.2f}{row['chrf']:>8.2f}"
            f"{row['seconds']:>9.2f}{row['spread']:>8.2f}"
        )
    print(f"constrained takes {result['slower']:.2f} times as long")


if __name__ == "__main__":
    main()
