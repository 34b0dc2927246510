"""Compare softmax, adaptive and hierarchical heads with a vocabulary of 100,000 words and more, in turns in one run.

    python benchmarks/large_vocabulary.py [--heads softmax adaptive hierarchical] [--rounds 5] [--json]

The task is to generate the second half of a film review from its first half (IMDB, read from $TRANSLUME_DATA or
../shared/data; at most `--words` per half). Tokens are words: the most frequent `--vocabulary` words of the reviews;
other words are spelled in bytes. Each head is trained on the same small encoder-decoder in a separate process, so that
peak memory is measured separately. The processes take turns, round by round, on the same batches. A ratio is the median
of the rounds' ratios; larger means that the head is faster or smaller than the softmax. At the end the nll of the same
validation reviews is measured.

Target tokens exclude padding and include the end token; nll is in nats per target token.
"""

import argparse
import csv
import gzip
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HEADS = {
    "softmax": {"kind": "softmax", "tie": "all"},
    "adaptive": {"kind": "adaptive", "tie": "all"},
    "adaptive-untied": {"kind": "adaptive", "tie": "none"},
    "hierarchical": {"kind": "hierarchical", "tie": "all"},
    "hierarchical-neighbours": {"kind": "hierarchical", "tie": "all", "grouping": "neighbours"},
}
LEARNING_RATE, WARMUP = 1e-3, 50


class Pairs:
    """Pairs of ids in arrays, from which a head fills its tables."""

    def __init__(self, path: Path) -> None:
        arrays = np.load(path)
        self._ids, self._ends = arrays["ids"], np.concatenate([[0], arrays["lengths"].cumsum()])
        self.pairs = len(arrays["lengths"]) // 2

    def source(self, index: int) -> Any:
        return self._ids[self._ends[2 * index] : self._ends[2 * index + 1]]

    def target(self, index: int) -> Any:
        return self._ids[self._ends[2 * index + 1] : self._ends[2 * index + 2]]


def reviews(split: str, words: int) -> list[tuple[str, str, str]]:
    """Return each review, and the two halves of its words, limited to `words` each."""
    data = Path(os.environ.get("TRANSLUME_DATA", Path(__file__).parents[2] / "shared" / "data"))
    path = data / "classification" / "imdb" / f"{split}.tsv.gz"
    if not path.exists():
        raise SystemExit(f"{path}: does not exist; set TRANSLUME_DATA to the folder of data sets")
    found = []
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            each = row[2].split()
            middle = len(each) // 2
            found.append((row[2], " ".join(each[:middle][-words:]), " ".join(each[middle:][:words])))
    return found


def write_pairs(folder: Path, vocabulary: int, words: int) -> dict[str, Any]:
    """Write tokenized training and validation pairs to a folder, and return their description."""
    from translume.config import TokenizerSettings
    from translume.text import train_tokenizer

    texts = {split: reviews(split, words) for split in ("train", "valid")}
    settings = TokenizerSettings(kind="word", size=vocabulary, lowercase=True)
    tokenizer = train_tokenizer(settings, (review for review, _, _ in texts["train"]))
    for split, found in texts.items():
        ids = tokenizer.encode_all([half for _, *halves in found for half in halves])
        lengths = np.array([len(each) for each in ids])
        np.savez(folder / f"{split}.npz", ids=np.concatenate(ids).astype(np.int64), lengths=lengths)
    specials = tokenizer.specials
    return {"vocabulary": len(tokenizer), "pad": specials.pad, "bos": specials.bos, "eos": specials.eos}


