"""Translate by ONNX Runtime (fp32 and int8), the fast engine and the plain model; one thread, greedy search.

    python benchmarks/onnx_speed.py MODEL SOURCES [LINES]

Exports MODEL into a temporary folder, or uses the folders that the variables ONNX_FLOAT32 and ONNX_INT8 name. The ids
are compared first: those of float32 must equal the plain model's. Then the best of three passes is timed, in batches of
1 and of 32 sentences of similar length. Encoding text and decoding ids are not timed.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from translume.config import DecodingSettings
from translume.interchange.export import export
from translume.translator import Translator, load
from translume.translator.planning import Piece
from translume.translator.search import prepare_search, target_limit

Rows = list[list[int]]
Translate = Callable[[Rows], Rows]


def by_onnx(file: Path, translator: Translator) -> Translate:
    """Translate ids by the graph with the whole search."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    source, target = translator.checkpoint.source_tokenizer, translator.checkpoint.target_tokenizer
    settings = DecodingSettings(strategy="greedy")

    def translate(rows: Rows) -> Rows:
        longest = max(map(len, rows)) + 1
        ids = np.full((len(rows), longest), source.specials.pad)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row) + 1], mask[number, : len(row) + 1] = [*row, source.specials.eos], 1
        limits = np.array([target_limit(translator.checkpoint, len(row), 0, settings) for row in rows])
        (found,) = session.run(None, {"input_ids": ids, "attention_mask": mask, "max_length": limits})
        return [[each for each in row if each != target.specials.pad] for row in found.tolist()]

    return translate


def by_translator(translator: Translator) -> Translate:
    """Translate ids by the engine or the plain model."""
    stepper = translator.models.stepper(attentive=False)
    settings = DecodingSettings(strategy="greedy")

    def translate(rows: Rows) -> Rows:
        pieces = [Piece(text="", ids=tuple(row)) for row in rows]
        found = prepare_search(translator.checkpoint, pieces, settings, stepper).run()
        return [list(hypotheses[0].tokens) for hypotheses in found]

    return translate


def seconds(translate: Translate, batches: list[Rows]) -> float:
    """The best of three passes."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for rows in batches:
            translate(rows)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    if len(sys.argv) < 3:
        sys.exit(0 if short else __doc__)  # `make bench` has no model
    model, sources = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 32 if short else 320
    torch.set_num_threads(1)
    plain, fast = (load(model, device="cpu", engine=engine) for engine in ("plain", "fast"))
    packed = load(model, device="cpu", engine="fast", dtype="int8")
    lines = [line for line in Path(sources).read_text(encoding="utf-8").splitlines() if line][:count]
    rows = sorted((plain.checkpoint.source_tokenizer.encode(line) for line in lines), key=len)
    with tempfile.TemporaryDirectory() as made:
        ways: dict[str, Translate] = {"plain model": by_translator(plain)}
        for dtype, suffix in (("float32", ""), ("int8", "_quantized")):
            folder = Path(os.environ.get(f"ONNX_{dtype.upper()}", "") or Path(made) / dtype)
            if not folder.exists():
                print(export(model, "onnx", folder, dtype=dtype))
            ways[f"ONNX Runtime {dtype}"] = by_onnx(folder / "onnx" / f"translate{suffix}.onnx", plain)
        ways |= {"engine fp32": by_translator(fast), "engine int8": by_translator(packed)}
        wanted = [ids for row in rows for ids in ways["plain model"]([row])]
        for name, translate in ways.items():
            found = [ids for row in rows for ids in translate([row])]
            same = sum(map(list.__eq__, wanted, found))
            print(f"{name}: {same} of {len(rows)} translations have the ids of the plain model")
            if same < len(rows) and name in ("ONNX Runtime float32", "engine fp32"):
                sys.exit(f"{name} differs from the plain model")
        tokens = sum(map(len, wanted))
        for size in (1, 32):
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            for name, translate in ways.items():
                took = seconds(translate, batches)
                print(f"batch {size:2d}  {name:22s} {took:7.2f} s  {tokens / took:8,.0f} target tokens/s")


if __name__ == "__main__":
    main()
