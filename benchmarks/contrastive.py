"""Contrastive test of context: which of two translations a model prefers, where only the sentences before tell.

English to German, on the user turns of WOZ 2.0's test set, whose documents are dialogues. Rules make wrong versions of
a reference (Bawden et al. 2018, Müller et al. 2018):

    pronoun   its or their: "seine Adresse" for "ihre Adresse"; it: "sie" or "es" for "er"
    ellipsis  one, another: "einen" or "eine" for "eines", if no adjective or noun follows

A model is right if the reference is more likely than each wrong version. Its context is the sources and references
before. `no context` gives it none and `another's` those of another dialogue. `gain` is how many nats the context makes
a reference likelier (conditional cross-mutual information, Fernandes et al. 2021), with its standard error.

    python benchmarks/contrastive.py MODEL [MODEL ...] [--split test] [--show 0] [--json]
"""

import argparse
import gzip
import json
import math
import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from translume import load

Rules = list[tuple[str, list[tuple[str, ...]]]]
"""A pattern of sources, and classes of words of targets."""

DATA = Path(os.environ.get("TRANSLUME_DATA", "../shared/data"))
PRONOUNS: Rules = [
    (r"\b(its|their)\b", [("ihre", "seine"), ("ihren", "seinen"), ("ihrer", "seiner"), ("deren", "dessen")]),
    (r"\b(it|they)\b", [("er", "sie", "es")]),
]
ELLIPSES: Rules = [
    (r"\b(one|ones|another)\b", [("eines", "einen", "eine"), ("eins", "einer"), ("keines", "keinen", "keine")])
]
NO_NOUN = r"(?=\s+(?:im|in|auf|aus|mit|davon|für|vor|geben|empfehlen)\b|[.,?!]|$)"
KINDS: dict[str, tuple[Rules, str]] = {"pronoun": (PRONOUNS, ""), "ellipsis": (ELLIPSES, NO_NOUN)}


def dialogues(split: str) -> list[list[tuple[str, str]]]:
    """Return the English and German user turns of each dialogue."""
    turns: dict[str, dict[str, list[str]]] = {}
    for language in ("en", "de"):
        with gzip.open(DATA / f"woz2/{language}/{split}.tsv.gz", "rt") as file:
            for dialogue, turn, text, *_ in (line.split("\t") for line in file):
                turns.setdefault(dialogue, {}).setdefault(turn, []).append(text.rpartition("[usr] ")[2].strip())
    return [[(each[0], each[1]) for each in found.values() if len(each) == 2 and all(each)] for found in turns.values()]


def wrong_versions(source: str, target: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the kinds of a pair with their wrong versions of the target."""
    for kind, (rules, after) in KINDS.items():
        for wanted, classes in rules:
            for forms in classes if re.search(wanted, source, re.IGNORECASE) else []:
                place = re.search(rf"\b({'|'.join(forms)})\b{after}", target)
                if place is not None:
                    others = [each for each in forms if each != place[1]]
                    yield kind, [target[: place.start(1)] + each + target[place.end(1) :] for each in others]


def judge(folder: str, documents: list[list[tuple[str, str]]], show: int) -> dict[str, Any]:
    """Return the accuracy of each kind and the gain of the context, in three ways."""
    model = load(folder)
    right: dict[str, dict[str, list[bool]]] = {}
    gains: dict[str, list[float]] = {"own": [], "another's": []}
    for number, document in enumerate(documents):
        other = documents[number - 1]
        for place, (source, target) in enumerate(document):
            befores = {"no context": [], "own": document[:place], "another's": other[-place:] if place else []}
            scores = {way: model.score(source, target, before=before).log_prob for way, before in befores.items()}
            for way in gains if place else ():
                gains[way].append(scores[way] - scores["no context"])
            for kind, wrong in wrong_versions(source, target) if place else ():
                for way, before in befores.items():
                    best = max(model.score(source, each, before=before).log_prob for each in wrong)
                    right.setdefault(kind, {}).setdefault(way, []).append(scores[way] > best)
                if show > 0:
                    show -= 1
                    print(f"{kind}: {source} | {target} | {' / '.join(wrong)}")
    accuracy = {kind: {way: statistics.mean(each) for way, each in ways.items()} for kind, ways in right.items()}
    return {
        "model": folder,
        "pairs": {kind: len(ways["own"]) for kind, ways in right.items()},
        "accuracy": accuracy,
        "gain": {
            way: (statistics.mean(each), statistics.stdev(each) / math.sqrt(len(each))) for way, each in gains.items()
        },
        "sentences": len(gains["own"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--split", default="test", choices=["test", "valid", "train"])
    parser.add_argument("--show", type=int, default=0, help="print so many pairs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (DATA / "woz2").is_dir():
        print(f"skipped: {DATA / 'woz2'} is not there; TRANSLUME_DATA names the folder of the data")
        return
    documents = [each for each in dialogues(options.split) if each]
    for folder in options.models:
        judged = judge(folder, documents, options.show)
        if options.json:
            print(json.dumps(judged))
            continue
        print(f"{folder}: {judged['sentences']:,} sentences after others")
        for kind, ways in judged["accuracy"].items():
            shares = ", ".join(f"{way} {100 * share:.1f} %" for way, share in ways.items())
            print(f"  {kind}, {judged['pairs'][kind]} pairs: {shares}")
        for way, (mean, error) in judged["gain"].items():
            print(f"  gain of {way} context: {mean:+.3f} ± {error:.3f} nats a sentence")


if __name__ == "__main__":
    main()