def batches(pairs: Pairs, facts: dict[str, Any], tokens: int) -> list[Any]:
    """Return batches of pairs of similar length, at most `tokens` padded tokens per side, in a shuffled order."""
    import torch

    from translume.data.batch import Batch

    def padded(rows: list[list[int]]) -> Any:
        width = max(map(len, rows))
        return torch.tensor([row + [facts["pad"]] * (width - len(row)) for row in rows])

    order = sorted(range(pairs.pairs), key=lambda i: (len(pairs.target(i)), len(pairs.source(i)), i))
    groups: list[list[int]] = [[]]
    width = 0
    for index in order:
        width = max(width, len(pairs.source(index)) + 1, len(pairs.target(index)) + 1)
        if groups[-1] and width * (len(groups[-1]) + 1) > tokens:
            groups.append([])
            width = max(len(pairs.source(index)), len(pairs.target(index))) + 1
        groups[-1].append(index)
    random.Random(2).shuffle(groups)
    made = []
    for group in groups:
        source = padded([[*pairs.source(i).tolist(), facts["eos"]] for i in group])
        labels = padded([[*pairs.target(i).tolist(), facts["eos"]] for i in group])
        target = padded([[facts["bos"], *pairs.target(i).tolist()] for i in group])
        mask = labels != facts["pad"]
        made.append(
            Batch(
                source=source, source_mask=source != facts["pad"], target=target, labels=labels, target_mask=mask,
                lines=tuple(group), tokens=int(mask.sum()),
            )
        )  # fmt: skip
    return made


class Contender:
    """One head on the small network, and its training."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        import torch

        from translume.checkpoint import build_model
        from translume.config import ModelSettings, TrainingSettings
        from translume.kernels.allocator import keep_freed_memory
        from translume.model import HeadData, LossOptions
        from translume.training.optimisation import Updater
        from translume.training.precision import choose_precision

        keep_freed_memory()
        self._facts = json.loads((folder / "facts.json").read_text())
        self._folder, self._tokens, self._precision = folder, options.tokens, options.precision
        size, width = self._facts["vocabulary"], options.width
        settings = ModelSettings.model_validate(
            {"width": width, "feed_forward": 4 * width, "encoder_layers": 2, "decoder_layers": 2, "head": HEADS[name]}
        )
        torch.manual_seed(1)
        self.model = build_model(settings, size, size).train()
        corpus, pieces = Pairs(folder / "train.npz"), [str(each) for each in range(size)]
        specials = frozenset(self._facts[each] for each in ("pad", "bos", "eos"))
        end = self._facts["eos"]
        begun = time.perf_counter()
        self.model.head.learn(
            HeadData(corpus=corpus, source_pieces=pieces, target_pieces=pieces, end=end, specials=specials)
        )
        self.learning = time.perf_counter() - begun
        self.parameters = sum(each.numel() for each in self.model.parameters())
        device = torch.device("cpu")
        precision = choose_precision(options.precision, device)
        training = TrainingSettings(optimizer="adam", label_smoothing=0.0, clip_norm=1.0)
        self._updater = Updater(self.model, training, options=LossOptions(), precision=precision, device=device)
        self._done = 0
        self._batches = self._forever(batches(corpus, self._facts, options.tokens))

    @staticmethod
    def _forever(made: list[Any]) -> Iterator[Any]:
        while True:
            yield from made

    def train(self, updates: int) -> int:
        """Train for `updates` updates and return the number of target tokens."""
        tokens = 0
        for _ in range(updates):
            self._done += 1
            loss = self._updater.add(next(self._batches))
            self._updater.update(loss.tokens, LEARNING_RATE * min(1.0, self._done / WARMUP))
            tokens += loss.tokens
        return tokens

    def nll(self, most: int) -> float:
        """Return the nll per token of at most `count` validation batches."""
        import torch

        self.model.eval()
        total, tokens = 0.0, 0
        with torch.no_grad():
            for batch in batches(Pairs(self._folder / "valid.npz"), self._facts, self._tokens)[:most]:
                loss = self.model.loss(batch.source, batch.source_mask, batch.target, batch.labels, batch.target_mask)
                assert loss.nll is not None
                total, tokens = total + float(loss.nll), tokens + loss.tokens
        return total / tokens


def work(options: argparse.Namespace) -> None:
    """Run a contender's process: answer "train N" and "nll N" on its input with JSON."""
    import torch

    torch.set_num_threads(options.threads)
    contender = Contender(options.worker, Path(options.folder), options)
    print(json.dumps({"parameters": contender.parameters, "learning_seconds": contender.learning}), flush=True)
    for line in sys.stdin:
        verb, count = line.split()
        if verb == "nll":
            print(json.dumps({"nll": contender.nll(int(count))}), flush=True)
            continue
        begun = time.perf_counter()
        tokens = contender.train(int(count))
        seconds = time.perf_counter() - begun
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"rate": tokens / seconds, "memory_mib": memory}), flush=True)


