"""Compare imported models of Marian with Marian itself (pymarian): ids, scores, texts of beam search, and speed.

    pip install pymarian
    python benchmarks/marian.py model.npz test.en --vocabs vocab.spm vocab.spm --beam 6 --normalize 0.6

Prints what differs first, then seconds of processor time for the whole file, one thread, runs interleaved.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import translume


def marian(model: Path, vocabs: list[Path], beam: int, normalize: float, **options: object) -> Any:
    """Return Marian's decoder with one thread."""
    from pymarian import Translator

    return Translator(
        models=str(model), vocabs=[str(each) for each in vocabs], beam_size=beam, normalize=normalize, cpu_threads=1,
        mini_batch=32, maxi_batch=100, maxi_batch_sort="src", max_length_factor=3, workspace=512, **options,
    )  # fmt: skip


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Send what native code prints to stderr to /dev/null."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(sink)
        os.close(saved)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--vocabs", type=Path, nargs=2, required=True)
    parser.add_argument("--beam", type=int, default=6)
    parser.add_argument("--normalize", type=float, default=0.6)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    lines = given.source.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as around:
        folder = Path(around, "model")
        print("certificate:", translume.import_model(given.model, folder, vocabularies=given.vocabs).certificate)
        options = {
            "beam": given.beam,
            "length_penalty": given.normalize,
            "max_length_ratio": 3.0,
            "max_length_extra": 3,
        }
        ours = {dtype: translume.load(folder, device="cpu", dtype=dtype, threads=1) for dtype in ("fp32", "int8")}
        import sentencepiece

        peer = sentencepiece.SentencePieceProcessor(str(given.vocabs[0]))
        tokenizer = ours["fp32"].checkpoint.source_tokenizer
        print("ids equal:", sum(tokenizer.encode(line) == peer.encode(line) for line in lines), "of", len(lines))
        packed = Path(around, "model.bin")
        command = [sys.executable, "-m", "pymarian", "convert", "-f", str(given.model), "-t", str(packed)]
        subprocess.run([*command, "-g", "intgemm8"], check=True, capture_output=True)
        with silent():
            theirs = {
                "fp32": marian(given.model, given.vocabs, given.beam, given.normalize),
                "int8": marian(packed, given.vocabs, given.beam, given.normalize),
            }
        texts = [each.text for each in ours["fp32"].translate_all(lines, **options)]
        found = theirs["fp32"].translate(lines)
        print("texts equal:", sum(a == b for a, b in zip(texts, found, strict=True)), "of", len(lines))
        other = [three for three in zip(lines, texts, found, strict=True) if three[1] != three[2]]
        scores = [
            [
                each.log_prob / len(each.tokens) ** given.normalize
                for each in ours["fp32"].score_all([(three[0], three[side]) for three in other])
            ]
            for side in (1, 2)
        ]
        better = sum(mine > theirs for mine, theirs in zip(*scores, strict=True))
        print(f"of the {len(other)} others, ours has the higher score in {better}")
        seconds: dict[str, list[float]] = {}
        for _ in range(given.runs):
            for dtype in ("fp32", "int8"):
                begin = time.process_time()
                list(ours[dtype].translate_all(lines, **options))
                seconds.setdefault(f"translume {dtype}", []).append(time.process_time() - begin)
                begin = time.process_time()
                theirs[dtype].translate(lines)
                seconds.setdefault(f"marian {dtype}", []).append(time.process_time() - begin)
        for name, values in seconds.items():
            print(f"{name:16} {statistics.median(values):7.2f} s  ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
