"""Measure training and decoding on a GPU: ours, transformers, a plain compiled loop and CTranslate2, in turns.

    python benchmarks/gpu.py [--only ROW ...] [--short] [--data DIR] [--wheels DIR] [--out build/gpu.jsonl]
    python benchmarks/gpu.py --device cpu --short       # everything at toy sizes, on any machine
    python benchmarks/gpu.py --count                    # what a GPU would do, counted on a CPU, as one JSON line

The rows come in the order of their importance and end after nine minutes, with --short after two: what is left is
skipped, with the reason. Each row is printed and appended to the file of --out when it is done. A row that fails prints
its error, and the others go on: everything that computes is in a process of its own.

base-32k, big-32k, tiny: 24 batches of mixed lengths, divided into at most 16 shapes as `translume train` does on a GPU.
    The peers get the same padded batches and meet every shape before they are timed. Before that, the losses of three
    updates of ours and of transformers with the same weights must agree to 1e-3 nats in fp32. `plain` is a padded loop
    in plain PyTorch without positions, compiled as a whole; `plain, unmasked` reads padding as tokens. Target tokens/s
    are labels without padding. `busy` is the time in which a kernel runs, by that of the same updates without profiler.
train: `translume train` of a base model on Multi30k, and what --dry-run predicts. Without the data: synthetic pairs.
decode: the model of `train`, or a random one, whose targets all end at a limit; 1,000 lines, and one at a time.
resume: training is killed with SIGKILL and resumed; the weights must have the bits of an uninterrupted run.
everything: the other features, once each, and for most of them the time on the CPU.

The data are those of --data, TRANSLUME_DATA or ../shared/data. --wheels names a folder of wheels, or of unpacked ones,
of packages that are not installed. The output of the processes is beside --out, in a .log.
"""

import argparse
import atexit
import hashlib
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[1]
MINUTES, SHORT_MINUTES, TOY_MINUTES = 9.0, 2.0, 5.0
RESERVE = 10.0
"""Seconds before the end at which the last row must be done."""
ROUNDS, ROUND_SECONDS = 5, 20.0
SETUP_SECONDS = 150.0
"""How long contestants may prepare and compile."""
MAX_DIFFERENCE = 1e-3
"""Of the losses of ours and of transformers, in nats."""
NEEDED = ("pydantic", "pydantic_core", "annotated_types", "typing_inspection", "zstandard", "tokenizers", "safetensors")
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With this variable torch looks for CUDA without starting it, so that processes can be forked."""


class RowError(Exception):
    """A measurement cannot be made; the message is one line."""


# ---- processes


class Worker:
    """A function that yields, in a process of its own. Each request gets what it yields next."""

    method = "fork"
    log = Path(os.devnull)
    alive: ClassVar[list["Worker"]] = []

    def __init__(self, function: Callable[..., Iterator[Any]], *arguments: Any) -> None:
        context: Any = multiprocessing.get_context(Worker.method)
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, str(Worker.log), function, arguments))
        self.process.start()
        theirs.close()
        Worker.alive.append(self)

    def begin(self, request: Any = None) -> None:
        """Send a request: what `send` of a generator is given. The first one is None."""
        self._pipe.send(request)

    def answer(self, seconds: float) -> Any:
        """Return the answer to the last request; None at the end. Raises RowError if it fails or takes `seconds`."""
        if not self._pipe.poll(max(0.0, seconds)):
            self.kill()
            raise RowError(f"no answer in {seconds:.0f} s")
        try:
            failed, value = self._pipe.recv()
        except EOFError:
            self.process.join()
            raise RowError(f"the process ended with exit code {self.process.exitcode}") from None
        if failed:
            raise RowError(value)
        return value

    def ask(self, request: Any = None, *, seconds: float) -> Any:
        """Send a request and return its answer."""
        self.begin(request)
        return self.answer(seconds)

    def kill(self) -> None:
        """End the process, and those that it has started, with SIGKILL."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        Worker.alive = [each for each in Worker.alive if each is not self]


