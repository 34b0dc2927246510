"""Compare fine-tuning by low-rank adapters (LoRA) with fine-tuning all weights: quality, memory and time.

A base model learns one half of the corpus of `translume demo`, for so few updates that it makes many mistakes. It is
then fine-tuned on the other half, each time in a process of its own, with the same batches.
Memory is also measured for a model of the base shape of Vaswani et al. with random weights, by dry runs. Adam: bytes
of its moments. Checkpoint: bytes of the trained weights.

With --imported, the base model is exported for transformers and imported again before it is fine-tuned.

    python benchmarks/low_rank.py [--updates 500] [--lora-updates 750] [--base-updates 600] [--folder DIR] [--imported]
                                  [--json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from translume import export, load
from translume.checkpoint import Manifest
from translume.config import Config
from translume.evaluation import evaluate
from translume.experiments.demo import make_corpus
from translume.interchange.importing import import_model
from translume.training import DryRun, Started, dry_run, train

LANGUAGES = ("en", "zh")
EVERY = ["query", "key", "value", "output", "feed_forward"]
WAYS: dict[str, dict[str, Any]] = {
    "base model": {},
    "all weights": {"learning_rate": 1e-3},
    "rank 8, all maps": {"learning_rate": 6e-3, "lora_rank": 8, "lora_targets": EVERY},
    "rank 8, query and value": {"learning_rate": 6e-3, "lora_rank": 8, "lora_targets": ["query", "value"]},
    "rank 2, all maps": {"learning_rate": 6e-3, "lora_rank": 2, "lora_targets": EVERY},
    "rank 8, all maps and norms": {
        "learning_rate": 6e-3, "lora_rank": 8, "lora_targets": EVERY, "lora_norms": True,
    },
}  # fmt: skip
SMALL = {"width": 128, "feed_forward": 256, "encoder_layers": 2, "decoder_layers": 2, "attention_heads": 4}
LARGE = {"width": 512, "feed_forward": 2048, "encoder_layers": 6, "decoder_layers": 6, "attention_heads": 8}


def write_halves(folder: Path, pairs: int) -> None:
    """Write one half of the demo's training pairs to `known`, the other half to `new`."""
    corpus = make_corpus(*LANGUAGES, pairs=pairs)
    for name, first in (("known", 0), ("new", 1)):
        replace(corpus, train=corpus.train[first::2]).write(folder / name)


def settings(
    data: Path, model: dict[str, Any] | None, updates: int, *, shared: bool = False, **training: Any
) -> Config:
    """Return settings for the files of a folder.  model: None with a base model.  shared: one vocabulary for all."""
    files = {
        f"{part}_{side}": str(data / f"{part}.{language}")
        for part in ("train", "valid")
        for side, language in zip(("source", "target"), LANGUAGES, strict=True)
    }
    tables: dict[str, Any] = {
        "data": {**dict(zip(("source_language", "target_language"), LANGUAGES, strict=True)), **files},
        "training": {
            "updates": updates, "max_tokens": 2048, "schedule": "cosine", "warmup_updates": max(1, updates // 10),
            "label_smoothing": 0.0, "validate_every": updates, "save_every": updates, "precision": "fp32", **training,
        },
        "evaluation": {"tokenize": "zh", "metrics": ["bleu", "chrf", "exact_match"]},
        "decoding": {"strategy": "greedy"},
    }  # fmt: skip
    if model is not None:
        tables["tokenizer"] = {"kind": "bpe", "size": 3000 if shared else 1500, "shared": shared}
        tables["model"] = {**model, "dropout": 0.0, "head": {"kind": "softmax", "tie": "all" if shared else "target"}}
    return Config.build(tables, place="low_rank")


def tuned(folder: Path, way: str, updates: int) -> dict[str, Any]:
    """Fine-tune in one way and measure it on the demo's test set."""
    begun, trained, out = time.perf_counter(), 0, folder / "base"
    sizes = {"adam": 0, "checkpoint": 0}
    if WAYS[way]:
        out = folder / way.replace(" ", "-").replace(",", "")
        for event in train(settings(folder / "new", None, updates, **WAYS[way]), out, source=folder / "base"):
            if isinstance(event, Started):
                trained, begun = event.trained_parameters, time.perf_counter()
        files = Manifest.read(out).files
        names = {"adam": "resume/optimizer.safetensors", "checkpoint": "resume/raw.safetensors"}
        sizes = {name: files[file].size for name, file in names.items()}
    seconds, peak = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    source, target = ((folder / "new" / f"test.{language}").read_text("utf-8").splitlines() for language in LANGUAGES)
    measured = settings(folder / "new", None, 1)  # an imported base model has other defaults
    scores = evaluate(load(out, device="cpu"), source, target, measured.evaluation, decoding=measured.decoding)
    quality = {score.name: round(score.value, 2) for score in scores.scores}
    return {"way": way, "trained": trained, **quality, **sizes, "seconds": round(seconds, 1), "peak": peak}


def rehearsed(folder: Path, way: str) -> dict[str, Any]:
    """Measure a dry run with a model of the large shape."""
    config = settings(folder / "new", None, 8, **WAYS[way])
    trained = 0
    for event in dry_run(config, folder / "dry", source=folder / "large"):
        if isinstance(event, Started):
            trained = event.trained_parameters
        if isinstance(event, DryRun):
            return {"way": way, "trained": trained, "peak": event.peak_bytes, "update": event.update_seconds}
    raise AssertionError("a dry run ends with its measurements")


def in_process(folder: Path, *words: str) -> dict[str, Any]:
    """Run this script again for one way, and return what it prints."""
    command = [sys.executable, __file__, "--folder", str(folder), *words]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(result.stdout.splitlines()[-1]))


