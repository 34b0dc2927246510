"""Run every command of `translume` with broken streams, full disks, damaged files and absurd numbers.

A case is made from a seed: a command, its options, its input files (some of them damaged), and what its standard
streams are. It runs in a child that is forked from this process, which has imported torch. A case is at fault if

- a traceback is printed, or the command ends by an exception instead of an error,
- the exit code is none of 0, 1, 2, 130 (Ctrl-C), 141 (closed pipe) and 143 (SIGTERM),
- it goes on for 60 seconds after Ctrl-C, which each case gets after 15 seconds,
- a temporary file (`*.part`, `.partial-*`) or an incomplete output file is left behind.

Disks are full in three ways: a device like /dev/full, a limit on the size of files, and, for root, a mounted disk of
64 KB.

    python benchmarks/fuzz_cli.py [--cases 1000] [--first 0] [--seed 1] [--show NUMBER] [--json]
"""

import argparse
import contextlib
import gc
import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

ALLOWED = (0, 1, 2, 130, 141, 143)
PATIENCE_SECONDS, HANG_SECONDS = 15, 60
"""Seconds until a case gets Ctrl-C, and until it counts as hung after that."""

MEMORY = 8 << 30
"""Limit of a case's address space, so that absurd numbers run out of memory early."""

INTEGERS = (-1, 0, 1, 2, 3, 1000, 2**31, 2**53, 2**63, 10**30)
FLOATS = ("nan", "inf", "-inf", "-1", "0", "1e-300", "0.5", "1e308", "1e999")
TEXTS = ("", " ", "a", "ä\u0301", "\udcff", "-", "--", "a,b", "a=b", "9" * 400, "x" * 5000, "{", "[", "'", "%s", "\n")
STREAMS = ("kept",) * 12 + ("closed", "full", "pipe")

SETTINGS = """
data = {train_source = "train.en", train_target = "train.de", source_language = "en", target_language = "de"}
tokenizer = {kind = "character", size = 300}
model = {width = 12, feed_forward = 17, encoder_layers = 1, decoder_layers = 1, attention_heads = 2}
training = {updates = 2, max_tokens = 512, warmup_updates = 2, validate_every = 2, save_every = 2}
"""
CLASSES = """
data = {task = "classification", train_source = "train.en", train_target = "labels"}
tokenizer = {kind = "character", size = 300}
training = {updates = 2, max_tokens = 512, warmup_updates = 2, validate_every = 2, save_every = 2}
[model]
width = 12
feed_forward = 17
encoder_layers = 1
attention_heads = 2
head = {kind = "classify"}
"""


@dataclass(slots=True, kw_only=True)
class Case:
    """One command line. `streams`: what standard input, output and error are."""

    number: int
    words: list[str]
    streams: tuple[str, str, str] = ("kept", "kept", "kept")
    text: bytes = b""
    file_limit: int | None = None
    """Largest size of a file that the case can write, in bytes: a full disk without mounting one."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a case did."""

    code: int
    errors: str
    seconds: float
    crash: str = ""
    hung: bool = False
    left: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Return the faults in words; none for a command that behaves."""
        found = []
        if self.crash or "Traceback" in self.errors or "Exception ignored" in self.errors:
            found.append("traceback")
        if self.code not in ALLOWED:
            found.append(f"exit code {self.code}")
        if self.hung:
            found.append("hung")
        return found + [f"left {name}" for name in self.left]


class Home:
    """A folder with the files and models that cases read, and one for what a case writes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch, self.disk = folder, folder / "scratch", folder / "disk"
        # Devices of its own: root could replace those in /dev, as `tokenizer train --out /dev/full` once did.
        self.devices = tuple(_device(folder / name, minor) for name, minor in (("full", 7), ("null", 3)))
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(self.disk)]
        self.has_disk = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
        sources = [f"{first} {second}" for first in words for second in words]
        self._write("train.en", "".join(f"{line}\n" for line in sources).encode())
        self._write("train.de", "".join(f"{line[::-1]}\n" for line in sources).encode())
        self._write("labels", "".join(f"{len(line) % 3}\n" for line in sources).encode())
        self._write("pairs.tsv", "".join(f"{line}\t{line[::-1]}\n" for line in sources).encode())
        objects = [json.dumps({"source": line, "target": line[::-1]}) for line in sources]
        self._write("pairs.jsonl", "".join(f"{line}\n" for line in objects).encode())
        self._write("train.toml", SETTINGS.encode())
        self._write("classes.toml", CLASSES.encode())
        self._write("empty", b"")
        for name in ("model", "classes"):
            toml = "train.toml" if name == "model" else "classes.toml"
            self._run("train", self.path(toml), "--out", self.path(name))
        self._run(
            "tokenizer", "train", "bpe", "--size", "300", "--out", self.path("tokenizer.json"), self.path("train.en")
        )
        self._run("keys", "add", self.path("keys.json"), "me")

    def clear(self) -> None:
        """Remove what the last case wrote."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def replaced_devices(self) -> list[str]:
        """Return the devices that a case has replaced by files."""
        return [path for path in self.devices if not Path(path).is_char_device()]

    def close(self) -> None:
        """Unmount the small disk."""
        if self.has_disk:
            subprocess.run(["umount", str(self.disk)], check=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def _write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def _run(self, *words: str) -> None:
        done = run(Case(number=-1, words=list(words)), self.folder)
        if done.code:
            raise SystemExit(f"{' '.join(words)}: {done.errors}{done.crash}")


def _device(path: Path, minor: int) -> str:
    """Return a copy of /dev/full or /dev/null, or the device itself for users who cannot replace it."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        with open(path, "wb"):
            return str(path)
    except OSError:
        path.unlink(missing_ok=True)
        return f"/dev/{path.name}"


