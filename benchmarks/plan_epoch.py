"""Plan an epoch of very many pairs: time, and peak memory beyond that of the process before.

The lengths are synthetic (a log-normal distribution of about 24 tokens a side) and mapped from files, as those of a
token cache are. Private memory is RssAnon; pages of the mapped files can be reclaimed and are not counted.

    python benchmarks/plan_epoch.py [--pairs 100000000] [--max-tokens 4096] [--buckets]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from data_speed import PeakMemory

from translume.config import TokenizerSettings
from translume.data.buckets import BucketPlan
from translume.data.cleaning import Account
from translume.data.corpus import TokenizedCorpus
from translume.data.pairs import Origin
from translume.data.plan import BatchPlan
from translume.tasks import find_task
from translume.text import train_tokenizer


def lengths(path: Path, pairs: int, seed: int) -> np.ndarray:
    """Write lengths to a file in parts, and map it."""
    draw = np.random.default_rng(seed)
    with path.open("wb") as file:
        for begin in range(0, pairs, 1 << 20):
            count = min(1 << 20, pairs - begin)
            found = np.exp(draw.normal(3.0, 0.6, count)).round().clip(1, 255)
            file.write(found.astype(np.uint16).tobytes())
    return np.asarray(np.memmap(path, np.uint16, mode="r", shape=(pairs,)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000_000)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--buckets", action="store_true", help="batches in few shapes, as on a GPU")
    options = parser.parse_args()
    tokenizer = train_tokenizer(TokenizerSettings(kind="byte"), [])
    with tempfile.TemporaryDirectory() as made:
        corpus = TokenizedCorpus(
            pairs=options.pairs,
            account=Account(read=options.pairs, used=options.pairs, held_out=0, dropped={}, examples={}),
            digest="",
            source_lengths=lengths(Path(made) / "source", options.pairs, 1),
            target_lengths=lengths(Path(made) / "target", options.pairs, 2),
            origins=(Origin(file="a", target_file="b", columns=(), weight=1.0),),
            first=(0, options.pairs),
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            limits=(None, None),
            task=find_task("sequence"),
            tokens=np.zeros(0, np.uint16),
            starts=np.zeros(0, np.int64),
            line_numbers=np.zeros(0, np.uint32),
        )
        begun, computed = time.monotonic(), time.process_time()
        with PeakMemory() as memory:
            plan = (BucketPlan if options.buckets else BatchPlan)(
                corpus, max_tokens=options.max_tokens, seed=1, epoch=0
            )
        seconds, processor = time.monotonic() - begun, time.process_time() - computed
        print(
            f"{options.pairs:,} pairs, {len(plan):,} batches: {seconds:.0f} s ({processor:.0f} s of processor time), "
            f"peak {(memory.most - memory.before) / 1e9:.2f} GB"
        )
        if isinstance(plan, BucketPlan):
            print(plan.summary())


if __name__ == "__main__":
    main()