def main() -> None:
    short = bool(os.environ.get("TRANSLUME_SHORT"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep models here; a base model in it is used")
    parser.add_argument("--base-updates", type=int, default=20 if short else 600)
    parser.add_argument("--updates", type=int, default=10 if short else 500)
    parser.add_argument("--lora-updates", type=int, default=10 if short else 750)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--tune", help=argparse.SUPPRESS)
    parser.add_argument("--rehearse", help=argparse.SUPPRESS)
    parser.add_argument("--no-memory", action="store_true", default=short, help="leave out the large shape")
    parser.add_argument("--imported", action="store_true", help="fine-tune an imported model")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or Path(made)
        if arguments.tune:
            print(json.dumps(tuned(folder, arguments.tune, arguments.updates)))
            return
        if arguments.rehearse:
            print(json.dumps(rehearsed(folder, arguments.rehearse)))
            return
        if not (folder / "new").exists():
            write_halves(folder, 2000 if short else 40_000)
        rate = {"learning_rate": 3e-3}
        for name, shape, updates in (("base", SMALL, arguments.base_updates), ("large", LARGE, 1)):
            if not (folder / name).exists() and (name == "base" or not arguments.no_memory):
                config = settings(folder / "known", shape, updates, shared=arguments.imported, **rate)
                list(train(config, folder / name))
        if arguments.imported and not (folder / "exported").exists():
            export(folder / "base", "huggingface", folder / "exported")
            (folder / "base").rename(folder / "trained")
            import_model(folder / "exported", folder / "base")
        tunings = []
        for way in arguments.ways:
            updates = arguments.lora_updates if "lora_rank" in WAYS[way] else arguments.updates
            tunings.append(in_process(folder, "--updates", str(updates), "--tune", way))
        memory = [] if arguments.no_memory else [
            in_process(folder, "--rehearse", way) for way in arguments.ways if WAYS[way]
        ]  # fmt: skip
    if arguments.json:
        print(json.dumps({"tunings": tunings, "memory": memory}))
        return
    print("way                          trained   BLEU   chrF  exact   Adam, kB  checkpoint, kB  seconds  peak, MB")
    for row in tunings:
        print(
            f"{row['way']:<27} {row['trained']:>9,} {row['bleu']:>6} {row['chrf']:>6} {row['exact_match']:>6} "
            f"{row['adam'] / 1e3:>10,.0f} {row['checkpoint'] / 1e3:>15,.0f} {row['seconds']:>8} "
            f"{row['peak'] / 1e6:>9.0f}"
        )
    for row in memory:
        cost = f"{row['peak'] / 1e6:,.0f} MB, {row['update']:.2f} s an update"
        print(f"large: {row['way']:<27} {row['trained']:>11,} {cost}")


if __name__ == "__main__":
    main()
