"""Measure what the rules of a search and sampling cost: batches of lines with each, and without any.

Everything runs in one process on one thread. For greedy and for beam search the settings take turns, `--rounds` times.
Printed for each setting: the median processor time of a batch, the median ratio to the plain search of the same round
with its spread, and the number of target tokens per line. Rules change the output, so that a search may be longer or
shorter: the last column is the ratio of times divided by the ratio of tokens of the longest line, its steps. With
`--length` all targets have that many tokens, so that all searches take the same steps with the same rows.

    python benchmarks/rule_speed.py MODEL SOURCE [--lines 16] [--length 0] [--beams 1 5] [--rounds 9] [--engine int8]
                                    [--prefix TEXT] [--ban TEXT …] [--only NAME …] [--json]

The prefix is by default the first word of the first translation, and the banned phrases are the most frequent words of
all (characters in scripts without spaces), so that they have an effect.
"""

import argparse
import json
import os
import statistics
import time
from collections import Counter
from itertools import islice
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
Change = dict[str, Any]


def changes(beam: int, prefix: str, banned: list[str]) -> dict[str, Change]:
    """Return the settings to compare by name, as changes of [decoding]."""
    plain: Change = {"strategy": "greedy"} if beam == 1 else {"strategy": "beam", "beam": beam}
    draws: Change = {"strategy": "sampling", "samples": beam}
    rules: dict[str, Change] = {
        "plain": {},
        "prefix": {"prefix": prefix},
        "no repeated 3-gram": {"no_repeat_ngram": 3},
        "repetition penalty": {"repetition_penalty": 1.2},
        "ban": {"ban": tuple(banned)},
        "minimum length": {"min_length": 8},
        "coverage": {"coverage_penalty": 0.2},
    }
    truncations: dict[str, Change] = {
        "sampling": {},
        "temperature": {"temperature": 0.8},
        "top-k": {"top_k": 10},
        "top-p": {"top_p": 0.9},
        "min-p": {"min_p": 0.1},
        "epsilon": {"epsilon": 3e-4},
        "eta": {"eta": 3e-4},
    }
    return {name: plain | each for name, each in rules.items()} | {
        name: draws | each for name, each in truncations.items()
    }


def measured(
    translator: Any, lines: list[str], settings: dict[str, Change], rounds: int
) -> dict[str, dict[str, float]]:
    """Return the results of each setting by name; the first is the plain search."""
    built = {name: translator.config.decoding.model_copy(update=each) for name, each in settings.items()}
    seconds: dict[str, list[float]] = {name: [] for name in built}
    found: dict[str, list[Any]] = {}
    for number in range(rounds + 1):
        for name, each in built.items():
            began = time.process_time()
            found[name] = list(translator.translate_all(lines, settings=each))
            if number:  # the first round warms up
                seconds[name].append(time.process_time() - began)
    plain = seconds["plain"]
    tokens = {name: [len(each.hypotheses[0].tokens) for each in some] for name, some in found.items()}
    results = {}
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, plain, strict=True)]
        steps = max(tokens[name]) / max(tokens["plain"])
        results[name] = {
            "milliseconds": 1000 * statistics.median(own),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "tokens": statistics.mean(tokens[name]),
            "ratio_by_steps": statistics.median(ratios) / steps,
        }
    return results


def frequent_words(texts: list[str], count: int) -> list[str]:
    """Return the most frequent words of the texts, or characters if words are not separated by spaces."""
    spaced = any(" " in text for text in texts)
    words = Counter(word for text in texts for word in (text.split() if spaced else text) if word.isalpha())
    return [word for word, _ in words.most_common(count)]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("model", nargs="?")
    options.add_argument("source", nargs="?")
    options.add_argument("--lines", type=int, default=16)
    options.add_argument("--length", type=int, default=0)
    options.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    options.add_argument("--rounds", type=int, default=2 if SHORT else 9)
    options.add_argument("--engine", default="int8", choices=["fp32", "bf16", "int8", "plain"])
    options.add_argument("--prefix", default="")
    options.add_argument("--ban", nargs="+", default=[])
    options.add_argument("--only", nargs="+", default=[])
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    if chosen.source is None:
        print("skipped: expected MODEL SOURCE")
        return

    import torch

    from translume.translator import load

    torch.set_num_threads(1)
    translator = load(chosen.model, device="cpu", dtype="fp32", threads=1)
    if chosen.engine != "plain":
        translator = translator.compile(chosen.engine)
    with open(chosen.source, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in islice(file, chosen.lines)]
    texts = [each.text for each in translator.translate_all(lines)]
    banned = chosen.ban or frequent_words(texts, 3)
    prefix = chosen.prefix or (texts[0].split()[0] if " " in texts[0] else texts[0][:2])
    results = {}
    for beam in chosen.beams:
        settings = changes(beam, prefix, banned)
        length = {"min_length": chosen.length, "max_length": chosen.length} if chosen.length else {}
        kept = {name: each | length for name, each in settings.items() if name in ("plain", *(chosen.only or settings))}
        results[str(beam)] = measured(translator, lines, kept, chosen.rounds)
    if chosen.json:
        print(json.dumps({"lines": len(lines), "prefix": prefix, "ban": banned, "results": results}))
        return
    print(f"{len(lines)} lines, {chosen.engine}; prefix {prefix!r}, banned {banned}")
    for beam, rows in results.items():
        print(f"\n{'beam ' + beam:20} {'ms':>8} {'ratio':>6} {'spread':>13} {'tokens':>7} {'by steps':>9}")
        for name, row in rows.items():
            spread = f"{row['lowest']:.2f}-{row['highest']:.2f}"
            print(
                f"{name:20} {row['milliseconds']:8.1f} {row['ratio']:6.2f} {spread:>13} {row['tokens']:7.1f} "
                f"{row['ratio_by_steps']:9.2f}"
            )


if __name__ == "__main__":
    main()