def serve(pipe: Any, log: str, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Answer requests in a process of its own until there are no more results, or the process that asks is gone."""
    os.setsid()
    os.environ.pop(NVML, None)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    parent, results = os.getppid(), function(*arguments)
    while True:
        while not pipe.poll(1.0):
            if os.getppid() != parent:
                os._exit(1)
        try:
            request = pipe.recv()
            answer = False, (next(results) if request is None else results.send(request))
        except StopIteration:
            answer = False, None
        except BaseException as error:
            traceback.print_exc()
            answer = True, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        pipe.send(answer)
        if answer[0] or answer[1] is None:
            return


@contextmanager
def workers() -> Iterator[None]:
    """End all processes when the block ends."""
    try:
        yield
    finally:
        for worker in list(Worker.alive):
            worker.kill()


def use_wheels(folder: Path) -> list[str]:
    """Return folders for the path: the wheels in `folder` that fit this Python, unpacked, and unpacked packages."""
    if not folder.is_dir():
        raise SystemExit(f"--wheels: found {folder}, expected a folder")
    unpacked = tempfile.mkdtemp(prefix="wheels-")
    atexit.register(shutil.rmtree, unpacked, ignore_errors=True)
    versions = {"py3", f"py3{sys.version_info.minor}", f"cp3{sys.version_info.minor}"}
    for wheel in sorted(folder.glob("*.whl")):
        python, abi, system = wheel.stem.split("-")[-3:]
        fits = versions & {*python.split(".")} or (abi == "abi3" and python.startswith("cp3"))
        if fits and (system == "any" or ("linux" in system and platform.machine() in system)):
            zipfile.ZipFile(wheel).extractall(unpacked)
    others = [each for each in folder.iterdir() if each.is_dir() and not (each / "__init__.py").exists()]
    return [unpacked, str(folder), *map(str, others)]


# ---- the report


@dataclass
class Bench:
    """What the rows share.  end: when they must be done.  home: a folder for everything that is written.

    facts: of the device; see `card`.  model: the trained model, once there is one.  failed: number of rows.
    """

    options: argparse.Namespace
    home: Path
    end: float
    facts: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    failed: int = 0

    @property
    def device(self) -> str:
        return str(self.facts["device"])

    @property
    def toy(self) -> bool:
        """Whether sizes are tiny: on a CPU."""
        return self.device == "cpu"

    @property
    def is_h100(self) -> bool:
        """Whether aims in tokens and lines a second hold; on another card those of ratios do."""
        return "H100" in self.facts["card"]

    @property
    def left(self) -> float:
        """Seconds until the rows must be done."""
        return self.end - time.monotonic()

    def first(self, function: Callable[..., Iterator[Any]], *arguments: Any) -> Any:
        """Return what a function yields first, in a process of its own. Raises RowError."""
        worker = Worker(function, *arguments)
        found = worker.ask(seconds=self.left)
        worker.kill()
        return found

    def report(self, row: str, text: str, *, aim: str = "", met: bool | None = None, **figures: Any) -> None:
        """Print a row and append it to the file.  met: whether the aim is reached; None: not known here."""
        met = None if self.toy else met
        verdict = {None: "", True: ", met", False: ", MISSED"}[met]
        print(f"{row}: {text}" + (f" [aim: {aim}{verdict}]" if aim else ""), flush=True)
        known = {name: self.facts.get(name) for name in ("card", "device", "torch", "cuda")}
        line = {"row": row, **known, "toy": self.toy, "aim": aim, "met": met, "text": text, **figures}
        with self.options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def skip(self, row: str, reason: str) -> None:
        self.report(row, f"skipped: {reason}", skipped=reason)


def spread(values: Sequence[float]) -> float:
    """Return the ratio of the largest to the smallest."""
    return max(values) / min(values)


def all_of(*reached: bool | None) -> bool | None:
    """Return whether all are reached: False if one is not, else None if one is not known."""
    return False if False in reached else None if None in reached else True


def listed(lost: dict[str, str]) -> str:
    """Return why contestants, or features, have no figures, as the end of a row."""
    return "".join(f"; {name}: {reason}" for name, reason in lost.items())


# ---- training in few shapes


def training_row(
    bench: Bench, name: str, tokens: int, mean: float, *, peers: Sequence[str], wanted: dict[str, float]
) -> None:
    """Report the speed of training a shape; see `Training`. Raises RowError if ours fails or differs.

    wanted: the aims for the ratios to peers.
    """
    from _gpu_training import Training, contestant, losses

    compiles = not bench.toy or bench.options.compile
    training = Training(name=name, tokens=tokens, mean=mean, device=bench.device, compiles=compiles, toy=bench.toy)
    check, facts, lost = Worker(losses, training), dict[str, dict[str, Any]](), dict[str, str]()
    players = {kind: Worker(contestant, kind, training) for kind in ("ours", *peers)}
    for worker in (check, *players.values()):  # they prepare and compile at the same time
        worker.begin()
    difference = check.answer(bench.left)
    check.kill()  # which gives its memory back
    if difference["fp32"] > MAX_DIFFERENCE:
        raise RowError(f"the losses of ours and of transformers differ by {difference['fp32']:.1e} nats in fp32")
    setup = time.monotonic() + min(SETUP_SECONDS, bench.left - 30)
    for kind in list(players):
        with forgiving(kind, players, lost):
            facts[kind] = players[kind].answer(setup - time.monotonic())
    rounds: dict[str, list[float]] = {kind: [] for kind in players}
    begun = time.monotonic()
    for number in range(2 if bench.toy else ROUNDS):
        if number and time.monotonic() - begun > min(ROUND_SECONDS, bench.left - RESERVE):
            break
        for kind in list(players):
            with forgiving(kind, players, lost):
                answer = players[kind].ask("pass", seconds=bench.left)
                rounds[kind].append(answer["seconds"])
                facts[kind] |= answer
    mine, rounds = facts["ours"], {kind: rounds[kind] for kind in players}
    rates = {kind: mine["tokens"] / statistics.median(found) for kind, found in rounds.items()}
    ratios = {
        kind: statistics.median(a / b for a, b in zip(found, rounds["ours"], strict=True))
        for kind, found in rounds.items() if kind != "ours"
    }  # fmt: skip
    shares = {kind: rate * mine["flops"] / mine["tokens"] / bench.facts["ceiling"] for kind, rate in rates.items()}
    padded = rates["ours"] * mine["padded_targets"] / mine["tokens"]
    aims = [f"≥ {least} × {kind}" for kind, least in wanted.items()]
    reached = [ratios[kind] >= least if kind in ratios else None for kind, least in wanted.items()]
    if name == "base-32k":
        aims.append("≥ 420,000 on an H100")
        reached.append(rates["ours"] >= 420_000 or not bench.is_h100)
    if name == "big-32k":
        aims.append("≥ 35 % of the product")
        reached.append(shares["ours"] >= 0.35)
    bench.report(
        name,
        f"{rates['ours']:,.0f} target tokens/s ({padded:,.0f} with padding), {shares['ours']:.1%} of the product of "
        f"{bench.facts['ceiling'] / 1e12:.3g} TFLOP/s"
        + "".join(f"; {kind} {rates[kind]:,.0f} ({ratios[kind]:.2f})" for kind in ratios) + listed(lost)
        + f"; {100 * mine['padding']:.1f} % padding in {len(mine['buckets'])} shapes; compiled beside the peers in "
        f"{mine['compile_seconds']:.0f} s; losses differ by "
        + ", ".join(f"{value:.1e} in {precision}" for precision, value in difference.items())
        + "".join(f"; WARNING {warning}" for warning in mine["warnings"]),
        aim=", ".join(aims), met=all_of(*reached), rates=rates, ratio=ratios, share=shares, padded_rate=padded,
        padding=mine["padding"], spread={kind: spread(found) for kind, found in rounds.items()}, rounds=rounds,
        losses=difference, lost=lost, facts=facts,
    )  # fmt: skip
    if "peak_mib" in mine:
        peaks = {kind: found["peak_mib"] for kind, found in facts.items()}
        bench.report(
            f"{name} memory",
            ", ".join(f"{kind} {each:,.0f} MiB" for kind, each in peaks.items())
            + f"; the allocator of ours kept {mine['peak_reserved_mib']:,.0f}",
            aim="≤ 8,000 MiB" if name == "base-32k" else "", met=peaks["ours"] <= 8000, peak_mib=peaks,
            reserved_mib=mine["peak_reserved_mib"],
        )  # fmt: skip
    if (other := "ours, not deterministic") in ratios:
        cost = 1 / ratios[other] - 1
        text = f"with deterministic kernels an update takes {cost:+.1%} of the time without"
        bench.report(f"{name} deterministic", text, aim="≤ 10 %", met=cost <= 0.1, cost=cost)
    if name == "base-32k":
        found = players["ours"].ask("profile", seconds=bench.left)
        counted = ("kernels", "launches", "graph_launches", "synchronisations", "items", "copies_to_host")
        bench.report(
            "GPU busy",
            f"a kernel runs in {found['busy']:.0%} of an update of {1e3 * found['update_seconds']:.1f} ms; "
            + ", ".join(f"{each.replace('_', ' ')} {found[each]:,.1f}" for each in counted),
            aim="≥ 90 %", met=found["busy"] >= 0.9, **found,
        )  # fmt: skip


@contextmanager
def forgiving(kind: str, players: dict[str, Worker], lost: dict[str, str]) -> Iterator[None]:
    """Go on without a contestant if it fails in the block, and say why in `lost`; an error of ours is raised."""
    try:
        yield
    except RowError as error:
        if kind == "ours":
            raise
        lost[kind] = str(error)
        players.pop(kind).kill()


def base_row(bench: Bench) -> None:
    peers = ["transformers", "plain"]
    if not bench.options.short:
        peers += ["plain, unmasked", "ours, not deterministic"]
    if bench.options.minutes > 1.5 * MINUTES:
        peers.append("transformers, compiled")
    training_row(bench, "base-32k", 25_000, 3.2, peers=peers, wanted={"plain": 0.68, "transformers": 2.0})


def big_row(bench: Bench) -> None:
    training_row(bench, "big-32k", 25_000, 3.2, peers=["plain"], wanted={"plain": 0.75})


def tiny_row(bench: Bench) -> None:
    training_row(bench, "tiny", 8192, 2.55, peers=["transformers"], wanted={"transformers": 3.0})


# ---- a whole training


def corpus(bench: Bench) -> dict[str, Path]:
    """Return the files "train.en", "valid.de", "test.en" and so on: Multi30k's, or synthetic ones of the same size."""
    given = Path(bench.options.data or os.environ.get("TRANSLUME_DATA") or ROOT.parent / "shared" / "data")
    names = {"train": "train.lc.norm.tok.*.gz", "valid": "val.lc.norm.tok.*", "test": "test_2016_flickr.lc.norm.tok.*"}
    keys = [(part, side) for part in names for side in ("en", "de")]
    for folder in (given / "multi30k" / "tok", given / "tok", given):
        files = {f"{part}.{side}": folder / names[part].replace("*", side) for part, side in keys}
        if not bench.toy and all(path.exists() for path in files.values()):
            return files
    folder = bench.home / "synthetic"
    files = {f"{part}.{side}": folder / f"{part}.{side}" for part, side in keys}
    if not folder.exists():
        folder.mkdir()
        draw, sizes = random.Random(1), (300, 30, 30) if bench.toy else (29_000, 1014, 1000)
        for part, size in zip(names, sizes, strict=True):
            lengths = [min(max(round(draw.lognormvariate(2.3, 0.35)), 2), 40) for _ in range(size)]
            words = [[int(10 ** draw.uniform(0, 3.9)) for _ in range(length)] for length in lengths]
            for side in ("en", "de"):
                lines = (" ".join(f"{side}{word:x}" for word in line) for line in words)
                files[f"{part}.{side}"].write_text("".join(f"{line}\n" for line in lines))
    return files


def lines_of(path: Path, most: int) -> list[str]:
    return path.read_text("utf-8").splitlines()[:most]


def tables_of(bench: Bench, files: dict[str, Path], updates: int) -> dict[str, dict[str, Any]]:
    """Return the settings of a base model on a corpus, or of a tiny one."""
    sides = [(part, *side) for part in ("train", "valid") for side in (("source", "en"), ("target", "de"))]
    width, layers, heads, size = (32, 2, 4, 400) if bench.toy else (512, 6, 8, 10_000)
    return {
        "data": {
            "source_language": "en", "target_language": "de",
            **{f"{part}_{side}": str(files[f"{part}.{language}"]) for part, side, language in sides},
        },
        "tokenizer": {"kind": "bpe", "size": size, "shared": True},
        "model": {
            "width": width, "feed_forward": 4 * width, "encoder_layers": layers, "decoder_layers": layers,
            "attention_heads": heads, "dropout": 0.1, "norm": "post",
        },
        "training": {
            "updates": updates, "max_tokens": 500 if bench.toy else 8192, "warmup_updates": min(400, updates),
            "average_last": 1,
        },
        "evaluation": {"tokenize": "none", "lowercase": True},
        "decoding": {"max_length": 12 if bench.toy else 0},
    }  # fmt: skip


def train_row(bench: Bench) -> None:
    from _gpu_tasks import command

    from translume.config import Config

    updates, files = 10 if bench.toy else 1000, corpus(bench)
    data = "Multi30k" if files["train.en"].suffix == ".gz" else "synthetic pairs"
    toml, out = bench.home / "base.toml", str(bench.home / "base")
    toml.write_text(Config.build(tables_of(bench, files, updates)).to_toml())
    words = ["train", str(toml), "--device", bench.device, "--out"]
    printed = bench.first(command, [*words, out])
    steps = {each["update"]: each for each in printed if each["event"] == "progress"}
    reached, real = steps[updates]["at"], printed[-1]["at"] - printed[0]["at"]
    bench.model = out
    memory = max(each.get("memory_gib") or 0.0 for each in steps.values())
    early, fastest = steps[min(25, updates)], max(each["tokens_per_second"] for each in steps.values())
    warnings = [each["message"] for each in printed if each["event"] == "warned"]
    preparing = [(each["at"], each["what"]) for each in printed if each["event"] == "preparing"]
    shapes = [f"; {what}" for _, what in preparing if what.startswith("batches in")]
    bench.report(
        "train",
        f"update {updates:,} on {data} after {reached:.0f} s, update {early['update']} after {early['at']:.0f} s; at "
        f"most {fastest:,.0f} target tokens/s; loss {steps[updates]['loss']:.2f}; {memory:.1f} GiB"
        + "".join([*shapes, *(f"; WARNING {warning}" for warning in warnings)]),
        aim="≤ 70 s", met=reached <= 70, seconds=reached, data=data, tokens_per_second=fastest, memory_gib=memory,
        preparing=preparing,
    )  # fmt: skip
    if bench.left < real / 2:
        bench.skip("dry-run", f"{bench.left:.0f} s are left")
        return
    predicted = bench.first(command, [*words, f"{out}-dry", "--dry-run"])[-1]["training_seconds"]
    bench.report(
        "dry-run",
        f"predicts {predicted:.0f} s for a training of {real:.0f} s, without its imports ({predicted / real:.2f})",
        aim="within 30 %", met=abs(predicted / real - 1) <= 0.3, ratio=predicted / real, predicted=predicted, real=real,
    )  # fmt: skip


# ---- decoding


def model_of(bench: Bench) -> bool:
    """Make a random model if there is no trained one. Return whether there was."""
    from _gpu_tasks import updates_of

    if bench.model:
        return Path(bench.model).name == "base"
    folder = str(bench.home / "random")
    worker = Worker(updates_of, tables_of(bench, corpus(bench), 1), folder, bench.device)
    while worker.ask(seconds=bench.left) is not None:
        pass
    bench.model = folder
    return False


def decode_row(bench: Bench) -> None:
    from _gpu_tasks import Decoder, decoding, exported

    is_trained, files = model_of(bench), corpus(bench)
    export = bench.first(exported, bench.model, str(bench.home))
    lines = lines_of(files["test.en"], 10 if bench.toy else 1000)
    references = lines_of(files["test.de"], len(lines))
    what = "" if is_trained else ", random weights, forced lengths"
    usual: dict[str, Any] = {"model": bench.model, "folder": bench.model, "device": bench.device}
    usual["longest"] = 12 if bench.toy else 0 if is_trained else 64
    decoders = {
        "ours": Decoder(kind="ours", **usual, forced=bench.toy),
        "ours, fp32": Decoder(kind="ours", **usual, forced=bench.toy, dtype="fp32"),
        "ours, CPU": Decoder(kind="ours", **{**usual, "device": "cpu"}),
    }
    lost = {target: export[f"no {target}"] for target in ("huggingface", "ctranslate2") if f"no {target}" in export}
    for kind, target in (("transformers", "huggingface"), ("ctranslate2", "ctranslate2")):
        if target in export:
            decoders[kind] = Decoder(kind=kind, **{**usual, "folder": export[target]})
    players = {kind: Worker(decoding, decoder) for kind, decoder in decoders.items()}
    for worker in players.values():
        worker.begin()
    for kind in list(players):
        with forgiving(kind, players, lost):
            players[kind].answer(min(90.0, bench.left))
    texts = dict[str, dict[int, list[str]]]()
    for beam, least, before in ((1, 3000, 261), (5, 1500, 39)):
        rates, spreads = decoding_rates(bench, players, lines, beam, texts, lost)
        ratios = {kind: rates["ours"] / rate for kind, rate in rates.items() if kind != "ours"}
        same = {kind: equal_share(texts["ours"][beam], texts[kind][beam]) for kind in ratios}
        beside = [f"; {kind} {rates[kind]:,.0f} ({ratios[kind]:.2f}, {same[kind]:.0%} of the texts equal)"
                  for kind in ratios if kind != "ours, CPU"]  # fmt: skip
        bench.report(
            "decode greedy" if beam == 1 else f"decode beam {beam}",
            f"{rates['ours']:,.0f} lines/s{what}{''.join(beside)}; BLEU {bleu(texts['ours'][beam], references)}"
            + listed(lost),
            aim=f"≥ {least:,} lines/s on an H100", met=rates["ours"] >= least if bench.is_h100 else None, rates=rates,
            ratio=ratios, equal=same, spread=spreads, lost=lost,
        )  # fmt: skip
        if "ours, CPU" in rates:
            bench.report(
                "CPU greedy" if beam == 1 else f"CPU beam {beam}",
                f"{rates['ours, CPU']:,.0f} lines/s with {os.cpu_count()} processors{what}",
                aim=f"≥ {before} on the 16 cores beside an H100",
                met=rates["ours, CPU"] >= before if bench.is_h100 and is_trained else None, rate=rates["ours, CPU"],
                spread=spreads["ours, CPU"],
            )  # fmt: skip
    report_latency(bench, players, lines)
    report_precision(bench, players, lines, references, texts)


def decoding_rates(
    bench: Bench, players: dict[str, Worker], lines: list[str], beam: int, texts: dict[str, dict[int, list[str]]],
    lost: dict[str, str],
) -> tuple[dict[str, float], dict[str, float]]:  # fmt: skip
    """Return lines/s of each contestant, and the spread of its rounds: one to three, until they took 4 s."""
    seconds: dict[str, list[float]] = {kind: [] for kind in players if kind != "ours, fp32"}
    some = {kind: lines[:300] if kind == "ours, CPU" and beam > 1 else lines for kind in seconds}
    for number in range(4):
        for kind in [each for each in seconds if each in players and sum(seconds[each]) < 4.0]:
            given = lines[:128] if number == 0 and kind != "ours" else some[kind]  # the first round is not timed
            with forgiving(kind, players, lost):
                answer = players[kind].ask(("all", given, beam), seconds=min(60.0, bench.left))
                seconds[kind] += [answer["seconds"]] if number else []
                texts.setdefault(kind, {})[beam] = answer["texts"]
    timed = {kind: found for kind, found in seconds.items() if found and kind in players}
    rates = {kind: len(some[kind]) / statistics.median(found) for kind, found in timed.items()}
    return rates, {kind: spread(found) for kind, found in timed.items()}


def equal_share(texts: list[str], others: list[str]) -> float:
    """Return the share of equal texts among those that both have."""
    pairs = list(zip(texts, others, strict=False))
    return sum(a == b for a, b in pairs) / max(1, len(pairs))


def bleu(texts: list[str], references: list[str]) -> str:
    if find_spec("sacrebleu") is None:
        return "unknown"
    import sacrebleu

    return f"{sacrebleu.corpus_bleu(texts, [references], tokenize='none', lowercase=True, force=True).score:.1f}"


def report_latency(bench: Bench, players: dict[str, Worker], lines: list[str]) -> None:
    some, medians = lines[: 4 if bench.toy else 35], dict[str, float]()
    for kind in [each for each in ("ours", "transformers", "ctranslate2", "ours, CPU") if each in players]:
        found = players[kind].ask(("each", some, 1), seconds=bench.left)["seconds"]
        medians[kind] = 1e3 * statistics.median(found[5:] or found)
    below = [medians["ours"] < medians[kind] if kind in medians else None for kind in ("transformers", "ours, CPU")]
    bench.report(
        "one sentence", ", ".join(f"{kind} {each:.1f} ms" for kind, each in medians.items()) + ", greedy",
        aim="≤ 25 ms, below transformers and our CPU", met=all_of(medians["ours"] <= 25, *below), milliseconds=medians,
    )  # fmt: skip


def report_precision(
    bench: Bench, players: dict[str, Worker], lines: list[str], references: list[str], texts: dict[str, Any]
) -> None:
    """Compare log-probabilities and greedy texts with those of the CPU."""
    if missing := [kind for kind in ("ours, CPU", "ours, fp32") if kind not in players]:
        bench.skip("precision", f"{missing[0]} is missing")
        return
    count, found = min(64, len(lines)), dict[str, list[float]]()
    for kind in ("ours, CPU", "ours", "ours, fp32"):
        answer = players[kind].ask(("score", lines[:count], references[:count]), seconds=bench.left)
        found[kind] = [each for log_probs in answer["log_probs"] for each in log_probs]
    exact = players["ours, fp32"].ask(("all", lines, 1), seconds=bench.left)["texts"]
    cpu, same = found.pop("ours, CPU"), equal_share(exact, texts["ours, CPU"][1])
    deltas = {kind: [abs(a - b) for a, b in zip(values, cpu, strict=True)] for kind, values in found.items()}
    most, mean, largest = max(deltas["ours, fp32"]), statistics.mean(deltas["ours"]), max(deltas["ours"])
    bench.report(
        "precision",
        f"fp32: |Δ log p| of a token to the CPU's at most {most:.1e} nats, {same:.1%} of the greedy texts equal; auto: "
        f"{mean:.1e} on average, at most {largest:.1e}",
        aim="≤ 1e-4, 100 %", met=most <= 1e-4 and same == 1.0, fp32_most=most, auto_mean=mean, auto_most=largest,
        equal=same,
    )  # fmt: skip


# ---- killed and resumed


def resume_row(bench: Bench) -> None:
    from _gpu_tasks import updates_of
    from kill_resume import COMPARED, committed, write_corpus

    home = bench.home / "resume"
    home.mkdir()
    write_corpus(home, streaming=False)
    updates, save = (12, 4) if bench.toy else (60, 20)
    tables = {
        "data": json.loads((home / "data.json").read_text()),
        "tokenizer": {"size": 400, "dropout": 0.1},
        "model": {"width": 64, "feed_forward": 128, "encoder_layers": 2, "decoder_layers": 2, "attention_heads": 4},
        "training": {
            "updates": updates, "max_tokens": 2000, "accumulate": 2, "warmup_updates": 10, "validate_every": save - 1,
            "save_every": save, "average_last": 2, "ema": 0.99, "compile": not bench.toy or bench.options.compile,
        },
    }  # fmt: skip
    runs = {name: str(home / name) for name in ("whole", "killed")}
    whole, killed = (Worker(updates_of, tables, folder, bench.device) for folder in runs.values())
    whole.begin()
    while (last := killed.ask(seconds=bench.left)) < 2 * save + 3:
        pass
    killed.kill()
    while whole.answer(bench.left) is not None:
        whole.begin()
    resumed = Worker(updates_of, tables, runs["killed"], bench.device)
    first = resumed.ask(seconds=bench.left)
    while resumed.ask(seconds=bench.left) is not None:
        pass
    files = [committed(Path(folder)) for folder in runs.values()]
    names = [*COMPARED, *sorted(each for each in files[0] if each.startswith("resume/candidate-"))]
    digests = [{each: hashlib.sha256(found[each].read_bytes()).hexdigest() for each in names} for found in files]
    different = [each for each in names if digests[0][each] != digests[1][each]]
    bench.report(
        "resume",
        f"killed after update {last} of {updates}, resumed with update {first}: "
        + (f"DIFFERENT: {', '.join(different)}" if different else f"the same bits in {len(names)} files")
        + f", weights {digests[1]['weights.safetensors'][:16]}",
        aim="the same bits", met=not different, different=different, digests=digests[1],
    )  # fmt: skip


# ---- everything else


def everything_row(bench: Bench) -> None:
    from _gpu_tasks import FEATURES, ONLY_HERE, UPDATES, Case, exported

    model_of(bench)
    files, count = corpus(bench), 24 if bench.toy else 256
    export = bench.home / "huggingface"
    if not export.exists():
        bench.first(exported, bench.model, str(bench.home))
    small = bench.home / "small"
    small.mkdir()
    paths = {}
    for name in ("en", "de"):
        lines = lines_of(files[f"test.{name}"], count)
        for part in ("train", "valid"):
            paths[f"{part}.{name}"] = small / f"{part}.{name}"
            paths[f"{part}.{name}"].write_text("".join(f"{line}\n" for line in lines))
    tokenizer = {"path": str(next(Path(bench.model).glob("tokenizer_settings-*.json")))}
    case: dict[str, Any] = {
        "home": str(small), "model": bench.model, "export": str(export) if export.exists() else "",
        "tables": {**tables_of(bench, paths, UPDATES), "tokenizer": tokenizer},
        "sources": lines_of(paths["train.en"], count), "targets": lines_of(paths["train.de"], count),
    }  # fmt: skip
    here, errors = run_features(bench, Case(device=bench.device, **case), list(FEATURES))
    cpu: dict[str, float] = {}
    if not bench.toy:
        cpu, _ = run_features(bench, Case(device="cpu", **case), [name for name in here if name not in ONLY_HERE])
    slower = [name for name in cpu if here[name] > cpu[name]]
    beside = {name: f" ({cpu[name]:.3g})" if name in cpu else "" for name in here}
    left_out = [name for name in FEATURES if name not in here and name not in errors]
    bench.report(
        "everything",
        f"{len(here)} of {len(FEATURES)} ran, seconds (on the CPU): "
        + ", ".join(f"{name} {value:.3g}{beside[name]}" for name, value in here.items())
        + f"; slower than the CPU: {', '.join(slower) or 'none'} of {len(cpu)}"
        + listed(errors)
        + (f"; no time for {', '.join(left_out)}" if left_out else ""),
        aim="each runs, none slower than the CPU", met=all_of(not slower, not errors, None if left_out else True),
        seconds=here, cpu_seconds=cpu, errors=errors, slower=slower, left_out=left_out,
    )  # fmt: skip


def run_features(bench: Bench, case: Any, names: list[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds of features, and the errors of others; those that there is no time for are in neither."""
    from _gpu_tasks import features

    seconds, errors, worker = dict[str, float](), dict[str, str](), None
    while names and bench.left > RESERVE / 2:
        worker = worker or Worker(features, case, names)
        try:
            found = worker.ask(seconds=min(60.0, bench.left))
        except RowError as error:  # the process is gone, and with it what CUDA had
            errors[names.pop(0)] = str(error)
            worker.kill()
            worker = None
            continue
        name, value, reason = found
        names = names[names.index(name) + 1 :]
        if reason:
            errors[name] = reason
        else:
            seconds[name] = value
    return seconds, errors


ROWS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "base-32k": (base_row, 60),
    "train": (train_row, 90),
    "decode": (decode_row, 40),
    "big-32k": (big_row, 70),
    "tiny": (tiny_row, 35),
    "resume": (resume_row, 40),
    "everything": (everything_row, 20),
}
"""The rows by importance, and the seconds that a GPU needs for each at least."""


def find_device(name: str) -> dict[str, Any]:
    """Return what `card` yields. Raises SystemExit if there is no such device.

    If something has started CUDA in this process, forked ones cannot use it; then all processes start anew.
    """
    from _gpu_training import card

    facts: dict[str, Any] = {}
    reason = ""
    for method in ("fork", "spawn"):
        Worker.method = method
        worker = Worker(card, name)
        try:
            facts = worker.ask(seconds=120)
        except RowError as error:
            reason = str(error)
            continue
        finally:
            worker.kill()
        if facts["device"] != "cpu" or name == "cpu":
            return facts
    if not facts:
        raise SystemExit(f"gpu: --device: found {name!r}, which cannot be used: {reason}")
    Worker.method = "fork"
    return facts


def run(bench: Bench, begun: float) -> None:
    """Report all rows that there is time for.  begun: when the program began."""
    import torch

    options = bench.options
    bench.facts = {**find_device(options.device), "torch": torch.__version__}
    if bench.toy:
        if not options.short:
            raise SystemExit("gpu: found no CUDA device; --device cpu --short runs everything at toy sizes")
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"
    minutes = options.minutes or (TOY_MINUTES if bench.toy else SHORT_MINUTES if options.short else MINUTES)
    bench.end = begun + 60 * minutes - RESERVE
    print(f"{bench.facts['card']}, torch {torch.__version__}, {bench.facts['ceiling'] / 1e12:.3g} TFLOP/s", flush=True)
    for name, (row, least) in ROWS.items():
        if options.only and name not in options.only:
            continue
        if bench.left < (5 if bench.toy else least):
            bench.skip(name, f"{bench.left:.0f} s are left, expected {least:.0f}")
            continue
        try:
            with workers():
                row(bench)
        except Exception as error:  # the other rows go on
            bench.failed += 1
            traceback.print_exc(file=options.log)
            kind = "" if isinstance(error, RowError) else f"{type(error).__name__}: "
            reason = f"{kind}{' '.join(str(error).split())[:300]}"
            bench.report(name, f"FAILED: {reason}", error=reason, met=False)
    print(f"{time.monotonic() - begun:.0f} s; {options.out}", flush=True)


def main() -> None:
    begun, short = time.monotonic(), bool(os.environ.pop("TRANSLUME_SHORT", ""))  # which would shorten trainings too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW", help="only this row; repeatable")
    parser.add_argument("--short", action="store_true", default=short, help="two minutes")
    parser.add_argument("--minutes", type=float, default=0.0, help="when the rows must be done: 9; with --short 2")
    parser.add_argument("--device", default="auto", help="cuda, cpu (at toy sizes), or auto")
    parser.add_argument("--data", type=Path, help="the folder of Multi30k, or the one that holds it")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels, or of unpacked ones")
    parser.add_argument("--out", type=Path, default=Path("build/gpu.jsonl"))
    parser.add_argument("--compile", action="store_true", help="use torch.compile on a CPU too, which takes minutes")
    parser.add_argument("--count", action="store_true", help="print what a GPU would do, as one JSON line")
    options = parser.parse_args()
    paths = [str(ROOT / "src"), *(use_wheels(options.wheels) if options.wheels else [])]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", NVML: "1"}
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SystemExit(f"gpu: not installed: {', '.join(missing)}; --wheels DIR names a folder of their wheels")
    if options.count:
        from _gpu_training import counts

        print(json.dumps(counts()))
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    Worker.log = options.out.with_suffix(".log")
    with (
        tempfile.TemporaryDirectory(prefix="gpu-", ignore_cleanup_errors=True) as home,
        Worker.log.open("a") as options.log,
        workers(),
    ):
        preload()
        bench = Bench(options, Path(home), begun + 120)
        run(bench, begun)
    raise SystemExit(bench.failed > 0)


def preload() -> None:
    """Import what the processes need before they are forked, which takes seconds each time."""
    import _gpu_tasks  # noqa: F401

    import translume.training
    import translume.translator  # noqa: F401

    with suppress(ImportError):
        from transformers import AutoTokenizer, MarianMTModel  # noqa: F401


if __name__ == "__main__":
    main()
