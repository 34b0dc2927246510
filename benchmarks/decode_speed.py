"""Measure translation speed: our plain and fast engines, CTranslate2 and transformers with the same weights.

Every system runs in a separate process on one thread and is loaded once. For each setting the systems take turns,
`--rounds` times; the output is the median, with the spread of the rounds. Lines are sorted by length and cut into the
same batches for all systems. The whole file uses each system's own batching on all cores, with two workers of one
thread. The output also has the share of lines identical to the plain engine's, and BLEU (texts as they are tokenized).

    python benchmarks/decode_speed.py MODEL SOURCE REFERENCE [--lines 300] [--beams 1 5] [--batches 1 16 64 0]
                                      [--systems …] [--rounds 3] [--stop first] [--tokens N] [--processor-time] [--json]

By default our beam search stops like CTranslate2's, when the number of finished hypotheses reaches the beam width
(`stop = "first"`). With `--stop optimal` it continues until no hypothesis can win. Batch 0 is the whole file. Ratios
are our words per second over those of the best setting of CTranslate2 and of transformers. `--processor-time` takes the
processor time of a system instead of the time that passes, for machines that do other work; not for whole files.
`--tokens` makes every translation N tokens long, for models that were not trained. For batches, the last column is the
share of what one core could do at best (`_limits.py`): a time that no kernels with int8 weights can be below.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from _limits import Machine, Shape, measure

SYSTEMS = ("plain fp32", "fast fp32", "fast bf16", "fast int8", "ctranslate2 float32", "ctranslate2 int8",
           "transformers fp32", "transformers bf16")  # fmt: skip
SHORT = bool(os.environ.get("TRANSLUME_SHORT"))


class Ours:
    """Our translator, with an engine or without."""

    def __init__(self, model: str, folders: dict[str, str], way: str, dtype: str, workers: int) -> None:
        from translume.translator import load

        translator = load(model, device="cpu", dtype="fp32", threads=1)
        self.translator = translator if way == "plain" else translator.compile(dtype)
        self.stop, self.tokens = folders["stop"], int(folders["tokens"])

    def __call__(self, lines: list[str], beam: int, together: bool) -> list[str]:
        how: dict[str, Any] = (
            {"strategy": "beam", "beam": beam, "stop": self.stop} if beam > 1 else {"strategy": "greedy"}
        )
        if self.tokens:
            how |= {"min_length": self.tokens, "max_length": self.tokens}
        settings = self.translator.checkpoint.config.decoding.model_copy(update=how)
        return [each.text for each in self.translator.translate_all(lines, settings=settings)]


class CTranslate2:
    """CTranslate2 with our export; input and output are pieces."""

    def __init__(self, model: str, folders: dict[str, str], way: str, dtype: str, workers: int) -> None:
        import ctranslate2

        from translume.translator import load

        checkpoint = load(model, device="cpu", dtype="fp32", threads=1).checkpoint
        self.tokenizer = checkpoint.source_tokenizer
        self.target, folder = checkpoint.target_tokenizer, Path(folders["ctranslate2"])
        shared = folder / "shared_vocabulary.json"
        source, target = (
            json.loads((shared if shared.exists() else folder / f"{side}_vocabulary.json").read_text("utf-8"))
            for side in ("source", "target")
        )
        self.pieces, self.ids = source, {piece: number for number, piece in enumerate(target)}
        self.decoding, self.tokens = checkpoint.config.decoding, int(folders["tokens"])
        self.model = ctranslate2.Translator(
            folders["ctranslate2"], compute_type=dtype, inter_threads=workers, intra_threads=1
        )

    def __call__(self, lines: list[str], beam: int, together: bool) -> list[str]:
        sources = [[self.pieces[each] for each in ids] for ids in self.tokenizer.encode_all(lines)]
        found = self.model.translate_batch(
            sources,
            beam_size=beam,
            length_penalty=self.decoding.length_penalty if beam > 1 else 0,
            max_decoding_length=self.tokens or 100,
            min_decoding_length=self.tokens or 1,
            max_batch_size=1024 if together else 0,
            batch_type="tokens" if together else "examples",
        )
        return [self.target.decode([self.ids[piece] for piece in each.hypotheses[0]]) for each in found]


class Transformers:
    """transformers' `generate` with our export."""

    def __init__(self, model: str, folders: dict[str, str], way: str, dtype: str, workers: int) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        self.model = AutoModelForSeq2SeqLM.from_pretrained(folders["huggingface"], dtype=kind).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folders["huggingface"])

    def __call__(self, lines: list[str], beam: int, together: bool) -> list[str]:
        import torch

        order = sorted(range(len(lines)), key=lambda number: -len(lines[number]))
        found = [""] * len(lines)
        for start in range(0, len(lines), 64 if together else max(1, len(lines))):
            chosen = order[start : start + (64 if together else len(lines))]
            inputs = self.tokenizer([lines[number] for number in chosen], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = self.model.generate(**inputs, num_beams=beam, do_sample=False, max_new_tokens=100)
            texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
            for number, text in zip(chosen, texts, strict=True):
                found[number] = text
        return found


LIBRARIES: dict[str, Any] = {"plain": Ours, "fast": Ours, "ctranslate2": CTranslate2, "transformers": Transformers}


def work(model: str, folders: dict[str, str], system: str, workers: int) -> None:
    """Answer requests on standard input, one JSON object per line, until it ends."""
    import torch

    torch.set_num_threads(1)
    way, dtype = system.split()
    translate = LIBRARIES[way](model, folders, way, dtype, workers)
    clock = time.process_time if folders["clock"] == "processor" else time.perf_counter
    print(json.dumps({"ready": True}), flush=True)
    for request in map(json.loads, sys.stdin):
        lines, size = request["lines"], request["batch"]
        order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
        texts, waits = [""] * len(lines), []
        began = clock()
        for start in range(0, len(lines), size or len(lines)):
            chosen = order[start : start + (size or len(lines))]
            before = clock()
            for number, text in zip(
                chosen, translate([lines[n] for n in chosen], request["beam"], not size), strict=True
            ):
                texts[number] = text
            waits.append(clock() - before)
        seconds = clock() - began
        peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        answer = {"texts": texts, "seconds": seconds, "waits": waits, "mebibytes": int(peak.split()[1]) / 1024}
        print(json.dumps(answer), flush=True)


class Worker:
    """A system in a separate process."""

    def __init__(self, model: str, folders: dict[str, str], system: str, workers: int) -> None:
        command = [sys.executable, __file__, "--work", json.dumps([model, folders, system, workers])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("decode_speed: a worker died; run it with --work to see why")
        return dict(json.loads(line))

    def send(self, lines: list[str], beam: int, batch: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"lines": lines, "beam": beam, "batch": batch}) + "\n")
        self.process.stdin.flush()

    def ask(self, lines: list[str], beam: int, batch: int) -> dict[str, Any]:
        self.send(lines, beam, batch)
        return self._answer()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Team:
    """A system configured for a whole file: several processes that share the lines, or its own workers."""

    def __init__(self, model: str, folders: dict[str, str], system: str, cores: int) -> None:
        own = system.startswith("ctranslate2")
        self.workers = [Worker(model, folders, system, cores if own else 1) for _ in range(1 if own else cores)]

    def ask(self, lines: list[str], beam: int, batch: int) -> dict[str, Any]:
        if batch:
            return self.workers[0].ask(lines, beam, batch)
        order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
        shares = [order[place :: len(self.workers)] for place in range(len(self.workers))]
        began = time.perf_counter()
        for worker, share in zip(self.workers, shares, strict=True):
            worker.send([lines[number] for number in share], beam, 0)
        answers = [worker._answer() for worker in self.workers]
        seconds, texts = time.perf_counter() - began, [""] * len(lines)
        for share, answer in zip(shares, answers, strict=True):
            for number, text in zip(share, answer["texts"], strict=True):
                texts[number] = text
        return {
            "texts": texts,
            "seconds": seconds,
            "waits": [seconds],
            "mebibytes": sum(a["mebibytes"] for a in answers),
        }

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


