"""What gpu.py decodes with, and everything else that has to run on a GPU, each once.

The functions that yield run in a process of their own; see `Worker` of gpu.py.
"""

import gc
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import wave
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _gpu_training import gpu_way, release, synchronize

Tables = dict[str, dict[str, Any]]
Translate = Callable[[list[str], int], list[str]]
"""Translates lines with a beam width; 1: greedily."""


def merged(tables: Tables, changes: dict[str, Any]) -> Tables:
    """Return settings with changes, which name their places: {"training.updates": 5}."""
    found: Tables = json.loads(json.dumps(tables))
    for place, value in changes.items():
        *path, name = place.split(".")
        table: Any = found
        for part in path:
            table = table.setdefault(part, {})
        table[name] = value
    return found


# ---- training as a command, and as events


def command(words: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Run a command of Translume with --json; yield the objects that it prints, each with its time `at` in seconds."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "translume", *words, "--json"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        objects = [{"at": time.perf_counter() - begun, **json.loads(line)} for line in process.stdout]
        if process.wait():
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [""]
            raise RuntimeError(f"translume {words[0]} ended with {process.returncode}: {lines[-1]}")
    yield objects


def updates_of(tables: Tables, folder: str, device: str) -> Iterator[int]:
    """Train, and yield the number of each update that is done."""
    from translume.config import Config
    from translume.training import Progress, train

    for event in train(Config.build(tables), folder, device=device):
        if isinstance(event, Progress):
            yield event.update


# ---- decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A contestant.  kind: "ours", "transformers" or "ctranslate2".  folder: its model.

    model: our model, for its tokenizers.  longest: maximum length of a target; 0: as the model's settings say.
    forced: whether a CPU computes in the way of a GPU.
    """

    kind: str
    folder: str
    model: str
    device: str
    dtype: str = "auto"
    longest: int = 0
    forced: bool = False


def our_decoder(decoder: Decoder) -> tuple[Translate, Any]:
    import translume

    load = partial(translume.load, decoder.folder, device=decoder.device, dtype=decoder.dtype)  # type: ignore[arg-type]  # a string
    translator = load(engine="plain" if decoder.forced else "auto")
    if decoder.forced:
        from translume.translator.device_searcher import DeviceSearcher

        translator = translator.step_with(DeviceSearcher(translator.checkpoint.model))
    limit: dict[str, Any] = {"max_length": decoder.longest} if decoder.longest else {}

    def translate(lines: list[str], beam: int) -> list[str]:
        how: dict[str, Any] = {"strategy": "greedy"} if beam == 1 else {"strategy": "beam", "beam": beam}
        return [each.text for each in translator.translate_all(lines, **how, **limit)]

    return translate, translator


def their_decoder(decoder: Decoder) -> Translate:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    dtype = torch.bfloat16 if decoder.device != "cpu" else torch.float32
    tokenizer = AutoTokenizer.from_pretrained(decoder.folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(decoder.folder, dtype=dtype).to(decoder.device).eval()

    def translate(lines: list[str], beam: int) -> list[str]:
        order = sorted(range(len(lines)), key=lambda number: -len(lines[number].split()))
        found = [""] * len(lines)
        for begin in range(0, len(order), 64):
            chosen = order[begin : begin + 64]
            inputs = tokenizer([lines[number] for number in chosen], return_tensors="pt", padding=True)
            with torch.inference_mode():
                ids = model.generate(
                    **inputs.to(decoder.device), num_beams=beam, do_sample=False, max_new_tokens=decoder.longest or 100
                )
            texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
            for number, text in zip(chosen, texts, strict=True):
                found[number] = text
        return found

    return translate


def ctranslate2_decoder(decoder: Decoder) -> Translate:
    import ctranslate2

    import translume

    if decoder.device != "cpu" and not ctranslate2.get_cuda_device_count():
        raise RuntimeError("its wheel finds no CUDA device")
    dtype = "bfloat16" if decoder.device != "cpu" else "default"
    model = ctranslate2.Translator(decoder.folder, device=decoder.device.partition(":")[0], compute_type=dtype)
    checkpoint = translume.load(decoder.model, device="cpu", engine="plain").checkpoint
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    pieces, ids = source.pieces(), {piece: number for number, piece in enumerate(target.pieces())}

    def translate(lines: list[str], beam: int) -> list[str]:
        sources = [[pieces[each] for each in tokens] for tokens in source.encode_all(lines)]
        found = model.translate_batch(
            sources, beam_size=beam, length_penalty=1.0 if beam > 1 else 0.0, max_batch_size=4096, batch_type="tokens",
            max_decoding_length=decoder.longest or 100,
        )  # fmt: skip
        return [target.decode([ids[piece] for piece in each.hypotheses[0]]) for each in found]

    return translate


def decoding(decoder: Decoder) -> Generator[Any, tuple[str, list[str], Any], None]:
    """Decode as a contestant: yield facts, then an answer to each request.

    ("all", lines, beam): {"seconds", "texts"}.  ("each", lines, beam): {"seconds": [one for each line]}.
    ("score", sources, targets): {"log_probs"}, of each token; ours only.
    """
    device = torch.device(decoder.device)
    with ExitStack() as stack:
        if decoder.forced:
            stack.enter_context(gpu_way(device))
        begun, translator, facts = time.perf_counter(), None, dict[str, Any]()
        if decoder.kind == "ours":
            translate, translator = our_decoder(decoder)
        else:
            translate = their_decoder(decoder) if decoder.kind == "transformers" else ctranslate2_decoder(decoder)
        facts = {"setup_seconds": time.perf_counter() - begun}
        wanted, lines, given = yield facts
        while True:
            begun = time.perf_counter()
            answer: dict[str, Any] = {}
            if wanted == "score":
                assert translator is not None
                pairs = zip(lines, given, strict=True)
                answer = {"log_probs": [each.token_log_probs for each in translator.score_all(pairs)]}
            elif wanted == "each":
                answer = {"seconds": [_timed(partial(translate, [line], given), device) for line in lines]}
            else:
                answer = {"texts": translate(lines, given), "seconds": time.perf_counter() - begun}
            wanted, lines, given = yield answer


def _timed(function: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds that a function takes, with what a device does for it."""
    synchronize(device)
    begun = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - begun


def exported(model: str, home: str) -> Iterator[dict[str, str]]:
    """Yield the folder of each export of a model, or the reason why there is none."""
    import translume

    found = {}
    for target in ("huggingface", "ctranslate2"):
        try:
            translume.export(model, target, Path(home) / target)
            found[target] = str(Path(home) / target)
        except Exception as error:  # of whatever library is missing
            found[f"no {target}"] = " ".join(str(error).split())[:200]
    yield found


# ---- everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the features below are given.  tables: settings of a training on `sources` and `targets`, which are lines.

    home: a folder for each device.  model: a trained model.  export: the same for transformers; "": none.
    """

    device: str
    home: str
    model: str
    export: str
    tables: Tables
    sources: list[str]
    targets: list[str]

    def folder(self, name: str = "run") -> Path:
        """Return a folder that does not exist yet."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home)) / name

    def write(self, tables: Tables) -> str:
        """Write a TOML, and return its path."""
        from translume.config import Config

        path = self.folder().with_suffix(".toml")
        path.write_text(Config.build(tables).to_toml())
        return str(path)


UPDATES = 5


def trained(case: Case, changes: dict[str, Any], *, source: str | None = None, folder: Path | None = None) -> float:
    """Return the mean seconds of an update after the first, of a training with changed settings.

    folder: where the model is saved; None: the training is not ended.
    """
    import translume
    from translume.training import Progress

    config, ends = translume.Config.build(merged(case.tables, changes)), list[float]()
    for event in translume.train(config, folder or case.folder(), source=source, device=case.device):
        if isinstance(event, Progress):
            ends.append(time.perf_counter())
            if folder is None and event.update == event.updates:
                break
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def validated(case: Case) -> float:
    """Return the seconds of the second of two validations with translations."""
    import translume
    from translume.training import Validated

    changes = {"training.validate_every": 2, "training.metric": "bleu", "training.validation_sentences": 0}
    config = translume.Config.build(merged(case.tables, changes))
    events = translume.train(config, case.folder(), device=case.device)
    validations = (event.seconds for event in events if isinstance(event, Validated))
    next(validations)
    return next(validations)


def evaluated(case: Case) -> float:
    import translume

    return _once(case, lambda translator: translume.evaluate(translator, case.sources, case.targets))


def scored(case: Case) -> float:
    pairs = list(zip(case.sources, case.targets, strict=True))
    return _once(case, lambda translator: list(translator.score_all(pairs)))


def inspected(case: Case) -> float:
    import translume

    return _once(case, lambda translator: translume.trace(translator, case.sources[0]))


def _once(case: Case, function: Callable[[Any], Any]) -> float:
    """Return the seconds that a function of the translator takes the second time."""
    import translume

    translator = translume.load(case.model, device=case.device)
    function(translator)
    return _timed(partial(function, translator), torch.device(case.device))


def served(case: Case) -> float:
    """Return the seconds of a request to a server, after a first one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", f"model={case.model}", "--device", case.device, "--port", str(port)]
    process = subprocess.Popen([sys.executable, "-m", "translume", *words], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line.strip())
            if line.startswith("serving"):
                break
        else:
            raise RuntimeError(lines[-1] if lines else "the server ended")
        body = json.dumps({"text": case.sources[:8]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/translate", body, headers)

        def asked() -> None:
            with urllib.request.urlopen(request, timeout=60) as response:
                if len(json.load(response)["translations"]) != len(case.sources[:8]):
                    raise RuntimeError("a translation is missing")

        asked()
        return _timed(asked, torch.device("cpu"))
    finally:
        process.terminate()
        process.wait(20)


def cli(*words: str) -> None:
    """Run a command of Translume in this process. Raises RuntimeError with its last message if it fails."""
    from translume.cli import main

    with redirect_stderr(io.StringIO()) as errors:
        code = main(list(words), standalone_mode=False)
    if code:
        raise RuntimeError((errors.getvalue().strip().splitlines() or [f"exit code {code}"])[-1])


def distilled(case: Case) -> float:
    """Return the seconds of the command: translating, and a few updates."""
    begun = time.perf_counter()
    cli("distil", case.model, case.write(case.tables), "--out", str(case.folder()), "--device", case.device)
    return time.perf_counter() - begun


def backtranslated(case: Case) -> float:
    source = case.folder("lines")
    source.write_text("".join(f"{line}\n" for line in case.sources))
    begun = time.perf_counter()
    output = str(case.folder("synthetic"))
    cli("backtranslate", case.model, "--input", str(source), "--output", output, "--device", case.device)
    return time.perf_counter() - begun


def modelled(case: Case) -> float:
    """Train a language model and generate with it; return the seconds of an update."""
    import translume

    text, folder = case.folder("text"), case.folder()
    text.write_text("".join(f"{line}\n" for line in case.targets))
    data = {"task": "language_model", "documents": "line", "train": str(text), "valid": str(text)}
    seconds = trained(replace(case, tables={**case.tables, "data": data}), {"model.encoder_layers": 0}, folder=folder)
    translume.load(folder, device=case.device).generate("", max_length=8)
    return seconds


def classified(case: Case) -> float:
    """Train a classifier of two classes."""
    rows = [f"{source}\t{'long' if len(source) > 60 else 'short'}" for source in case.sources]
    return _from_manifest(case, rows, {"task": "classification"}, {"model.head": {"kind": "classify"}})


def heard(case: Case) -> float:
    """Train with recordings of noise."""

    def write(path: Path) -> None:
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes((torch.randn(8_000) * 3000).short().numpy().tobytes())

    return _from_files(case, "audio", ".wav", write, {"mels": 40, "time_masks": 1, "value_masks": 1, "speed": 0.1})


def seen(case: Case) -> float:
    """Train with grey images of noise, as PNG."""

    def write(path: Path) -> None:
        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        rows = b"".join(b"\0" + os.urandom(64) for _ in range(28))
        header = struct.pack(">IIBBBBB", 64, 28, 8, 0, 0, 0, 0)
        parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))

    return _from_files(case, "image", ".png", write, {"height": 28, "channels": 24, "shift": 2})


def _from_files(case: Case, kind: str, ending: str, write: Callable[[Path], None], settings: dict[str, Any]) -> float:
    folder = case.folder("files")
    folder.mkdir()
    rows = []
    for number, target in enumerate(case.targets[:64]):
        write(folder / f"{number}{ending}")
        rows.append(f"{folder / f'{number}{ending}'}\t{target}")
    return _from_manifest(case, rows, {"source": {"kind": kind, **settings}}, {"training.ctc_weight": 0.3})


def _from_manifest(case: Case, rows: list[str], data: dict[str, Any], changes: dict[str, Any]) -> float:
    path = case.folder("pairs").with_suffix(".tsv")
    path.write_text("".join(f"{row}\n" for row in rows))
    tables = {**case.tables, "data": {"train": str(path), "valid": str(path), **data}}
    tables["tokenizer"] = {"kind": "bpe", "size": 300}
    tables["model"] = {**tables["model"], "head": {"kind": "softmax", "tie": "target"}}
    return trained(replace(case, tables=tables), changes)


def imported(case: Case) -> float:
    """Import the export for transformers, and translate with it; return the seconds of translating."""
    import translume

    if not case.export:
        raise RuntimeError("there is no export for transformers")
    folder = case.folder()
    translume.import_model(case.export, folder)
    # An imported model knows no lengths of training data.
    return _once(replace(case, model=str(folder)), lambda each: list(each.translate_all(case.sources, max_length=40)))


def torchrun(case: Case) -> float:
    """Return the seconds of a training by torchrun with one process, from its start."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m", "translume", "train"]
    begun = time.perf_counter()
    toml, out = case.write(case.tables), str(case.folder())
    done = subprocess.run(
        [sys.executable, *words, toml, "--out", out, "--device", case.device],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
    return time.perf_counter() - begun


HEADS = ("projected", "adaptive", "hierarchical", "sampled", "mixture", "copy", "shortlist", "sigmoid", "entmax")
FEATURES: dict[str, Callable[[Case], float]] = {
    "validation": validated,
    "evaluate": evaluated,
    "score": scored,
    "inspect": inspected,
    "serve": served,
    **{f"head {kind}": partial(trained, changes={"model.head": {"kind": kind}}) for kind in ("softmax", *HEADS)},
    "R-Drop": partial(trained, changes={"training.r_drop": 1.0}),
    "Muon": partial(trained, changes={"training.optimizer": "muon"}),
    "teacher": lambda case: trained(case, {"training.teacher": case.model}),
    "LoRA": lambda case: trained(case, {"training.lora_rank": 8}, source=case.model),
    "distil": distilled,
    "backtranslate": backtranslated,
    "language model": modelled,
    "classification": classified,
    "audio": heard,
    "image": seen,
    "imported model": imported,
    "torchrun": torchrun,
}
"""What is run, by name: a function that returns seconds."""
ONLY_HERE = frozenset({"serve", "torchrun", "distil", "backtranslate"})
"""Features whose time is mostly that of starting: they are not compared with the CPU."""


def features(case: Case, names: Sequence[str]) -> Iterator[tuple[str, float, str]]:
    """Yield the name of each feature, its seconds, and the error if it failed. Ends where CUDA fails for good."""
    for name in names:
        home = tempfile.mkdtemp(dir=case.home)
        try:
            found = FEATURES[name](replace(case, home=home)), ""
        except Exception as error:  # each is only reported
            found = 0.0, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        yield name, *found
        shutil.rmtree(home, ignore_errors=True)
        gc.collect()
        synchronize(torch.device(case.device))
        release(torch.device(case.device))