# ---- making cases


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Return the content truncated, with some bytes changed, or replaced by random bytes."""
    draw = random.Random(draw.getrandbits(64))  # its further draws depend on the content, which differs between runs
    way = draw.randrange(5)
    if way == 0 or not content:
        return draw.randbytes(draw.choice((0, 1, 100, 5000)))
    if way == 1:
        return content[: draw.randrange(len(content))]
    if way == 2:
        lines = content.split(b"\n")
        draw.shuffle(lines)
        return b"\n".join(lines)
    changed = bytearray(content)
    for _ in range(draw.choice((1, 3, 30))):
        place = draw.randrange(len(changed))
        if way == 3:
            changed[place] = draw.randrange(256)
        else:
            changed[place : place + draw.randrange(9)] = draw.choice(
                (b'"', b"9999999999", b"-1", b"null", b"[]", b"\xff", b"")
            )
            if not changed:
                break
    return bytes(changed)


def damaged_model(folder: Path, place: Path, draw: random.Random) -> str:
    """Copy a model and damage one of its files; in half of the cases the manifest has the new digest."""
    draw = random.Random(draw.getrandbits(64))
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("tensorboard", "cache", ".lock"))
    path = draw.choice(sorted(each for each in place.rglob("*") if each.is_file()))
    before = path.read_bytes()
    after = damaged(before, draw)
    path.write_bytes(after)
    if path.name != "manifest.json" and draw.random() < 0.5:
        manifest = (place / "manifest.json").read_text(encoding="utf-8")
        manifest = manifest.replace(hashlib.sha256(before).hexdigest(), hashlib.sha256(after).hexdigest())
        values = json.loads(manifest)
        for entry in values["files"].values():
            if place / entry["file"] == path:
                entry["size"] = len(after)
        (place / "manifest.json").write_text(json.dumps(values), encoding="utf-8")
    elif draw.random() < 0.1:
        path.unlink()
    return str(place)


class Maker:
    """Makes the case of a number."""

    def __init__(self, home: Home, seed: int) -> None:
        self._home, self._seed = home, seed
        self._makers: list[tuple[list[str], Callable[[random.Random], list[str]]]] = [
            (["demo"], lambda draw: ["--out", self._out(draw), "--pairs", "200", "--updates", "2"]),
            (["init"], self._training_files),
            (["train"], self._train),
            (["translate"], lambda draw: [self._model(draw), *self._maybe(draw, self._text(draw))]),
            (["classify"], lambda draw: [self._model(draw, "classes"), *self._maybe(draw, self._text(draw))]),
            (["score"], lambda draw: [self._model(draw), self._text(draw), self._text(draw)]),
            (["evaluate"], self._evaluate),
            (["inspect", "text"], self._inspect),
            (["inspect", "corpus"], self._evaluate),
            (
                ["heads"],
                lambda draw: [self._toml(draw), "--out", self._out(draw), "--updates", "2", "--kinds", "softmax"],
            ),
            (
                ["export"],
                lambda draw: [self._model(draw), draw.choice(("ctranslate2", "huggingface", "x")), self._out(draw)],
            ),
            (["import"], lambda draw: [self._model(draw), self._out(draw)]),
            (["serve"], lambda draw: [self._model(draw), "--port", "0"]),
            (["keys", "add"], lambda draw: [self._file(draw, "keys.json"), draw.choice(TEXTS) or "x"]),
            (["keys", "list"], lambda draw: [self._file(draw, "keys.json")]),
            (["keys", "remove"], lambda draw: [self._file(draw, "keys.json"), "me"]),
            (["show"], lambda draw: [self._model(draw, draw.choice(("model", "classes")))]),
            (["config"], lambda draw: [self._toml(draw)]),
            (["data", "check"], lambda draw: [self._toml(draw)]),
            (["data", "stats"], lambda draw: [self._toml(draw)]),
            (["tokenizer", "train"], self._tokenizer),
            (["tokenizer", "encode"], lambda draw: [self._file(draw, "tokenizer.json")]),
            (["tokenizer", "decode"], lambda draw: [self._file(draw, "tokenizer.json")]),
            (["--help"], lambda draw: []),
            (["--version"], lambda draw: []),
        ]

    def case(self, number: int) -> Case:
        """Return the case of a number. Writes its damaged files into the scratch folder."""
        draw = random.Random(self._seed * 1_000_003 + number)
        verb, arguments = self._makers[number % len(self._makers)]
        words = [*verb, *arguments(draw)]
        options = self._options(verb)
        for option in draw.sample(options, min(len(options), draw.choice((0, 0, 0, 1, 1, 2, 4)))):
            words += self._option(option, draw)
        if verb in (["train"], ["heads"]):
            words += ["--set", "training.updates=2"]
        if draw.random() < 0.05:
            words.insert(draw.randrange(len(words) + 1), draw.choice(TEXTS))
        streams = (draw.choice(STREAMS), draw.choice(STREAMS), draw.choice(STREAMS))
        good = b"one two\nthree\n\nfour " + "fünf\n".encode()
        ids = b"5 6 7\n" if verb[-1] == "decode" else good
        text = draw.choice(
            (ids, ids, ids, b"", draw.randbytes(300), b"x" * 100_000, b"\n" * 50, b"\x00\n", b"\xef\xbb\xbfone")
        )
        limit = draw.choice((None,) * 7 + (0, 100, 5000))
        return Case(number=number, words=words, streams=streams, text=text, file_limit=limit)

    # Arguments: mostly good, sometimes damaged or absurd.

    def _maybe(self, draw: random.Random, word: str) -> list[str]:
        return [word] if draw.random() < 0.5 else []

    def _file(self, draw: random.Random, name: str) -> str:
        """Return a path: a copy of a good file, a damaged copy, or something that is no such file."""
        place = self._home.scratch / f"{draw.randrange(10**6)}-{name}"
        way = draw.random()
        content = Path(self._home.path(name)).read_bytes()
        if way < 0.65:
            place.write_bytes(content)
        elif way < 0.88:
            place.write_bytes(damaged(content, draw))
        elif way < 0.93:
            place = place.with_name(f"{place.name}.gz")
            place.write_bytes(damaged(gzip.compress(content), draw))
        else:
            return draw.choice(
                (self._home.path("empty"), str(self._home.folder), "nosuch", "", *self._home.devices, "x" * 300)
            )
        return str(place)

    def _text(self, draw: random.Random) -> str:
        return self._file(draw, draw.choice(("train.en", "train.de", "train.en", "labels", "pairs.tsv", "pairs.jsonl")))

    def _toml(self, draw: random.Random) -> str:
        """Return a TOML file whose data files are beside it."""
        for name in ("train.en", "train.de", "labels"):
            content = Path(self._home.path(name)).read_bytes()
            bad = draw.random() < 0.15
            (self._home.scratch / name).write_bytes(damaged(content, draw) if bad else content)
        return self._file(draw, draw.choice(("train.toml", "train.toml", "classes.toml")))

    def _model(self, draw: random.Random, name: str = "model") -> str:
        way = draw.random()
        if way < 0.6:
            return self._home.path(name)
        if way < 0.9:
            return damaged_model(Path(self._home.path(name)), self._home.scratch / "damaged", draw)
        return draw.choice((self._home.path("classes"), self._home.path("model"), self._text(draw), "nosuch", ""))

    def _out(self, draw: random.Random) -> str:
        good = str(self._home.scratch / "out")
        full, null = self._home.devices
        bad = (full, f"{null}/x", self._home.path("empty"), "", str(self._home.disk / "out"))
        return draw.choice((good,) * 7 + bad)

    def _training_files(self, draw: random.Random) -> list[str]:
        if draw.random() < 0.6:
            return [self._file(draw, "train.en"), self._file(draw, "train.de")]
        return [self._file(draw, draw.choice(("pairs.tsv", "pairs.jsonl")))]

    def _train(self, draw: random.Random) -> list[str]:
        source = ["--from", self._model(draw)] if draw.random() < 0.3 else []
        return [self._toml(draw), "--out", self._out(draw), *source]

    def _evaluate(self, draw: random.Random) -> list[str]:
        name, reference = draw.choice((("model", "train.de"), ("model", "train.de"), ("classes", "labels")))
        return [self._model(draw, name), self._file(draw, "train.en"), self._file(draw, reference)]

    def _inspect(self, draw: random.Random) -> list[str]:
        return [self._model(draw, draw.choice(("model", "model", "classes"))), draw.choice(TEXTS) or "one two"]

    def _tokenizer(self, draw: random.Random) -> list[str]:
        kind = draw.choice(("bpe", "unigram", "wordpiece", "character", "byte", "word", "x"))
        return [kind, "--size", str(draw.choice((300, 500))), "--out", self._out(draw), self._text(draw)]

    # Options: any of the command, with any value.

    def _options(self, verb: list[str]) -> list[click.Option]:
        from translume.cli import main

        command: click.Command = main
        for word in verb:
            found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
            command = found or command
        return [each for each in command.params if isinstance(each, click.Option) and each.name != "help"]

    def _option(self, option: click.Option, draw: random.Random) -> list[str]:
        name = draw.choice([*option.opts, *option.secondary_opts])
        if option.is_flag:
            return [name]
        if option.name == "workers":
            return [name, str(draw.choice((-1, 0, 2, 10**6, 10**30)))]
        if option.name == "set":
            table = draw.choice(("training", "model", "decoding", "data", "tokenizer", "evaluation", "x"))
            setting = draw.choice(
                ("learning_rate", "width", "beam", "size", "seed", "max_tokens", "head.kind", "columns")
            )
            return [name, f"{table}.{setting}={draw.choice((*map(str, INTEGERS), *FLOATS, *TEXTS))}"]
        if isinstance(option.type, click.Choice):
            return [name, draw.choice((*map(str, option.type.choices), "x"))]
        if isinstance(option.type, click.Path):
            return [name, draw.choice((self._out(draw), self._text(draw), "-"))]
        if isinstance(option.type, click.types.IntParamType | click.IntRange):
            return [name, str(draw.choice(INTEGERS))]
        if isinstance(option.type, click.types.FloatParamType):
            return [name, draw.choice(FLOATS)]
        return [name, draw.choice((*TEXTS, self._text(draw), *map(str, INTEGERS)))]


# ---- running cases


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a forked child and in its own process group."""
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        given, output, errors, crash = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(4))
        given.write(case.text)
        given.seek(0)
        child = os.fork()
        if child == 0:
            _child(case, folder, given.fileno(), output.fileno(), errors.fileno(), crash.fileno())
        status, hung = _waited(child, case)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # grandchildren
        errors.seek(0)
        crash.seek(0)
        return Outcome(
            code=os.waitstatus_to_exitcode(status),
            errors=errors.read().decode("utf-8", "replace"),
            crash=crash.read().decode("utf-8", "replace"),
            seconds=time.monotonic() - started,
            hung=hung,
        )