def exported(model: str, systems: list[str], folder: Path) -> dict[str, str]:
    """Export the model for the other libraries; report and skip a library that cannot express it."""
    import translume
    from translume.errors import TranslumeError

    folders = {}
    for target in ("ctranslate2", "huggingface"):
        way = "transformers" if target == "huggingface" else target
        if any(each.startswith(way) for each in systems):
            try:
                translume.export(model, target, folder / target)
                folders[target] = str(folder / target)
            except TranslumeError as error:
                print(f"left out: {error}", file=sys.stderr)
                systems[:] = [each for each in systems if not each.startswith(way)]
    return folders


class Limits(NamedTuple):
    """What the machine and the model are, and the functions that count tokens of sources and targets."""

    machine: Machine
    shape: Shape
    source: Callable[[str], int]
    target: Callable[[str], int]


def limits_of(model: str) -> Limits | None:
    """Return the limits of a model on this machine; None where they cannot be measured."""
    from translume.kernels.cpu import chosen_instructions
    from translume.translator import load

    checkpoint = load(model, device="cpu", dtype="fp32", engine="plain").checkpoint
    sizes = {name: array.size for name, array in checkpoint.arrays().items() if array.ndim == 2}
    settings = checkpoint.config.model
    encoder = sum(size for name, size in sizes.items() if name.startswith("encoder.layers"))
    decoder = sum(size for name, size in sizes.items() if name.startswith("decoder.layers"))
    decoder += len(checkpoint.target_tokenizer) * settings.width
    machine = measure(chosen_instructions().name, encoder + decoder)
    if machine is None:
        return None
    speed = f"{machine.products / 1e9:.0f} billion int8 multiply-adds a second, {machine.bandwidth / 1e9:.1f} GB/s"
    print(f"one core: {speed} from a block of {(encoder + decoder) / 1e6:.0f} MB", file=sys.stderr)
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    return Limits(
        machine,
        Shape(encoder, decoder, 2 * settings.decoder_layers * settings.width),
        lambda text: len(source.encode_all([text])[0]) + 1,
        lambda text: len(target.encode_all([text])[0]) + 1,
    )