class Process:
    """A contender in a separate process."""

    def __init__(self, name: str, folder: str, options: argparse.Namespace) -> None:
        passed = [f"--{key}={getattr(options, key)}" for key in ("threads", "tokens", "width", "precision")]
        command = [sys.executable, __file__, "--worker", name, "--folder", folder, *passed]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.row: dict[str, Any] = {"head": name, **self._answer()}
        self.rates: list[float] = []

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a contender ended; its error is above")
        found: dict[str, float] = json.loads(line)
        return found

    def ask(self, verb: str, count: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {count}\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def compare(folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of all heads, and ratios to the first."""
    facts = write_pairs(Path(folder), options.vocabulary, options.words)
    (Path(folder) / "facts.json").write_text(json.dumps(facts))
    players = [Process(name, folder, options) for name in options.heads]
    for player in players:
        player.ask("train", 2)
    for _ in range(options.rounds):
        for player in players:
            answer = player.ask("train", options.updates)
            player.rates.append(answer["rate"])
            player.row["memory_mib"] = answer["memory_mib"]
    result: dict[str, Any] = {}
    first = players[0]
    for player in players:
        row = player.row
        row["tokens_per_second"] = statistics.median(player.rates)
        row.update(player.ask("nll", options.valid_batches))
        player.stop()
        if player is not first:
            ratios = sorted(a / b for a, b in zip(player.rates, first.rates, strict=True))
            row["ratio_range"] = [ratios[0], ratios[-1]]
            result[f"speed_ratio_{row['head']}"] = round(statistics.median(ratios), 3)
            result[f"memory_ratio_{row['head']}"] = round(first.row["memory_mib"] / row["memory_mib"], 3)
            result[f"nll_ratio_{row['head']}"] = round(first.row["nll"] / row["nll"], 3)
    updates = 2 + options.rounds * options.updates
    return {**result, "vocabulary": facts["vocabulary"], "updates": updates, "rows": [each.row for each in players]}


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{result['vocabulary']:,} words, {result['updates']} updates")
    titles = f"{'tok/s':>7} {'ratio':>6} {'(range)':>13} {'MiB':>6} {'nll':>6} {'tables, s':>9}"
    print(f"{'head':24} {'parameters':>11} {titles}")
    for row in result["rows"]:
        name = row["head"]
        ratio = result.get(f"speed_ratio_{name}")
        low, high = row.get("ratio_range", (1.0, 1.0))
        print(
            f"{name:24} {row['parameters']:11,} {row['tokens_per_second']:7.0f} {ratio or 1.0:6.2f}"
            f" {f'({low:.2f}-{high:.2f})':>13} {row['memory_mib']:6.0f} {row['nll']:6.3f}"
            f" {row['learning_seconds']:9.1f}"
        )


def main() -> None:
    """Compare the chosen heads; ratios are to the first."""
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=["softmax", "adaptive", "hierarchical"])
    parser.add_argument("--vocabulary", type=int, default=100_000, help="maximum number of words")
    parser.add_argument("--words", type=int, default=60, help="maximum number of words per half review")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=2048, help="padded tokens per side in a batch")
    parser.add_argument("--rounds", type=int, default=1 if short else 5)
    parser.add_argument("--updates", type=int, default=2 if short else 40, help="updates per round")
    parser.add_argument("--valid-batches", type=int, default=2 if short else 40)
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
    if options.worker:
        work(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = compare(folder, options)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
