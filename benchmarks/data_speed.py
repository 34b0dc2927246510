"""Measure how fast pairs are read, cleaned, tokenized and batched, and how much memory a pair takes.

Prints a table; with --json, one object on one line. Each number of pairs is measured in a separate process on synthetic
files (sentences of `--words` words on average over a Zipf-distributed vocabulary of 20,000), with every cleaning rule
enabled. Memory is the private memory of the process (RssAnon, sampled every 5 ms) that each stage adds. Pages of the
memory-mapped cache can be reclaimed by the kernel and are reported separately. Bytes per pair are the slope between the
smallest and the largest number of pairs, so that constants (Python, torch, the tokenizer's words, chunks of text)
cancel; below a million pairs they do not cancel completely.

With --processes, only the preparation is measured, once with each number of processes: pairs per second of wall time
and of processor time, and the peak memory of the main process and of the largest other one. The caches are compared.

    python benchmarks/data_speed.py [--pairs 1000000 10000000] [--words 13] [--processes 1 2] [--json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np

from translume.config.data import CleaningSettings, DataSettings
from translume.config.tokenizer import TokenizerSettings
from translume.data.cleaning import Rules
from translume.data.corpus import TokenizedCorpus
from translume.data.held_out import chunks
from translume.data.pairs import read_pairs
from translume.data.plan import BatchPlan
from translume.data.streaming import Place, open_stream
from translume.data.token_cache import prepare
from translume.text import Tokenizer, train_tokenizer

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
MAX_TOKENS = 4096
MOST = 1_000_000
"""Pairs after which the rate of a stage is known well enough."""
STAGES = ("reading", "cleaning", "tokenizing", "preparing", "planning", "batching", "streaming")


class PeakMemory:
    """Peak private memory of this process while the block ran, in bytes, beyond what it had before."""

    def __enter__(self) -> Self:
        self.before = self.most = _own_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.most = max(self.most, _own_memory())

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.most = max(self.most, _own_memory())


def _own_memory() -> int:
    return _status("RssAnon")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}: this benchmark needs Linux")


def write_files(folder: Path, pairs: int, words_a_line: int) -> DataSettings:
    """Write two parallel files of synthetic text: each line joins two halves drawn from 20,000."""
    generator = np.random.default_rng(1)
    paths = []
    for side in ("source", "target"):
        syllables = np.array(
            ["ka", "ro", "mi", "ten", "sul", "ba", "wen", "ik", "do", "ra", "schei", "lo", "per", "ga"]
        )
        words = np.array(["".join(generator.choice(syllables, n)) for n in generator.integers(1, 5, 20_000)])
        chances = 1 / np.arange(3, 20_003)
        lengths = generator.integers(1, words_a_line, 20_000)
        drawn = iter(words[generator.choice(20_000, int(lengths.sum()), p=chances / chances.sum())].tolist())
        halves = [" ".join(next(drawn) for _ in range(length)) for length in lengths.tolist()]
        path = folder / f"{pairs}.{side}"
        with path.open("w", encoding="utf-8") as file:
            for begin in range(0, pairs, 100_000):
                count = min(100_000, pairs - begin)
                first, second = generator.integers(0, 20_000, (2, count)).tolist()
                file.writelines(f"{halves[a]}, {halves[b]}.\n" for a, b in zip(first, second, strict=True))
        paths.append(str(path))
    return DataSettings(
        train_source=(paths[0],),
        train_target=(paths[1],),
        cleaning=CleaningSettings(
            max_ratio=9, identical=True, duplicates=True, source_script="latin", target_script="latin"
        ),
    )


def measure(pairs: int, folder: Path, words: int) -> dict[str, float]:
    """Return all results for one number of pairs: seconds by stage for all of them, and memory in bytes."""
    settings = write_files(folder, pairs, words)
    tokenizer = train_tokenizer(TokenizerSettings(size=8000), _sample(settings))
    seconds = _stages(settings, tokenizer, pairs)
    begin = time.perf_counter()
    with PeakMemory() as preparing:
        corpus = prepare(settings, tokenizer, tokenizer, folder / "cache", split="train")
    seconds["preparing"] = time.perf_counter() - begin
    BatchPlan(prepare(settings, tokenizer, tokenizer, folder / "cache", split="valid"), max_tokens=999, seed=1, epoch=0)
    begin = time.perf_counter()
    with PeakMemory() as planning:
        plan = BatchPlan(corpus, max_tokens=MAX_TOKENS, seed=1, epoch=0)
    seconds["planning"] = time.perf_counter() - begin
    with PeakMemory() as batching:
        seconds["batching"], filled, batches = _batch(plan, corpus)
    with PeakMemory() as streaming:
        seconds["streaming"] = _stream(settings, tokenizer, pairs)
    cache = sum(file.stat().st_size for file in (folder / "cache").rglob("*") if file.is_file())
    peaks = {"preparing": preparing, "planning": planning, "batching": batching, "streaming": streaming}
    return {
        "pairs": pairs,
        "tokens": float(len(corpus.tokens)),
        "cache_bytes": cache,
        "filled": filled,
        "batch_milliseconds": 1000 * batches,
        **{f"{stage}_seconds": value for stage, value in seconds.items()},
        **{f"{stage}_bytes": peak.most - peak.before for stage, peak in peaks.items()},
        "peak_bytes": max(peak.most for peak in peaks.values()),
        "peak_bytes_with_pages": _status("VmHWM"),
    }


def _sample(settings: DataSettings) -> Iterator[str]:
    for pair, _ in zip(read_pairs(settings, "train"), range(20_000), strict=False):
        yield pair.source
        yield pair.target


def _stages(settings: DataSettings, tokenizer: Tokenizer, pairs: int) -> dict[str, float]:
    """Return the seconds to read all pairs, to apply the rules and to tokenize both sides, from at most a million."""
    rules = Rules(settings.cleaning, (settings.cleaning.max_tokens,) * 2)
    reading = cleaning = tokenizing = 0.0
    done = 0
    parts = chunks(read_pairs(settings, "train"), 8192)
    while done < min(pairs, MOST):
        begin = time.perf_counter()
        chunk = next(parts)
        read = time.perf_counter()
        rules.of_texts(chunk)
        cleaned = time.perf_counter()
        tokenizer.encode_all([pair.source for pair in chunk])
        tokenizer.encode_all([pair.target for pair in chunk])
        reading, cleaning = reading + read - begin, cleaning + cleaned - read
        tokenizing += time.perf_counter() - cleaned
        done += len(chunk)
    share = pairs / done
    return {"reading": reading * share, "cleaning": cleaning * share, "tokenizing": tokenizing * share}


def _stream(settings: DataSettings, tokenizer: Tokenizer, pairs: int) -> float:
    """Return the seconds to read all pairs as a stream and to plan their batches, from at most a million."""
    rules = settings.cleaning.model_copy(update={"duplicates": False})
    stream = open_stream(settings.model_copy(update={"cleaning": rules}), tokenizer, tokenizer, seed=1)
    shares, done = stream.reader.shares(Place()), 0
    begin = time.perf_counter()
    while done < min(pairs, MOST):
        share = next(shares)
        done += share.read
        BatchPlan(stream.corpus([share], 0), max_tokens=MAX_TOKENS, seed=1, epoch=0)
    return (time.perf_counter() - begin) * pairs / done


def compare_processes(pairs: int, folder: Path, words: int, counts: list[int]) -> list[dict[str, float]]:
    """Prepare the same pairs with each number of processes, and return seconds and memory in bytes."""
    settings = write_files(folder, pairs, words)
    tokenizer = train_tokenizer(TokenizerSettings(size=8000), _sample(settings))
    results, contents = [], []
    for count in counts:
        before, begin = _processor_seconds(), time.perf_counter()
        with PeakMemory() as memory:
            corpus = prepare(settings, tokenizer, tokenizer, folder / str(count), split="train", processes=count)
        results.append(
            {
                "processes": count,
                "pairs": corpus.account.read,
                "seconds": time.perf_counter() - begin,
                "processor_seconds": _processor_seconds() - before,
                "added_bytes": memory.most - memory.before,
                "peak_bytes": memory.most,
                "largest_other_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            }
        )
        contents.append({file.name: file.read_bytes() for file in (folder / str(count)).glob("*/*")})
    if any(content != contents[0] for content in contents):
        raise SystemExit("the caches differ")
    return results


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _batch(plan: BatchPlan, corpus: TokenizedCorpus) -> tuple[float, float, float]:
    """Return the seconds for all batches (of at most a million pairs), the share of non-padding, seconds per batch."""
    made, filled, cells, batches = 0, 0, 0, 0
    begin = time.perf_counter()
    for batch in plan.batches():
        made += len(batch)
        batches += 1
        filled += batch.tokens + int(batch.source_mask.sum())
        cells += batch.source.numel() + batch.target.numel()
        if made >= MOST:
            break
    seconds = time.perf_counter() - begin
    return seconds * corpus.pairs / made, filled / cells, seconds / batches


def report(results: list[dict[str, float]]) -> dict[str, object]:
    """Return the rates of the largest run, and bytes per pair between the smallest and the largest."""
    small, large = results[0], results[-1]
    pairs = large["pairs"] - small["pairs"]
    kinds = [name for name in large if name.endswith("_bytes")]
    return {
        "pairs_per_second": {stage: round(large["pairs"] / large[f"{stage}_seconds"]) for stage in STAGES},
        "batch_milliseconds": round(large["batch_milliseconds"], 3),
        "tokens_of_a_batch_that_are_no_padding": round(large["filled"], 4),
        "bytes_a_pair": {name: round((large[name] - small[name]) / pairs, 1) for name in kinds} if pairs else {},
        "runs": results,
    }


def show(summary: dict[str, object], results: list[dict[str, float]]) -> None:
    """Print the table."""
    print(f"{'pairs':<28}" + "".join(f"{int(run['pairs']):>14,}" for run in results))
    for stage in STAGES:
        rates = (run["pairs"] / run[f"{stage}_seconds"] for run in results)
        print(f"{stage + ', pairs/s':<28}" + "".join(f"{rate:>14,.0f}" for rate in rates))
    for name in ("planning_seconds", "batch_milliseconds", "filled"):
        print(f"{name.replace('_', ' '):<28}" + "".join(f"{run[name]:>14.3f}" for run in results))
    for name in results[0]:
        if "bytes" in name:
            label = name.replace("_bytes", "").replace("_", " ") + ", MB"
            print(f"{label:<28}" + "".join(f"{run[name] / 1e6:>14,.1f}" for run in results))
    print("bytes per pair (slope):", json.dumps(summary["bytes_a_pair"]))


def main() -> None:
    """Measure each number of pairs in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000, 50_000] if SHORT else [250_000, 1_000_000])
    parser.add_argument("--words", type=int, default=13, help="mean number of words per sentence; at least 2")
    parser.add_argument("--processes", type=int, nargs="+", help="compare preparation with these numbers of processes")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--folder", help="folder for temporary files; a few GB for 10 million pairs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.pairs[0], Path(options.folder), options.words)))
        return
    if options.processes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            compared = compare_processes(max(options.pairs), Path(folder), options.words, options.processes)
        if options.json:
            print(json.dumps(compared))
        for each in [] if options.json else compared:
            rates = [each["pairs"] / each[seconds] for seconds in ("seconds", "processor_seconds")]
            print(
                f"{each['processes']} processes, {each['pairs']:,} pairs: {rates[0]:,.0f} pairs/s, "
                f"{rates[1]:,.0f} per processor second; "
                f"peak {each['peak_bytes'] / 1e6:,.0f} MB ({each['added_bytes'] / 1e6:,.0f} added), "
                f"others at most {each['largest_other_bytes'] / 1e6:,.0f} MB"
            )
        return
    results = []
    for pairs in sorted(options.pairs):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            numbers = ["--pairs", str(pairs), "--words", str(options.words)]
            command = [sys.executable, __file__, "--worker", "--folder", folder, *numbers]
            results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    summary = report(results)
    if options.json:
        print(json.dumps(summary))
    else:
        show(summary, results)


if __name__ == "__main__":
    main()
