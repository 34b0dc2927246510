"""Damage every kind of file that Translume writes and reads back, and look for other numbers without a word.

Of each file, one bit is flipped in each block of 1 MiB, at each byte of a file of less than 2 kB, and at drawn places
of others; it is cut off at each block and at drawn places; it is emptied, and filled with zeros. After each damage the
file is read as Translume reads it. The outcomes: "named", an error or a warning in one line with the name of the file;
"rebuilt", what it held was computed again, the same; "same", the same numbers, as of a byte that means nothing;
"other", other numbers silently. That is a fault, as is a traceback, and a line without the name of the file.

Not damaged are files that users write or edit, which are input: settings, glossaries and text given by path, model
cards; and what Translume writes for others: exports, translations, tables and pages.

    python benchmarks/damage.py [--flips 200] [--seed 1] [--only KIND] [--cost] [--json]

--cost measures instead what the checks cost: processor time with and without them, in turns, medians of five.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import logging
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from translume import atomic, checksums
from translume.checkpoint import Manifest, append_history, folder, load_checkpoint, read_history, store_temperature
from translume.checkpoint import loading as loading_of_models
from translume.checkpoint.history import data_of_history, score_lines
from translume.checkpoint.loading import Temperature, load_any
from translume.checksums import BLOCK
from translume.cli import synthetic
from translume.config import Config, DataSettings
from translume.config.tokenizer import TokenizerSettings
from translume.data import token_cache
from translume.data.corpus import TokenizedCorpus
from translume.data.pairs import origins
from translume.data.token_cache import prepare
from translume.errors import TranslumeError
from translume.experiments import sweep
from translume.experiments.processes import Run
from translume.kernels import building, cpu, loading
from translume.serving.access.keys import Keys, add_key
from translume.serving.access.quotas import open_counts, used_of
from translume.serving.api.deepl import Glossaries, Glossary
from translume.serving.api.errors import RequestError
from translume.serving.files.jobs import Job, Jobs
from translume.text import Tokenizer, train_tokenizer
from translume.training import resume, tracking, train
from translume.training.resume import Store
from translume.translator import Translator

Say = Callable[[str], object]
OUTCOMES = ("named", "rebuilt", "same", "other")
FAULTS = ("other", "traceback", "unnamed")


class RebuiltError(Exception):
    """What the file held is computed again."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of file in a folder of its own.

    files: paths in `home`, or patterns.  check: read them as Translume does, and return the numbers; it is called with
    what takes lines for the user.  restore: whether the check changes the folder.  slow: only as many flips, for checks
    that take seconds.
    """

    kind: str
    home: Path
    files: Sequence[str]
    check: Callable[[Say], Any]
    restore: bool = False
    slow: int = 0


@dataclass(kw_only=True)
class Found:
    """The outcomes of a kind of file, and a line for each fault."""

    files: int = 0
    blocks: int = 0
    flips: int = 0
    cuts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def flips(size: int, most: int, slow: int, draw: random.Random) -> list[int]:
    """Return numbers of bits to flip: one in each block, and further ones of a file of one block."""
    begins = range(0, size, BLOCK)
    found = [draw.randrange(8 * begin, 8 * min(begin + BLOCK, size)) for begin in begins]
    if len(begins) > 1 or slow:
        return found + [draw.randrange(8 * size) for _ in range(min(most, slow or most) - len(found)) if size]
    if size <= 2048 and most >= 200:
        return [8 * place + draw.randrange(8) for place in range(size)]
    return [draw.randrange(8 * size) for _ in range(most if size else 0)]


def damages(content: bytes, most: int, slow: int, draw: random.Random, *, lines: bool) -> Iterator[tuple[str, bytes]]:
    """Yield damaged contents of a file, each with what was done.

    lines: whether lines are appended to it. Cut off between two, it is what it was at an earlier time, so it is not.
    """
    for bit in flips(len(content), most, slow, draw):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield f"flip of bit {bit}", bytes(damaged)
    some = [draw.randrange(len(content)) for _ in range(min(10, slow or 10, most)) if content]
    for length in sorted({*range(0, len(content), BLOCK), *some, max(0, len(content) - 1)}):
        if not (lines and content[:length].endswith(b"\n")):
            yield f"cut to {length}", content[:length]
    yield "zeros", bytes(len(content))


class Said(logging.Handler):
    """Keeps the warnings that a user would read."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        self.lines.append(" ".join([record.getMessage(), *map(str, fields.values())]))


