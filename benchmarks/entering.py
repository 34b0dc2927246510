"""What it brings that lines enter a search that is running: when lines come one by one, and for a whole file.

Lines of SOURCE, drawn by `--seed`, come at random moments (a Poisson process) at shares of what the translator does in
full batches. Four ways take the same lines at the same moments, by turns:

    batches   a batch is all that has come when the one before it is done, and is given back when all of it is done
    leaving   the same, but each line is given back as soon as it is done
    entering  `translate_entering` as it is: lines enter once few of those under way are left, or they take long
    at_once   whoever comes enters at once, whatever it costs the others

Printed are milliseconds from a line's coming to its translation, on one thread, by a clock of processor time that skips
what is idle: other work on the machine is not counted. With `--file` all lines are given at once, and batches of like
lengths are compared with `at_once`, longest lines first, as there is room.

    python benchmarks/entering.py MODEL SOURCE [--dtype int8] [--beams 1 5] [--loads 0.2 0.5 0.8] [--long 0.05]
    python benchmarks/entering.py MODEL SOURCE --file
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))


class Coming:
    """Lines and the moments when they come, in seconds from now by a clock that stands still while others compute."""

    def __init__(self, entries: Sequence[Any], moments: Sequence[float]) -> None:
        self.entries, self.moments = entries, moments
        self.taken, self.began, self.idle = 0, time.process_time(), 0.0

    def clock(self) -> float:
        """Processor time, and the time that nothing was there to do."""
        return time.process_time() - self.began + self.idle

    def waiting(self) -> list[Any]:
        """What has come by now and was not taken."""
        now, first = self.clock(), self.taken
        while self.taken < len(self.entries) and self.moments[self.taken] <= now:
            self.taken += 1
        return list(self.entries[first : self.taken])

    def wait(self) -> bool:
        """Until the next one comes; False where none is left."""
        if self.taken == len(self.entries):
            return False
        self.idle += max(0.0, self.moments[self.taken] - self.clock())
        return True


def by_batches(translator: Any, coming: Coming) -> Iterator[Any]:
    """What has come is translated together, and given back together."""
    while coming.wait():
        batch = coming.waiting()
        done = list(translator.translate_lines([each.line for each in batch], batch[0].settings))
        yield from zip(batch, done, strict=True)


def by_entering(translator: Any, coming: Coming, **limits: float) -> Iterator[Any]:
    """What has come enters when it may, and is given back when it is done."""
    from translume.translator import Joining, translate_entering

    while coming.wait():
        yield from translate_entering(translator, lambda room: coming.waiting(), joining=Joining(**limits))  # type: ignore[arg-type]  # numbers of its own


WAYS: dict[str, Callable[[Any, Coming], Iterator[Any]]] = {
    "batches": by_batches,
    "leaving": partial(by_entering, cohorts=1),
    "entering": by_entering,
    "at_once": partial(by_entering, steps=0),
}


def waits_of(
    way: str, translator: Any, entries: Sequence[Any], moments: Sequence[float]
) -> tuple[list[float], set[Any]]:
    """Seconds that each entry took, and the texts."""
    coming, waits, texts = Coming(entries, moments), [], set()
    came = dict(zip(map(id, entries), moments, strict=True))
    for entry, translation in WAYS[way](translator, coming):
        waits.append(coming.clock() - came[id(entry)])
        texts.add((entry.line.number, translation.text))
    assert len(waits) == len(entries)
    return waits, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "int8"), default="int8")
    parser.add_argument("--lines", type=int, default=20 if SHORT else 1000)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.2, 0.5, 0.8])
    parser.add_argument("--seconds", type=float, default=0.2 if SHORT else 10.0)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    parser.add_argument("--long", type=float, default=0.0, help="The share of lines that are six lines in one.")
    parser.add_argument("--file", action="store_true", help="The whole file at once.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.source is None:
        print("left out: wanted MODEL SOURCE")
        return

    from translume.translator import Entry, load_translator
    from translume.translator.plan import Line

    translator = load_translator(options.model, device="cpu", dtype="fp32", threads=1).compile(options.dtype)
    texts = options.source.read_text("utf-8").splitlines()[: options.lines]
    draw, rows = random.Random(options.seed), []
    texts += [" ".join(draw.choices(texts, k=6)) for _ in range(int(options.long * len(texts)))]
    for beam in options.beams:
        how = {"strategy": "greedy"} if beam == 1 else {"strategy": "beam", "beam": beam}
        settings = translator.config.decoding.model_copy(update=how)
        entries = [Entry(line=Line(number=n, text=text), settings=settings) for n, text in enumerate(texts, start=1)]
        list(translator.translate_lines([each.line for each in entries[:50]], settings))
        if options.file:
            rows.append({"beam": beam, **whole_file(translator, entries, options.rounds)})
            show(rows[-1], options.json)
            continue
        began = time.process_time()
        list(translator.translate_lines([each.line for each in entries], settings))
        fastest = len(entries) / (time.process_time() - began)
        for load in options.loads:
            count = max(3, int(options.seconds * load * fastest))
            chosen = [draw.choice(entries) for _ in range(count)]
            own = [Entry(line=each.line, settings=settings) for each in chosen]
            moments = sorted(draw.uniform(0, options.seconds) for _ in own)
            found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
            said: list[set[Any]] = []
            for _ in range(options.rounds):
                for way in WAYS:
                    waits, words = waits_of(way, translator, own, moments)
                    found[way].append(waits)
                    said.append(words)
            row: dict[str, Any] = {"beam": beam, "load": load, "lines_per_second": load * fastest}
            for way, rounds in found.items():
                row[f"{way}_mean_ms"] = 1e3 * statistics.median(map(statistics.fmean, rounds))
                row[f"{way}_p95_ms"] = 1e3 * statistics.median(sorted(each)[int(0.95 * len(each))] for each in rounds)
            row["same_texts"] = all(each == said[0] for each in said)
            rows.append(row)
            show(row, options.json)
    if options.json:
        print(json.dumps(rows))


def whole_file(translator: Any, entries: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Lines a second of a file in batches of like lengths, and of the same lines, longest first, as there is room."""
    from translume.translator import Joining, translate_entering

    at_once = Joining(steps=0)
    lines, seconds = [each.line for each in entries], {"batches": [], "entering": []}
    ordered = sorted(entries, key=lambda each: -len(each.line.text.split()))
    for _ in range(rounds):
        began = time.process_time()
        list(translator.translate_lines(lines, entries[0].settings))
        seconds["batches"].append(time.process_time() - began)
        began, given = time.process_time(), iter([ordered])
        done = list(translate_entering(translator, lambda room, given=given: next(given, ()), joining=at_once))
        seconds["entering"].append(time.process_time() - began)
        assert len(done) == len(lines)
    return {f"{way}_lines_per_second": len(lines) / statistics.median(took) for way, took in seconds.items()}


def show(row: dict[str, Any], quiet: bool) -> None:
    if not quiet:
        words = (
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print("  ".join(words), flush=True)


if __name__ == "__main__":
    main()