def _waited(child: int, case: Case) -> tuple[int, bool]:
    """Wait for a child: Ctrl-C after a while, SIGKILL if that does not end it."""
    patience = 4 if case.words[:1] == ["serve"] else PATIENCE_SECONDS
    for seconds, number in ((patience, signal.SIGINT), (HANG_SECONDS, signal.SIGKILL)):
        until = time.monotonic() + seconds
        pause = 0.002
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status, False
            time.sleep(pause)
            pause = min(0.05, pause * 1.5)
        os.kill(child, number)
    return os.waitpid(child, 0)[1], True


def _child(case: Case, folder: Path, given: int, output: int, errors: int, crash: int) -> None:
    """Become `translume WORDS` as the interpreter would start it; never returns."""
    os.setpgid(0, 0)
    report = os.fdopen(os.dup(crash), "w")
    code = 70
    try:
        os.chdir(folder)
        for number, (stream, kept) in enumerate(zip(case.streams, (given, output, errors), strict=True)):
            _redirect(number, stream, kept)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            opened = _opened(number, "w" if number else "r")
            setattr(sys, name, opened)
            setattr(sys, f"__{name}__", opened)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if case.file_limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (case.file_limit, resource.RLIM_INFINITY))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from translume.cli import main

        try:
            main(case.words, "translume")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        for written in (sys.stdout, sys.stderr):
            if written is not None:
                written.flush()
    except BaseException:
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        traceback.print_exc(file=report)
        report.flush()
    finally:
        os._exit(code)  # even if the report fails: what remains on the stack would remove this process's files