def outcome(case: Case, expected: Any, names: Sequence[str]) -> tuple[str, str]:
    """Return the outcome of a check, and what was said or found.  names: of which a line must contain one."""
    said = Said()
    loggers = [*map(logging.getLogger, ("translume", "translume.serving"))]  # a server's log does not propagate
    for logger in loggers:
        logger.addHandler(said)
    rebuilt = False
    found: Any = None
    try:
        found = case.check(said.lines.append)
    except (TranslumeError, RequestError) as error:
        said.lines.append(str(error))
    except RebuiltError:
        rebuilt, found = True, expected
    except Exception as error:  # users must never see another one
        return "traceback", f"{type(error).__name__}: {error}"
    finally:
        for logger in loggers:
            logger.removeHandler(said)
    if found == expected:
        return ("rebuilt" if rebuilt or said.lines else "same"), ""
    if not said.lines:
        return "other", str(found)[:200]
    line = next((line for line in said.lines if any(name in line for name in names)), "")
    return ("named", line) if line and "\n" not in line else ("unnamed", str(said.lines))


def write_back(home: Path, snapshot: Path) -> None:
    """Make a folder what its snapshot is."""
    shutil.rmtree(home)
    shutil.copytree(snapshot, home)


def examine(case: Case, most: int, seed: int) -> Found:
    """Damage the files of a case one at a time, and return what happened."""
    found, draw = Found(), random.Random(f"{seed} {case.kind}")
    paths = sorted({path for name in case.files for path in case.home.glob(name) if path.is_file()})
    with tempfile.TemporaryDirectory() as name:
        snapshot = Path(name) / "snapshot"
        shutil.copytree(case.home, snapshot)
        expected = case.check(lambda line: None)
        for path in paths:
            if case.restore:
                write_back(case.home, snapshot)
            content, mode = path.read_bytes(), path.stat().st_mode
            found.files += 1
            found.blocks += -(-len(content) // BLOCK)
            for what, damaged in damages(content, most, case.slow, draw, lines=path.suffix == ".jsonl"):
                path.write_bytes(damaged)
                path.chmod(mode)
                names = (path.name, path.name.rpartition("-")[0] or path.name, str(path.parent))
                kind, line = outcome(case, expected, names)
                found.flips += what.startswith("flip")
                found.cuts += not what.startswith("flip")
                found.outcomes[kind] += 1
                if kind in FAULTS:
                    found.faults.append(f"{kind}: {path.relative_to(case.home)}: {what}: {line}")
                if case.restore:
                    write_back(case.home, snapshot)
                else:
                    path.write_bytes(content)
                    path.chmod(mode)
    return found


# The kinds of files


def write_pairs(home: Path, count: int, name: str = "train", seed: int = 3) -> None:
    """Write sentences over a vocabulary of sixteen words, and the same sentences reversed."""
    draw = random.Random(seed)
    words = [f"word{number}" for number in range(16)]
    lines = [[draw.choice(words) for _ in range(draw.randint(1, 12))] for _ in range(count)]
    (home / f"{name}.source").write_text("".join(" ".join(line) + "\n" for line in lines))
    (home / f"{name}.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))


def data_of(home: Path) -> dict[str, Any]:
    return {f"train_{side}": str(home / f"train.{side}") for side in ("source", "target")}


def config_of(home: Path, width: int = 12, **training: Any) -> Config:
    """Return the settings of a small model."""
    return Config.build(
        {
            "data": data_of(home),
            "tokenizer": {"size": 300},
            "model": {
                "width": width, "feed_forward": 23, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2,
            },
            "training": {
                "updates": 8, "max_tokens": 200, "warmup_updates": 2, "validate_every": 4, "save_every": 4,
                "average_last": 2, "keep": 2, "ema": 0.9, "precision": "fp32", "log_every": 2, **training,
            },
            "decoding": {"terminology": str(home / "terms.tsv"), "beam": 2, "max_length_extra": 3},
        }
    )  # fmt: skip


def trained(home: Path, width: int) -> Config:
    """Train a model in `home`/model and return its settings."""
    write_pairs(home, 60)
    (home / "terms.tsv").write_text("word1\tword2\n")
    config = config_of(home, width)
    for _ in train(config, home / "model"):
        pass
    return config


def tensors_of(network: torch.nn.Module) -> str:
    """Return a digest of the tensors of a network."""
    found = hashlib.sha256()
    for name, value in network.state_dict().items():
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def model_files(home: Path, *, width: int, slow: int = 0) -> Case:
    """A translator with lengths, a temperature and a file of terms: loaded, it translates a line."""
    trained(home, width)
    model = home / "model"
    digest = load_checkpoint(model).digest
    store_temperature(model, Temperature(value=1.5, tokens=9, nll_before=2.0, nll=1.0), digest)
    names = Manifest.read(model).files
    files = ["manifest.json", *(entry.file for name, entry in names.items() if not name.startswith(folder.RESUME))]

    def check(say: Say) -> Any:
        translator = Translator.load(model)
        loaded = translator.checkpoint
        best = translator.translate("word1 word2").hypotheses[0]
        others = loaded.temperature, loaded.lengths, loaded.config, loaded.target_tokenizer.digest
        return best.text, best.score, others, tensors_of(loaded.model)

    return Case(kind="model", home=model, files=files, check=check, slow=slow)


def classifier_files(home: Path) -> Case:
    """A classifier, whose labels are a file."""
    draw = random.Random(5)
    rows = [(draw.choice("ab"), " ".join(draw.choices("xyz", k=3))) for _ in range(40)]
    (home / "train.tsv").write_text("".join(f"{text}\t{label}\n" for label, text in rows))
    model = {"width": 12, "feed_forward": 23, "encoder_layers": 1, "attention_heads": 2, "head": {"kind": "classify"}}
    data = {"task": "classification", "train": str(home / "train.tsv"), "columns": [0, 1]}
    training = {"updates": 2, "max_tokens": 100, "warmup_updates": 1, "precision": "fp32"}
    tables = {"data": data, "tokenizer": {"kind": "word", "size": 61, "unknown": "token"}, "model": model}
    for _ in train(Config.build({**tables, "training": training}), home / "model"):
        pass

    def check(say: Say) -> Any:
        loaded = load_any(home / "model")
        return loaded.labels.digest, tensors_of(loaded.model)

    return Case(kind="labels", home=home / "model", files=["labels-*.json"], check=check)


def resume_files(home: Path, *, width: int, slow: int) -> Case:
    """The state of a run, its optimizer, moving average, and weights for averaging, as they are read to resume it."""
    trained(home, width)

    def check(say: Say) -> Any:
        store = Store(home / "model")
        names = sorted(name for name in Manifest.read(home / "model").files if name.startswith(folder.RESUME))
        tensors = [store.tensors(name) for name in names if name.endswith(".safetensors")]
        plain = [{name: value.numpy().tobytes() for name, value in each.items()} for each in tensors]
        return store.state(), plain

    return Case(kind="resume state", home=home / "model", files=["resume/*"], check=check, slow=slow)


def resumed_run(home: Path) -> Case:
    """The same files and the log: the run is resumed for four more updates."""
    config = trained(home, 12)
    more = config.model_copy(update={"training": config.training.model_copy(update={"updates": 12})})

    def check(say: Say) -> Any:
        for event in train(more, home / "model"):
            if type(event).__name__ == "Warned":
                say(str(event))
        log = [each for each in read_history(home / "model") if each["event"] == "validated"]
        shown = [(each["update"], each["nll"]) for each in log]
        return Manifest.read(home / "model").files["weights.safetensors"].sha256, shown

    return Case(
        kind="resumed run", home=home / "model", files=["resume/*", "history.jsonl"], check=check, restore=True, slow=3
    )


def history_file(home: Path) -> Case:
    """The log of a model, from which its scores and its data are shown."""
    append_history(home, {"event": "started", "training": {"read": 60, "used": 59}, "files": [{"digest": "0" * 32}]})
    for update in range(12):
        append_history(home, {"event": "validated", "update": update, "nll": 3.0 / (update + 1)})
    score = {"title": "BLEU", "signature": "nrefs:1", "value": 31.25, "digits": 2}
    append_history(home, {"event": "evaluated", "source": "ü.en", "reference": "ü.de", "scores": [score]})

    names = {"event", "training", "files", "update", "nll", "source", "reference", "scores"}

    def check(say: Say) -> Any:
        history = [{name: each[name] for name in names & each.keys()} for each in read_history(home)]
        return history, score_lines(history), data_of_history(history)

    return Case(kind="history", home=home, files=["history.jsonl"], check=check)


def numbers_of(corpus: TokenizedCorpus) -> Any:
    """Return all that training reads of a corpus."""
    digest = hashlib.sha256()
    for begin in range(0, corpus.pairs, 10_000):
        for side in corpus.sides(np.arange(begin, min(begin + 10_000, corpus.pairs))):
            places = np.repeat(side.starts - side.lengths.cumsum() + side.lengths, side.lengths)
            digest.update(side.lengths.tobytes())
            digest.update(np.ascontiguousarray(side.tokens[np.arange(len(places)) + places]).tobytes())
    lines = hashlib.sha256(corpus.line_numbers.tobytes()).hexdigest()
    return corpus.pairs, corpus.first, corpus.account, digest.hexdigest(), lines


def cache_files(home: Path, *, count: int, slow: int = 0) -> Case:
    """A token cache, whose pairs are all read."""
    (home / "cache").mkdir()
    write_pairs(home, count)
    tokenizer = train_tokenizer(TokenizerSettings(size=400), ["word1 word2"])
    data = DataSettings(**data_of(home))

    def check(say: Say) -> Any:
        both = [
            prepare(data, tokenizer, tokenizer, home / "cache", split=split, note=say, processes=1)
            for split in ("train", "valid")
        ]
        return [numbers_of(each) for each in both]

    check(print)
    return Case(kind="token cache", home=home / "cache", files=["*", "*/*"], check=check, restore=True, slow=slow)


def frame_cache_files(home: Path) -> Case:
    """A token cache whose sources are frames."""
    (home / "cache").mkdir()
    draw = np.random.default_rng(7)
    for number in range(40):
        np.save(home / f"{number}.npy", draw.normal(size=(int(draw.integers(9, 30)), 5)).astype(np.float32))
    (home / "train.tsv").write_text("".join(f"{number}.npy\tword{number % 7}\n" for number in range(40)))
    source = {"kind": "features", "values": 5, "channels": 13}
    data = DataSettings.model_validate({"train": str(home / "train.tsv"), "source": source})
    tokenizer = train_tokenizer(TokenizerSettings(size=400), ["word1 word2"])

    def check(say: Say) -> Any:
        corpus = prepare(data, tokenizer, tokenizer, home / "cache", split="train", note=say, processes=1)
        return numbers_of(corpus)

    check(print)
    return Case(kind="cache of frames", home=home / "cache", files=["*", "*/*"], check=check, restore=True, slow=10)


class Killed(BaseException):
    """A build ends here."""


def partial_cache_files(home: Path) -> Case:
    """A token cache whose build was killed, which the next command continues."""
    (home / "cache").mkdir()
    write_pairs(home, 300)
    tokenizer = train_tokenizer(TokenizerSettings(size=400), ["word1 word2"])
    data = DataSettings(**data_of(home))
    append, numbers = token_cache.Builder._append, itertools.count()

    def until(*given: Any) -> None:
        if next(numbers) == 3:
            raise Killed
        append(*given)

    def check(say: Say) -> Any:
        with patch.object(token_cache, "_CHUNK", 50):
            for _ in range(2):
                try:
                    return numbers_of(prepare(data, tokenizer, tokenizer, home / "cache", split="train", processes=1))
                except TranslumeError as error:  # "the same command prepares the data again"
                    say(str(error))
            raise RebuiltError

    with (
        patch.object(token_cache, "_CHUNK", 50),
        patch.object(token_cache, "SAVE_SECONDS", 0.0),
        patch.object(token_cache.Builder, "_append", until),
        contextlib.suppress(Killed),
    ):
        prepare(data, tokenizer, tokenizer, home / "cache", split="train", processes=1)
    return Case(
        kind="unfinished cache", home=home / "cache", files=[".partial-*/*", "*.json"], check=check, restore=True,
        slow=30,
    )  # fmt: skip


def tokenizer_file(home: Path, *, kind: Any) -> Case:
    """A tokenizer that was saved by itself."""
    texts = ["the old village by the river", "größer naïve bridges"] * 3
    train_tokenizer(TokenizerSettings(kind=kind, size=330), texts).save(home / "tokenizer.json")

    def check(say: Say) -> Any:
        tokenizer = Tokenizer.load(home / "tokenizer.json")
        return tokenizer.digest, tokenizer.encode("the größer river")

    return Case(kind="tokenizer", home=home, files=["tokenizer.json"], check=check)


def keys_file(home: Path) -> Case:
    """The keys of a server."""
    for name, limits in (("alice", {}), ("bob", {"requests_per_minute": 35, "characters_per_day": 1000})):
        add_key(home / "keys.json", name, limits)
    return Case(kind="keys", home=home, files=["keys.json"], check=lambda say: [*Keys.read(home / "keys.json").all])


def usage_file(home: Path) -> Case:
    """What keys have used."""
    keys = []
    for name in ("alice", "bob"):
        add_key(home / "keys.json", name, {})
        keys = [*Keys.read(home / "keys.json").all]
    place = home / "keys.usage"
    counts: Any = open_counts(str(place))
    for number, key in enumerate(keys, 1):
        counts.incr(f"{key.id}/requests", 600, number)
        counts.incr(f"{key.id}/characters", 86_400, 1000 * number)
    counts._base.close()

    def check(say: Say) -> Any:
        opened: Any = open_counts(str(place))
        try:
            return [used_of(opened, key) for key in keys]
        except sqlite3.Error:
            say(f"{place}: the usage of keys cannot be counted now; try later")  # as `_counted` answers, with 503
            return None
        finally:
            opened._base.close()

    return Case(kind="usage of keys", home=home, files=["keys.usage*"], check=check, restore=True, slow=400)


def glossary_files(home: Path) -> Case:
    """A glossary that the processes of a server share."""
    glossaries = Glossaries(SimpleNamespace(folder=home))  # type: ignore[arg-type]  # what is read of a server
    facts = {"name": "g", "client": "key 1", "source_lang": "en", "target_lang": "de", "creation_time": "2026"}
    terms = [("village", "Dorf"), ("größer", "larger")]
    glossaries.add(Glossary(glossary_id="a" * 32, terms=terms, **facts))
    return Case(
        kind="glossaries", home=home, files=["glossaries/*"], restore=True, slow=400,
        check=lambda say: glossaries.find("a" * 32, "key 1"),
    )  # fmt: skip


def job_files(home: Path) -> Case:
    """A translated file and its status."""
    limits = SimpleNamespace(kept_bytes=10_000)
    jobs = Jobs(SimpleNamespace(folder=home, limits=limits), None)  # type: ignore[arg-type]  # what is read of a server
    job = Job(id="b" * 32, name="a_de.txt", suffix=".txt", client="c", until=time.time() + 86_400, done=3, sentences=3)
    (home / job.id).mkdir()
    jobs._store(job, "größer\n".encode() * 20)
    job.status = "done"
    jobs._write(job)

    def check(say: Say) -> Any:
        found = jobs.find(job.id)
        return found, jobs.result(found)[0].read_bytes()

    return Case(kind="files of a server", home=home, files=["*/*"], check=check)


def kernels_file(home: Path) -> Case | None:
    """The compiled kernels, which are loaded if they are intact, and else compiled again."""
    command, instructions = building.compiler(), cpu.chosen_instructions()
    if command is None:
        return None
    loading.load_once()
    name = f"kernels-{instructions.name}-{loading._digest(command, instructions)}-*.so"
    compiled_here = [*(cpu.cache_folder() / "native").glob(name)]
    if not compiled_here:
        return None
    (home / "native").mkdir(mode=0o700)
    path = Path(shutil.copy(compiled_here[0], home / "native"))
    content = path.read_bytes()

    def compiled(*given: Any) -> None:
        raise RebuiltError

    def load(name: str, *rest: Any) -> Any:
        return Path(name).read_bytes() == content  # what is loaded

    def check(say: Say) -> Any:
        cache = patch.dict(os.environ, TRANSLUME_CACHE=str(home))
        with cache, patch.object(loading, "_compile", compiled), patch.object(loading, "_load", load):
            return loading._compiled(command, instructions)

    return Case(kind="compiled kernels", home=home / "native", files=["*.so"], check=check, restore=True)


def measured_file(home: Path) -> Case:
    """The measures of a run of a sweep."""
    run = Run(peak_bytes=1000, key="k")
    atomic.write_file(home / sweep.MEASURED, checksums.sealed(run.to_dict()).encode())

    def check(say: Say) -> Any:
        found = sweep.read_run(home)
        if found == Run():
            raise RebuiltError
        return found

    return Case(kind="measured runs", home=home, files=["measured.json"], check=check)


def tracking_file(home: Path) -> Case:
    """The ids of a run in services for curves."""
    tracking._remember(home, {"wandb": "1a2b3c", "mlflow": "f00"})
    return Case(kind="ids of trackers", home=home, files=["tracking.json"], check=lambda say: tracking._ids(home))


def teacher_file(home: Path) -> Case:
    """What translations by a teacher were made from."""
    config = trained(home, 12)
    made = home / "made"
    made.mkdir()
    places = origins(config.data, "train")

    def check(say: Say) -> Any:
        synthetic._refuse_other(made, home / "model", config.decoding, places)
        return True

    check(print)
    return Case(kind="made_from.json", home=made, files=["*.json"], check=check, slow=400, restore=True)


# The cost of the checks


class Cheap:
    """Stands in for a hash, whose value is another each time, and takes no time."""

    numbers = itertools.count()

    def __init__(self, content: bytes = b"") -> None:
        self._number = next(self.numbers)

    def hexdigest(self) -> str:
        return f"{self._number:016x}{0:048x}"


def without_checks() -> contextlib.ExitStack:
    """Return a context in which nothing is checked, and no checksum is computed."""
    off = contextlib.ExitStack()
    off.enter_context(patch.object(checksums, "zlib", SimpleNamespace(crc32=lambda content, before=0: 0)))
    off.enter_context(patch.object(checksums.CheckedArray, "check", lambda array, begins, ends: None))
    off.enter_context(patch.object(checksums, "_digest", lambda values: "0" * 64))
    off.enter_context(patch.object(folder, "hashlib", SimpleNamespace(sha256=Cheap)))
    off.enter_context(patch.object(atomic, "digest", lambda path: Cheap().hexdigest()))
    for module in (folder, resume, loading_of_models):
        off.enter_context(patch.object(module, "verified", folder.committed))
    return off


def costs(work: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Return the medians of the times of `work` with the checks and without them, which take turns."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * rounds + 2):
        checks = bool((number + number // 2) % 2)  # which is first, changes as well
        with contextlib.ExitStack() if checks else without_checks():
            seconds = work()
        if number > 1:
            times[checks].append(seconds)
    return statistics.median(times[True]), statistics.median(times[False])


def cost_of_preparation(home: Path, lines: int) -> Callable[[], float]:
    """Return what prepares a corpus, reads all of it twice, and returns the processor time in seconds."""
    write_pairs(home, lines)
    tokenizer = train_tokenizer(TokenizerSettings(size=400), (home / "train.source").read_text().splitlines()[:200])
    data = DataSettings.model_validate(data_of(home))

    def work() -> float:
        shutil.rmtree(home / "cache", ignore_errors=True)
        begun = time.process_time()
        for _ in range(2):
            corpus = prepare(data, tokenizer, tokenizer, home / "cache", split="train", processes=1)
            for begin in range(0, corpus.pairs, 100):
                corpus.sides(np.arange(begin, min(begin + 100, corpus.pairs)))
        return time.process_time() - begun

    return work


def cost_of_training(home: Path, updates: int) -> Callable[[], float]:
    """Return what trains, saves four times and loads a small model, and returns the processor time in seconds."""
    write_pairs(home, 3000)
    values = config_of(home, 128).model_dump(mode="json", exclude={"decoding"})
    values["model"] |= {"feed_forward": 512, "encoder_layers": 2, "decoder_layers": 2, "attention_heads": 4}
    values["training"] |= {"updates": updates, "max_tokens": 2000, "save_every": updates // 4, "log_every": 1}
    values["training"] |= {"validate_every": updates}
    config = Config.build(values)

    def work() -> float:
        shutil.rmtree(home / "model", ignore_errors=True)
        begun = time.process_time()
        for _ in train(config, home / "model"):
            pass
        return time.process_time() - begun

    return work


def print_costs(rounds: int, short: bool) -> None:
    """Measure and print what the checks cost."""
    lines, updates = (5_000, 8) if short else (100_000, 60)
    works: dict[str, Callable[[Path], Any]] = {
        f"preparing and reading {lines:,} pairs": lambda home: cost_of_preparation(home, lines),
        f"training for {updates} updates": lambda home: cost_of_training(home, updates),
    }
    for name, make in works.items():
        with tempfile.TemporaryDirectory() as place, patch.object(os, "fsync", lambda file: None):
            checked, plain = costs(make(Path(place).resolve()), rounds)
        print(f"{name}: {checked:.3f} s with checks, {plain:.3f} s without: {checked / plain - 1:+.2%}", flush=True)


MAKERS: dict[str, Callable[[Path], Case | None]] = {
    "model": lambda home: model_files(home, width=12, slow=60),
    "model of several blocks": lambda home: model_files(home, width=500, slow=20),
    "labels": classifier_files,
    "resume state": lambda home: resume_files(home, width=12, slow=60),
    "resume state of several blocks": lambda home: resume_files(home, width=500, slow=20),
    "resumed run": resumed_run,
    "history": history_file,
    "token cache": lambda home: cache_files(home, count=400, slow=40),
    "token cache of several blocks": lambda home: cache_files(home, count=40_000, slow=1),
    "cache of frames": frame_cache_files,
    "unfinished cache": partial_cache_files,
    "tokenizer, bpe": lambda home: tokenizer_file(home, kind="bpe"),
    "tokenizer, unigram": lambda home: tokenizer_file(home, kind="unigram"),
    "keys": keys_file,
    "usage of keys": usage_file,
    "glossaries": glossary_files,
    "files of a server": job_files,
    "compiled kernels": kernels_file,
    "measured runs": measured_file,
    "ids of trackers": tracking_file,
    "made_from.json": teacher_file,
}


def examined(kind: str, most: int, seed: int) -> Found | None:
    """Make files of a kind, and damage them; None if they cannot be made here."""
    with tempfile.TemporaryDirectory() as name, patch.object(os, "fsync", lambda file: None):
        case = MAKERS[kind](Path(name).resolve())
        return None if case is None else examine(case, most, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=20 if os.environ.get("TRANSLUME_SHORT") else 200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(MAKERS), action="append")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="of --cost")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loading.load_once()  # before digests are replaced, which name compiled kernels
    logging.getLogger("translume").propagate = False
    if options.cost:
        print_costs(options.rounds, bool(os.environ.get("TRANSLUME_SHORT")))
        return
    faults: list[str] = []
    rows: dict[str, Any] = {}
    if not options.json:
        print(f"{'':31s}{'files':>6s}{'blocks':>7s}{'flips':>7s}{'cuts':>6s}", end="")
        print("".join(f"{name:>9s}" for name in (*OUTCOMES, "traceback", "unnamed")) + "   seconds")
    for kind in options.only or MAKERS:
        begun = time.process_time()
        found = examined(kind, options.flips, options.seed)
        if found is None:
            continue
        faults += [f"{kind}: {fault}" for fault in found.faults]
        counts = {name: found.outcomes[name] for name in (*OUTCOMES, "traceback", "unnamed")}
        rows[kind] = {"files": found.files, "blocks": found.blocks, "flips": found.flips, "cuts": found.cuts, **counts}
        if not options.json:
            numbers = f"{found.files:6,}{found.blocks:7,}{found.flips:7,}{found.cuts:6,}"
            counted = "".join(f"{count:9,}" for count in counts.values())
            print(f"{kind:31s}{numbers}{counted}{time.process_time() - begun:10.1f}", flush=True)
    if options.json:
        print(json.dumps({"seed": options.seed, "kinds": rows, "faults": faults}))
    else:
        total = {name: sum(row[name] for row in rows.values()) for name in next(iter(rows.values()))}
        print("in all: " + ", ".join(f"{count:,} {name}" for name, count in total.items()))
        for fault in faults[:100]:
            print(f"seed {options.seed}: {fault}", file=sys.stderr)
    if faults:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
