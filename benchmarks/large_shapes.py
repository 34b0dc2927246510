"""Large shapes with random weights: import, load, first translation, and the speed of greedy search.

Seconds and peak memory of each step, measured in a process of its own. Then the speed of int8 in target tokens per
second of processor time, one thread, for batches of 1 and 32 sentences of 20 tokens that end after 20 tokens:
Translume's engine, CTranslate2 (int8) and transformers (fp32, since it has no int8 on a CPU), on the same weights.
First the outputs are compared: the ids of the fp32 engine must be those of transformers, and the share of int8's ids
that are is printed.

    python benchmarks/large_shapes.py [--shape t5-base | nllb-600M] [--data FOLDER] [--layers 12] [--rounds 3]
                                      [--folder KEPT]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from families import DATA, read_lines, write_bart, write_t5

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
TOKENS = 20
T5 = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12}
NLLB = {
    "d_model": 1024, "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096, "vocab_size": 6_000 if SHORT else 256_206,
}  # fmt: skip
SHAPES = ("t5-base", "nllb-600M")
STEPS = ("import", "load", "translate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of real data")
    parser.add_argument("--shape", choices=SHAPES, default=SHAPES[0])
    parser.add_argument("--layers", type=int, default=1 if SHORT else 12)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    parser.add_argument("--folder", type=Path, help="where the models are kept")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    if options.step:
        run_step(options.step, folder)
        return
    import torch

    torch.set_num_threads(1)
    if not (folder / "theirs").exists():
        lines = read_lines(options.data, 10_000)
        if options.shape == "t5-base":
            layers = {"num_layers": options.layers, "num_decoder_layers": options.layers}
            write_t5(folder / "theirs", "t5", lines, **T5, **layers)
        else:
            layers = {"encoder_layers": options.layers, "decoder_layers": options.layers}
            write_bart(folder / "theirs", "nllb-200", lines, **NLLB, **layers)
    weights = (folder / "theirs" / "model.safetensors").stat().st_size / 2**20
    print(f"weights: {weights:,.0f} MiB", flush=True)
    for step in STEPS:
        if step == "import" and (folder / "ours").exists():
            continue
        command = [sys.executable, __file__, "--data", str(options.data), "--folder", str(folder), "--step", step]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        print(f"{step}: {found['seconds']:.1f} s, peak {found['mebibytes']:,.0f} MiB", flush=True)
    for name, tokens in speeds(folder, options.rounds).items():
        print(f"{name}: " + ", ".join(f"batch {batch} {speed:,.0f} tokens/s" for batch, speed in tokens.items()))


def run_step(step: str, folder: Path) -> None:
    """Run one step and print its seconds and the peak memory of this process."""
    import torch

    import translume

    torch.set_num_threads(1)
    begun = time.perf_counter()
    if step == "import":
        translume.import_model(folder / "theirs", folder / "ours")
    else:
        model = translume.load(folder / "ours", device="cpu")
        if step == "translate":
            model.compile("int8")
            begun = time.perf_counter()
            codes = list(model.checkpoint.source_tokenizer.languages)[:2]
            model.translate(
                "Ein Mann fährt Fahrrad.", max_length=TOKENS, **dict(zip(("from_", "to"), codes, strict=False))
            )
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10}))


def speeds(folder: Path, rounds: int) -> dict[str, dict[int, float]]:
    """Return target tokens per second by engine and batch: the best of `rounds`, in turns."""
    import ctranslate2
    import torch
    import transformers

    import translume
    from translume.checkpoint import load_checkpoint
    from translume.decoding import Greedy, MinimumLength, search
    from translume.engine import build_engine

    checkpoint = load_checkpoint(folder / "ours", device="cpu", dtype="fp32")
    engine = build_engine(checkpoint.model, "int8")
    if not (folder / "ct2").exists():
        translume.export(folder / "ours", "ctranslate2", folder / "ct2", dtype="int8")
    peer = ctranslate2.Translator(str(folder / "ct2"), compute_type="int8", intra_threads=1)
    plain = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "theirs").eval()
    pieces, specials = checkpoint.source_tokenizer.pieces(), checkpoint.target_tokenizer.specials
    ids = {piece: id_ for id_, piece in enumerate(checkpoint.target_tokenizer.pieces())}
    full = build_engine(checkpoint.model, "fp32")
    best: dict[str, dict[int, float]] = {}
    for batch in (1, 32):
        generator = torch.Generator().manual_seed(batch)
        source = torch.randint(10, 3900, (batch, TOKENS), generator=generator)
        source[:, -1] = specials.eos
        mask = torch.ones_like(source, dtype=torch.bool)

        def ours(engine: Any = engine, source: torch.Tensor = source, mask: torch.Tensor = mask) -> list[list[int]]:
            found = search(
                engine.step, engine.start(source, mask), bos=specials.bos, eos=specials.eos, strategy=Greedy(),
                rules=[MinimumLength(TOKENS)], limits=torch.full((len(source),), TOKENS),
            )  # fmt: skip
            return [list(hypotheses[0].tokens)[:TOKENS] for hypotheses in found]

        def theirs(source: torch.Tensor = source) -> list[list[int]]:
            words = [[pieces[id_] for id_ in row[:-1]] for row in source.tolist()]
            found = peer.translate_batch(words, beam_size=1, min_decoding_length=TOKENS, max_decoding_length=TOKENS)
            return [[ids[piece] for piece in each.hypotheses[0]] for each in found]

        def generate(source: torch.Tensor = source, mask: torch.Tensor = mask) -> list[list[int]]:
            found = plain.generate(
                source, attention_mask=mask.long(), do_sample=False, num_beams=1, min_new_tokens=TOKENS,
                max_new_tokens=TOKENS, forced_bos_token_id=None, decoder_start_token_id=specials.bos,
            )  # fmt: skip
            return [row.tolist() for row in found[:, 1:]]

        with torch.inference_mode():
            wanted = generate()
            texts = {"fp32": ours(full), "int8": ours(), "CTranslate2 int8": theirs()}
            shares = {name: _same(each, wanted) for name, each in texts.items()}
        print(f"batch {batch}: share of transformers' ids: " + ", ".join(f"{k} {v:.3f}" for k, v in shares.items()))
        assert shares["fp32"] > 0.98, "the engine computes something else than transformers"

        calls: dict[str, Callable[[], object]] = {"Translume": ours, "CTranslate2": theirs, "transformers": generate}
        for _ in range(rounds):
            for name, call in calls.items():
                begun = time.process_time()
                with torch.inference_mode():
                    call()
                speed = batch * TOKENS / (time.process_time() - begun)
                found = best.setdefault(name, {})
                found[batch] = max(speed, found.get(batch, 0.0))
    return best


def _same(found: list[list[int]], wanted: list[list[int]]) -> float:
    """Return the share of equal ids before the first difference of each row, since later ones follow from it."""
    equal = total = 0
    for one, other in zip(found, wanted, strict=True):
        same = next(
            (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(other)
        )
        equal += same
        total += len(other)
    return equal / total


if __name__ == "__main__":
    main()