def best_time(limits: Limits, sources: list[str], texts: list[str], beam: int, batch: int, fixed: int) -> float:
    """Return the least seconds for all batches of a setting.  fixed: see --tokens."""
    order, total = sorted(range(len(sources)), key=lambda number: len(sources[number])), 0.0
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        lengths = [limits.source(sources[n]) for n in chosen], [fixed or limits.target(texts[n]) for n in chosen]
        total += limits.machine.seconds(limits.shape, *lengths, beam)
    return total


def measured(
    teams: dict[str, Team],
    data: tuple[list[str], list[str]],
    beam: int,
    batch: int,
    rounds: int,
    fixed: int,
    limits: "Limits | None",
) -> list[dict[str, Any]]:
    """Return one row per system for a setting.  fixed: see --tokens."""
    import sacrebleu

    sources, references = data
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in teams}
    for _ in range(rounds):
        for name, team in teams.items():
            taken[name].append(team.ask(sources, beam, batch))
    baseline = taken[next(iter(teams))][0]["texts"]
    rows = []
    for name, answers in taken.items():
        texts, seconds = answers[0]["texts"], [each["seconds"] for each in answers]
        waits = sorted(wait for each in answers for wait in each["waits"])
        tokens = len(texts) * fixed or sum(len(text.split()) for text in texts)
        least = best_time(limits, sources, texts, beam, batch, fixed) if limits and batch else 0.0
        rows.append({
            "system": name, "beam": beam, "batch": batch or "file",
            "words_per_second": tokens / statistics.median(seconds),
            "spread": max(seconds) / min(seconds), "p50_ms": 1e3 * waits[len(waits) // 2],
            "p95_ms": 1e3 * waits[int(len(waits) * 0.95)],
            "bleu": sacrebleu.corpus_bleu(texts, [references], tokenize="none", force=True).score,
            "same": sum(a == b for a, b in zip(texts, baseline, strict=True)) / len(texts),
            "mebibytes": max(each["mebibytes"] for each in answers), "of_limit": least / statistics.median(seconds),
        })  # fmt: skip
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the ratio of our best engine to the best of each peer, by setting; larger is better."""
    found = {}
    for beam, batch in dict.fromkeys((row["beam"], row["batch"]) for row in rows):
        speeds = {r["system"]: r["words_per_second"] for r in rows if (r["beam"], r["batch"]) == (beam, batch)}
        ours = max((speed for name, speed in speeds.items() if name.startswith(("plain", "fast"))), default=0.0)
        for peer in ("ctranslate2", "transformers"):
            theirs = [speed for name, speed in speeds.items() if name.startswith(peer)]
            if theirs:
                found[f"ratio_{peer}_beam{beam}_batch{batch}"] = ours / max(theirs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("source", nargs="?", type=Path)
    parser.add_argument("reference", nargs="?", type=Path)
    parser.add_argument("--lines", type=int, default=20 if SHORT else 300)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 0])
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=1 if SHORT else 3)
    parser.add_argument("--stop", choices=("first", "optimal"), default="first")
    parser.add_argument("--tokens", type=int, default=0)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*json.loads(options.work))
        return
    if options.reference is None:
        print("skipped: expected MODEL SOURCE REFERENCE")
        return
    sources, references = (
        path.read_text("utf-8").splitlines()[: options.lines] for path in (options.source, options.reference)
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        folders = {**exported(options.model, options.systems, Path(folder)), "stop": options.stop}
        folders["tokens"] = str(options.tokens)
        folders["clock"] = "processor" if options.processor_time else "wall"
        limits = limits_of(options.model)
        teams = {name: Team(options.model, folders, name, len(os.sched_getaffinity(0))) for name in options.systems}
        for team in teams.values():
            team.ask(sources[:3], 1, 1)  # load parts that libraries load on first use
        for beam in options.beams:
            for batch in options.batches:
                new = measured(teams, (sources, references), beam, batch, options.rounds, options.tokens, limits)
                rows += new
                if not options.json:
                    show(new)
        for team in teams.values():
            team.stop()
    found = ratios(rows)
    if options.json:
        print(json.dumps({"rows": rows, **found}))
    else:
        for name, ratio in found.items():
            print(f"{name}: {ratio:.2f}")


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\nbeam {rows[0]['beam']}, batch {rows[0]['batch']}")
    for row in rows:
        print(
            f"  {row['system']:20} {row['words_per_second']:8.0f} words/s (x{row['spread']:.2f})"
            f"  p50 {row['p50_ms']:8.1f} ms  p95 {row['p95_ms']:8.1f} ms"
            f"  BLEU {row['bleu']:5.2f}  same {row['same']:4.0%}  {row['mebibytes']:6.0f} MiB"
            f"  limit {row['of_limit']:4.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
