"""Compare the copy head with the softmax on names that do not occur in training.

Prints a table; with --json, one object on one line. The demo's English and German sentences about a person get invented
names ("Tobrunu", "Kelmia") instead of the demo's twenty. No name of the test set occurs in the training text. The same
small network is trained with each head, with the same seed, batches and number of updates, and translates the test set
greedily. Exact: the whole sentence is right. Names: all of its names are right.
`ratio` is the number of exact sentences with the copy head over that with the softmax (at least one).

    python benchmarks/copy_names.py [--updates 600] [--names 500] [--seed 1] [--json]
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from translume import load
from translume.config import Config
from translume.experiments.demo import SLOT, draw, fill, read_phrases
from translume.training import Validated, train

LANGUAGES = ("en", "de")
HEADS = ("softmax", "copy")
PERSONS = ("name", "woman", "man")
STARTS = "b br d dr f g gr h j k kr l m n p pl r s sch st t tr v w z"
VOWELS = "a e i o u ia ei au"
ENDS = ["", "", "", "l", "m", "n", "r", "s", "ck", "nd", "rt"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A pair, and the names that both of its sides contain."""

    source: str
    target: str
    names: tuple[str, ...]


def invented(random: Random) -> Iterator[str]:
    """Return distinct names of two to four syllables."""
    seen = set()
    while True:
        syllables = (random.choice(STARTS.split()) + random.choice(VOWELS.split()) for _ in range(random.randint(2, 4)))
        name = ("".join(syllables) + random.choice(ENDS)).capitalize()
        if name not in seen:
            seen.add(name)
            yield name


def sentences(count: int, names: list[str], random: Random) -> list[Sentence]:
    """Return distinct sentences with some of the names."""
    phrases = []
    for phrase in read_phrases(LANGUAGES):
        slots = {match[1] for match in SLOT.finditer(phrase["en"])}
        if slots & set(PERSONS):
            phrases.append((phrase, sorted(slots - set(PERSONS)), sorted(slots & set(PERSONS))))
    found: dict[str, Sentence] = {}
    while len(found) < count:
        phrase, others, persons = random.choice(phrases)
        values, chosen = draw(others, random), random.sample(names, len(persons))
        sides = []
        for language in LANGUAGES:
            text = phrase[language]
            for person, name in zip(persons, chosen, strict=True):
                text = text.replace(f"{{{person}}}", name)
            sides.append(fill(text, values, language))
        found.setdefault(sides[0], Sentence(sides[0], sides[1], tuple(chosen)))
    return list(found.values())


def write(folder: Path, arguments: argparse.Namespace) -> list[Sentence]:
    """Write the training and validation files; return the test set, which shares no name with them."""
    random = Random(arguments.seed)
    source = invented(random)
    known, checked, unseen = ([next(source) for _ in range(count)] for count in (arguments.names, 50, 200))
    parts = {"train": sentences(arguments.pairs, known, random), "valid": sentences(200, checked, random)}
    for part, pairs in parts.items():
        for language, side in zip(LANGUAGES, ("source", "target"), strict=True):
            lines = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(lines, encoding="utf-8")
    return sentences(arguments.test, unseen, random)


def config(folder: Path, head: str, arguments: argparse.Namespace) -> Config:
    files = {
        f"{part}_{side}": str(folder / f"{part}.{language}")
        for part in ("train", "valid")
        for side, language in zip(("source", "target"), LANGUAGES, strict=True)
    }
    tables: dict[str, Any] = {
        "data": {"source_language": "en", "target_language": "de", **files},
        "tokenizer": {"kind": "bpe", "size": arguments.vocabulary, "shared": True},
        "model": {
            "width": 96, "feed_forward": 192, "encoder_layers": 2, "decoder_layers": 2, "attention_heads": 4,
            "dropout": 0.0, "head": {"kind": head, "tie": "all"},
        },
        "training": {
            "updates": arguments.updates, "max_tokens": 1536, "learning_rate": 3e-3, "schedule": "cosine",
            "warmup_updates": max(1, arguments.updates // 10), "label_smoothing": 0.0, "seed": arguments.seed,
            "validate_every": arguments.updates, "save_every": arguments.updates, "metric": "nll",
        },
        "decoding": {"strategy": "greedy"},
    }  # fmt: skip
    return Config.build(tables, place="copy_names")


def measured(folder: Path, head: str, test: list[Sentence], arguments: argparse.Namespace) -> dict[str, Any]:
    """Train with the head, translate the test set and count."""
    begun = time.perf_counter()
    nll = None
    for event in train(config(folder, head, arguments), folder / head, device="cpu", threads=arguments.threads):
        if isinstance(event, Validated):
            nll = event.nll
    seconds = time.perf_counter() - begun
    translator = load(folder / head, device="cpu", threads=arguments.threads)
    texts = [each.text for each in translator.translate_all(pair.source for pair in test)]
    pairs = list(zip(texts, test, strict=True))
    if arguments.show:
        for text, pair in pairs[: arguments.show]:
            print(f"  {pair.source}\n    {text}" + ("" if text == pair.target else f"\n    expected: {pair.target}"))
    return {
        "head": head,
        "exact": sum(text == pair.target for text, pair in pairs),
        "names": sum(all(name in text for name in pair.names) for text, pair in pairs),
        "nll": nll,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60 if short else 600)
    parser.add_argument("--pairs", type=int, default=1000 if short else 8000, help="number of training pairs")
    parser.add_argument("--names", type=int, default=500, help="number of names in the training text")
    parser.add_argument("--test", type=int, default=50 if short else 400, help="number of test sentences")
    parser.add_argument("--vocabulary", type=int, default=1000, help="maximum number of subwords")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="number of translations to print for each head")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"{arguments.updates} updates; correct, of {arguments.test} sentences with unseen names:")
        print("head       exact   names  validation nll  training s")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        test = write(Path(folder), arguments)
        for head in HEADS:
            row = measured(Path(folder), head, test, arguments)
            rows.append(row)
            if not arguments.json:
                exact, names = (row[key] / len(test) for key in ("exact", "names"))
                print(f"{head:8} {exact:7.1%} {names:7.1%} {row['nll']:15.3f} {row['seconds']:11.1f}", flush=True)
    if arguments.json:
        exact = {row["head"]: row["exact"] for row in rows}
        print(json.dumps({"ratio": round(exact["copy"] / max(1, exact["softmax"]), 3), "rows": rows}))


if __name__ == "__main__":
    main()