def _redirect(number: int, stream: str, kept: int) -> None:
    if stream == "closed":
        os.close(number)
    elif stream == "full":
        os.dup2(os.open("/dev/full", os.O_RDWR), number)
    elif stream == "pipe":
        reader, writer = os.pipe()
        os.dup2(reader if number == 0 else writer, number)
        os.close(reader)
        os.close(writer)
    else:
        os.dup2(kept, number)


def _opened(number: int, mode: str) -> io.TextIOWrapper | None:
    """Return a standard stream as Python opens it: None for a closed descriptor."""
    try:
        os.fstat(number)
    except OSError:
        return None
    errors = "strict" if number < 2 else "backslashreplace"
    file = open(number, mode, encoding="utf-8", errors=errors, closefd=False, buffering=-1)  # noqa: SIM115  # a standard stream stays open
    assert isinstance(file, io.TextIOWrapper)
    return file


def leftovers(folder: Path) -> list[str]:
    """Return the names of temporary files, and of output files that are incomplete."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.suffix == ".part" or path.name.startswith(".partial-") or (path.name == "out" and _is_partial(path))
    )


def _is_partial(path: Path) -> bool:
    content = path.read_bytes() if path.is_file() else b""
    if content.startswith(b"{"):
        try:
            json.loads(content.splitlines()[0] if b"}\n{" in content else content)
        except ValueError:
            return True
    ends = {b"<!": b"</html>", b"\x89PNG": b"IEND\xaeB`\x82"}
    return any(content.startswith(begin) and not content.rstrip().endswith(end) for begin, end in ends.items())


def fuzzed(seed: int, numbers: list[int]) -> Iterator[tuple[Case, Outcome]]:
    """Yield the cases of these numbers with what they did."""
    import torch

    import translume.cli.group as group
    from translume import inspection, training, translator  # noqa: F401  # imported once, before the forks

    torch.set_num_threads(1)
    for name in group.COMMANDS:
        group.main.get_command(click.Context(group.main), name)
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        home = Home(Path(name))
        try:
            maker = Maker(home, seed)
            for number in numbers:
                home.clear()
                case = maker.case(number)
                outcome = run(case, home.scratch)
                outcome.left = [*leftovers(home.scratch), *leftovers(home.disk), *home.replaced_devices()]
                yield case, outcome
        finally:
            home.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=48 if os.environ.get("TRANSLUME_SHORT") == "1" else 1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="begin with this case")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="run one case and print what it did")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)  # some cases hold half characters
    codes: Counter[int] = Counter()
    faulty = 0
    started = time.monotonic()
    numbers = list(range(options.first, options.first + options.cases)) if options.show is None else [options.show]
    for case, outcome in fuzzed(options.seed, numbers):
        codes[outcome.code] += 1
        faults = outcome.faults()
        faulty += bool(faults)
        if faults or options.show is not None:
            print(
                f"case {case.number}: {', '.join(faults) or 'no fault'}; {outcome.seconds:.1f} s; exit {outcome.code}"
            )
            print(f"  translume {subprocess.list2cmdline(word[:200] for word in case.words)}")
            print(f"  streams {case.streams}, input {case.text[:40]!r}, file limit {case.file_limit}")
            for text in (outcome.errors, outcome.crash):
                print("".join(f"    {line[:300]}\n" for line in text.splitlines()[-12:]), end="", flush=True)
    seconds = time.monotonic() - started
    result = {"cases": len(numbers), "seed": options.seed, "faults": faulty, "exit codes": dict(sorted(codes.items()))}
    if options.json:
        print(json.dumps({**result, "seconds": round(seconds)}))
    else:
        print(f"{len(numbers):,} cases in {seconds:.0f} s: {faulty} at fault; exit codes {dict(sorted(codes.items()))}")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
