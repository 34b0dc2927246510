"""Cut the power after every file operation of eleven runs, and let every operation fail; is anything lost?

Each run is recorded once (see `_recorded_disk.py`). Then a folder is made of what a killed process leaves after each
number of operations, and of what a loss of power may leave: draws of unsynced bytes and names, by a seed. A folder is
at fault if it does not load, unless it is refused in one line and nothing had been reported as saved, or if what loads
is older than what had been reported. Some of the folders are also continued: the end must be that of the whole run.

Then the run is repeated once for each operation and error: that operation fails (EIO), or it and all later ones
(ENOSPC, EDQUOT, a read-only file system), and once with locks that do not work. The run must end in one line or go on,
and what it had reported must load.

    python benchmarks/power_loss.py [--runs train,keys] [--count 12] [--continued 3] [--seed 1] [--errors 1] [--json]
"""

import argparse
import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib
import io
import json
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

sys.path.append(str(Path(__file__).parent))

from _recorded_disk import Disk, Recorder, Tree, UnseenError, read_tree, write_tree

from translume.errors import TranslumeError

if TYPE_CHECKING:
    from translume.config import Config

Mark = Callable[[Hashable], None]
NOTHING = "nothing"
CODES = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
SETTINGS = {
    "tokenizer": {"kind": "unigram", "size": 60, "unknown": "token"},
    "model": {
        "width": 8, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 1, "attention_heads": 2,
        "norm": "post", "positions": "sinusoidal", "max_positions": 64, "activation": "relu",
    },
    "training": {
        "updates": 3, "max_tokens": 400, "warmup_updates": 2, "validate_every": 2, "save_every": 1, "log_every": 1,
        "average_last": 2, "keep": 2, "ema": 0.9, "precision": "fp32",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Something that writes files.

    act: writes below a folder, and calls `mark` with the state that it reports as saved.  check: returns the state in
    the folder, NOTHING if there is none; raises TranslumeError if it is refused.  end: returns the state after `act`
    was repeated, by default as `check` does.  continues: whether `act` continues what another one left.
    before: fills the folder before the run.
    by_command: whether only a command calls it, which prints any OSError in one line.
    foreign: whether a library writes files without being seen, as for `Recorder`.
    any_state: whether `check` may return the state before the reported one, as documented.
    """

    act: Callable[[Path, Mark], None]
    check: Callable[[Path], Hashable]
    continues: bool = False
    any_state: bool = False
    foreign: bool = False
    by_command: bool = False
    before: Callable[[Path], object] = lambda folder: None


@dataclass(slots=True)
class Figures:
    """What was tried.  distinct: folders that differ.  refused: those that were refused in one line."""

    operations: int = 0
    prefixes: int = 0
    reorderings: int = 0
    distinct: int = 0
    refused: int = 0
    continued: int = 0
    errors: int = 0
    ended: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


class Home:
    """Inputs of the runs: a corpus, a trained model, and an export of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        draw = random.Random(3)
        for name, count in (("train", 60), ("valid", 7)):
            lines = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, 9))) for _ in range(count)]
            (folder / f"{name}.source").write_text("".join(f"{line}\n" for line in lines))
            (folder / f"{name}.target").write_text("".join(f"{line[::-1]}\n" for line in lines))
        for number in range(3):
            (folder / f"text{number}.txt").write_text(f"a b c {'d ' * number}\ne f\n")

    @functools.cached_property
    def config(self) -> "Config":
        from translume.config import Config

        files = {
            f"{split}_{side}": str(self.folder / f"{split}.{side}")
            for split in ("train", "valid")
            for side in ("source", "target")
        }
        return Config.build({"data": files, **SETTINGS})

    @functools.cached_property
    def model(self) -> Path:
        from translume.training import train

        for _ in train(self.config, self.folder / "model", threads=1):
            pass
        return self.folder / "model"

    @functools.cached_property
    def exported(self) -> Path:
        from translume.interchange.export import export

        export(self.model, "huggingface", self.folder / "huggingface")
        return self.folder / "huggingface"


def model_state(folder: Path) -> Hashable:
    """Load a model as `translume translate` and as a resumed training do, and return a digest of its state."""
    import translume
    from translume.checkpoint import read_history
    from translume.checkpoint.folder import Manifest, verify
    from translume.training.resume import Store

    if not folder.exists():
        return NOTHING
    manifest = Manifest.read(folder)
    store = Store(folder, writes=False)
    state = store.state()
    verify(folder)
    read_history(folder)
    if (whole := repr(sorted(manifest.files.items()))) not in _loaded:  # equal digests load alike
        translume.load(folder)
        _loaded.add(whole)
    # The other files have dates and times.
    weights = sorted((name, each.sha256) for name, each in manifest.files.items() if name.endswith(".safetensors"))
    return hashlib.sha256(repr((state and state.update, weights)).encode()).hexdigest()


_loaded: set[str] = set()


def trained(home: Home, *, tuned: bool = False) -> Run:
    def act(folder: Path, mark: Mark) -> None:
        from translume.training import Finished, Saved, train

        place, source = folder / "model", home.model if tuned else None
        for event in train(home.config, place, source=source, threads=1):
            if isinstance(event, Saved | Finished):
                mark(model_state(place))

    return Run(act=act, check=lambda folder: model_state(folder / "model"), continues=True)


def token_cache(home: Home) -> Run:
    from translume.checkpoint import load_checkpoint
    from translume.data import token_cache
    from translume.data.token_cache import prepare

    held_out = home.config.data.model_copy(update={"valid_source": "", "valid_target": ""})
    checkpoint = load_checkpoint(home.model, device="cpu", dtype="fp32")

    def corpus(folder: Path) -> Hashable:
        with (
            mock.patch.object(token_cache, "SAVE_SECONDS", 0.0),
            mock.patch.object(token_cache, "_CHUNK", 16),
        ):
            found = [
                prepare(
                    held_out, checkpoint.source_tokenizer, checkpoint.target_tokenizer, folder / "cache", split=split,
                    max_positions=(64, 64), processes=1,
                )
                for split in ("train", "valid")
            ]  # fmt: skip
        values = [(each.pairs, each.tokens.tobytes(), each.target_lengths.tobytes()) for each in found]
        return hashlib.sha256(repr(values).encode()).hexdigest()

    # A cache that is missing or damaged is built again, so it is always whole.
    return Run(act=lambda folder, mark: mark(corpus(folder)), check=corpus)


def imported(home: Home) -> Run:
    def act(folder: Path, mark: Mark) -> None:
        from translume.interchange.importing import import_model

        import_model(home.exported, folder / "new" / "model")
        mark(model_state(folder / "new" / "model"))

    return Run(act=act, check=lambda folder: model_state(folder / "new" / "model"))


def exported(home: Home, target: str) -> Run:
    """An export is whole or missing: its files are read by programs that have no digests."""

    def act(folder: Path, mark: Mark) -> None:
        from translume.interchange.export import export

        export(home.model, target, folder / "out")
        mark(files_in(folder / "out"))

    return Run(act=act, check=lambda folder: files_in(folder / "out"), foreign=True)


def files_in(folder: Path) -> Hashable:
    return hashlib.sha256(repr(sorted(read_tree(folder).items())).encode()).hexdigest() if folder.exists() else NOTHING


def keys(home: Home) -> Run:
    def check(folder: Path) -> Hashable:
        from translume.serving.access.keys import Keys

        path = folder / "keys.json"
        return tuple(key.name for key in Keys.read(path).all) if path.exists() else NOTHING

    def act(folder: Path, mark: Mark) -> None:
        from translume.serving.access.keys import add_key, remove_key

        for name in ("Ada", "Bert", "Cyd"):
            add_key(folder / "keys.json", name, {})
            mark(check(folder))
        remove_key(folder / "keys.json", "Bert")
        mark(check(folder))

    return Run(act=act, check=check)


def results(home: Home) -> Run:
    """Runs of `translume sweep`."""
    kinds = ("softmax", "mixture")

    def check(folder: Path) -> Hashable:
        from translume.experiments.sweep import read_run

        return tuple(kind for kind in kinds if read_run(folder / "heads" / kind).failure) or NOTHING

    def act(folder: Path, mark: Mark) -> None:
        from translume.atomic import make_folder, write_file
        from translume.experiments import processes, sweep

        tasks = [
            processes.Task(kind, home.config, folder / "heads" / kind, sentences=0, device="cpu", threads=1)
            for kind in kinds
        ]
        for task in tasks:
            make_folder(task.folder)
            write_file(task.folder / "manifest.json", b"{}")

        def failed(tasks: Sequence[object], **more: object) -> Iterator[object]:
            yield from ((task, processes.Run(failure="no time")) for task in tasks)

        with mock.patch.object(sweep, "run_tasks", failed):
            for _ in sweep.run_sweep(tasks, folder / "heads"):
                mark(check(folder))

    return Run(act=act, check=check, by_command=True)


def evaluations(home: Home) -> Run:
    """Scores in the history and on the card of a model."""

    def check(folder: Path) -> Hashable:
        from translume.checkpoint.history import read_history, score_lines

        return tuple(score_lines(read_history(folder / "copy"))) or NOTHING

    def act(folder: Path, mark: Mark) -> None:
        from translume.checkpoint.history import record_evaluation

        for name in ("one", "two", "three"):
            scores = [{"title": "BLEU", "name": "bleu", "signature": "x", "value": 1.0}]
            record_evaluation(folder / "copy", {"source": f"{name}.en", "reference": f"{name}.de", "scores": scores})
            mark(check(folder))

    def before(folder: Path) -> None:
        shutil.copytree(home.model, folder / "copy", ignore=shutil.ignore_patterns("cache", "resume", ".lock"))

    return Run(act=act, check=check, before=before)


def usage(home: Home) -> Run:
    """Counts of keys: a loss of power may lose the last ones, but never the file."""

    def check(folder: Path) -> Hashable:
        from translume.serving.access.quotas import open_counts

        if not (folder / "usage").exists():
            return NOTHING
        counts: Any = open_counts(str(folder / "usage"))
        try:
            return counts.incr("a/requests", 10**6, 0) or NOTHING
        except sqlite3.Error as error:
            raise TranslumeError(f"503: {error}") from None
        finally:
            counts._base.close()

    def act(folder: Path, mark: Mark) -> None:
        from translume.serving.access.quotas import open_counts

        for _ in range(2):
            counts: Any = open_counts(str(folder / "usage"))
            try:
                for _ in range(40):
                    mark(counts.incr("a/requests", 10**6))
                    counts.incr(f"{os.urandom(40).hex()}/requests", 10**6)
            except sqlite3.Error as error:  # the server answers 503
                raise TranslumeError(f"503: {error}") from None
            finally:
                counts._base.close()

    return Run(act=act, check=check, any_state=True)


def bulk(home: Home) -> Run:
    def check(folder: Path) -> Hashable:
        paths = sorted((folder / "out").glob("*.txt")) if (folder / "out").exists() else []
        return frozenset((path.name, path.read_bytes()) for path in paths) or NOTHING

    def act(folder: Path, mark: Mark) -> None:
        from translume.cli import bulk, terminal
        from translume.cli.translate import command

        words = [str(home.model), "--input", str(home.folder / "text*.txt"), "--output", str(folder / "out")]

        def note(text: str) -> None:
            terminal.note(text)
            if " lines" in text:
                mark(check(folder))

        with mock.patch.object(bulk, "note", note), contextlib.redirect_stderr(io.StringIO()):
            if command.main([*words, "--device", "cpu", "--threads", "1"], standalone_mode=False):
                raise TranslumeError("some files failed")  # which was reported for each

    return Run(act=act, check=check, continues=True)


def vocabulary(home: Home) -> Run:
    """The file that `translume tokenizer train` writes, over an older one."""

    def check(folder: Path) -> Hashable:
        from translume.text import Tokenizer

        path = folder / "tokenizer.json"
        return Tokenizer.load(path).digest if path.exists() else NOTHING

    def act(folder: Path, mark: Mark) -> None:
        from translume.checkpoint import load_checkpoint

        for _ in range(2):
            load_checkpoint(home.model, device="cpu", dtype="fp32").source_tokenizer.save(folder / "tokenizer.json")
            mark(check(folder))

    return Run(act=act, check=check)


RUNS: dict[str, Callable[[Home], Run]] = {
    "train": trained,
    "cache": token_cache,
    "keys": keys,
    "results": results,
    "usage": usage,
    "scores": evaluations,
    "tune": functools.partial(trained, tuned=True),
    "bulk": bulk,
    "import": imported,
    "export": functools.partial(exported, target="huggingface"),
    "ctranslate2": functools.partial(exported, target="ctranslate2"),
    "tokenizer": vocabulary,
}


@dataclass(slots=True)
class Recorded:
    """A run that was recorded.

    start: number of operations that made the folder before.  marks: how many operations there were at each report, and
    what was reported.  count: of operations that may fail.
    """

    disk: Disk
    start: int
    marks: list[tuple[int, Hashable]]
    count: int
    error: BaseException | None


def record(run: Run, root: Path, *, fail: int = -1, code: int = 0, locks: bool = True) -> Recorded:
    """Act in the empty folder `root`, and record it.  fail, code: of `Recorder`.  locks: whether they work."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    run.before(root)
    recorder, caught = Recorder(root, fail=fail, code=code, foreign=run.foreign), None
    start = recorder.start()
    marks: list[tuple[int, Hashable]] = []

    def mark(value: Hashable) -> None:
        marks.append((len(recorder.disk.operations), value))

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with contextlib.ExitStack() as stack:
        if not locks:
            stack.enter_context(mock.patch.object(fcntl, "flock", refused))
            stack.enter_context(mock.patch.object(fcntl, "lockf", refused))
        stack.enter_context(recorder.recording())
        try:
            run.act(root, mark)
        except Exception as error:  # whatever it is, `check` judges it
            if isinstance(error, UnseenError):
                raise
            caught = error
    return Recorded(recorder.disk, start, marks, recorder.count, caught)


def verdict(run: Run, root: Path, marks: list[tuple[int, Hashable]], end: int, figures: Figures) -> str:
    """Check the folder that a crash after `end` operations left. Return what is wrong, or an empty string."""
    known = [(0, NOTHING), *marks]
    reported = max(number for number, (place, _) in enumerate(known) if place <= end)
    first = 0 if run.any_state else reported
    try:
        value = run.check(root)
    except TranslumeError as error:
        if "\n" in str(error):
            return f"more than one line: {error}"
        if first:
            return f"refused, but it was saved: {str(error).replace(str(root), '')}"
        figures.refused += 1
        return ""
    except Exception as error:  # users must never see another one
        return f"{type(error).__name__}: {str(error).replace(str(root), '')[:200]}"
    if isinstance(value, frozenset):  # of files that are written one after the other, some without success
        states = known[reported][1], known[-1][1]
        at_least, at_most = (each if isinstance(each, frozenset) else frozenset() for each in states)
        return "" if at_least <= value <= at_most else "other files"
    if value not in [each for _, each in known[first:]]:
        earlier = value in [each for _, each in known]
        return f"{'an older state' if earlier else 'an unknown state'} loads: {str(value)[:60]}"
    return ""


def replay(name: str, run: Run, recorded: Recorded, root: Path, options: argparse.Namespace, figures: Figures) -> None:
    """Check the folders after each number of operations: whole, and torn in `count` ways each."""
    disk, marks = recorded.disk, recorded.marks
    draw = random.Random(f"{options.seed} {name}")
    seen: set[bytes] = set()
    continued: list[tuple[int, Tree]] = []
    for end in range(recorded.start, len(disk.operations) + 1):
        reported = sum(place <= end for place, _ in marks)
        for number in range(options.count + 1):
            tree = disk.torn(end, draw) if number else disk.whole(end)
            if number:
                figures.reorderings += 1
            else:
                figures.prefixes += 1
            key = hashlib.sha256(repr((sorted(tree.items()), reported)).encode()).digest()
            if key in seen:
                continue
            seen.add(key)
            figures.distinct += 1
            write_tree(root, tree)
            if wrong := verdict(run, root, marks, end, figures):
                kind = f"torn {number}" if number else "whole"
                last = disk.operations[end - 1].kind if end else "-"
                figures.faults.append(f"{name}: {kind} after {end} ({last}): {wrong}")
            elif run.continues:
                continued.append((end, tree))
    for end, tree in draw.sample(continued, min(options.continued, len(continued))):
        write_tree(root, tree)
        figures.continued += 1
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                run.act(root, lambda value: None)
                same = run.check(root) == marks[-1][1]
            except Exception as error:  # a fault to report, and the next folder
                figures.faults.append(f"{name}: continued after {end}: {type(error).__name__}: {error}")
                continue
        if not same:
            figures.faults.append(f"{name}: continued after {end}: another end")


def break_operations(
    name: str, run: Run, recorded: Recorded, root: Path, options: argparse.Namespace, figures: Figures
) -> None:
    """Repeat the run with an operation that fails, for each, and with locks that do not work."""
    draw = random.Random(f"{options.seed} {name} errors")
    count = recorded.count if options.errors else 0
    codes = [(number, code) for number in range(count) for code in draw.sample(CODES, min(options.errors, 4))]
    for number, code in [*codes, (-1, 0)]:
        figures.errors += 1
        failed = record(run, root, fail=number, code=code, locks=code != 0)
        what = f"{name}: {errno.errorcode[code]} at {number}" if code else f"{name}: no locks"
        if failed.error is not None:
            figures.ended += 1
            text = str(failed.error)
            kinds = (TranslumeError, OSError) if run.by_command else TranslumeError
            if not isinstance(failed.error, kinds) or "\n" in text:
                figures.faults.append(f"{what}: {type(failed.error).__name__}: {text[:200]}")
                continue
        # What this run reported must not be lost; the next states of the whole run may be there already.
        marks = [(0, value) for _, value in failed.marks]
        marks += [(1, value) for _, value in recorded.marks[len(failed.marks) :]]
        if wrong := verdict(run, root, marks, 0, Figures()):
            figures.faults.append(f"{what}: then {wrong}")


def scratch() -> str | None:
    """Return a folder in memory if there is one, where syncing costs no time."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def tried(name: str, run: Run, root: Path, options: argparse.Namespace) -> Figures:
    """Record a run, replay it and let its operations fail.  options: those of the command."""
    figures, begun = Figures(), time.monotonic()
    recorded = record(run, root)
    if recorded.error is not None:
        raise recorded.error
    figures.operations = len(recorded.disk.operations) - recorded.start
    replay(name, run, recorded, root, options, figures)
    break_operations(name, run, recorded, root, options, figures)
    figures.seconds = round(time.monotonic() - begun, 1)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=",".join(RUNS))
    parser.add_argument("--count", type=int, default=12, help="torn folders after each operation")
    parser.add_argument("--continued", type=int, default=3, help="folders of each run that are continued to the end")
    parser.add_argument("--errors", type=int, default=1, help="errors at each operation, at most 4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    importlib.import_module("torch").set_num_threads(1)
    total: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        (Path(folder) / "home").mkdir()
        home = Home(Path(folder) / "home")
        home.model, home.exported  # noqa: B018 - made before anything is recorded
        for name in options.runs.split(","):
            figures = total[name] = tried(name, RUNS[name](home), Path(folder) / "root", options)
            if not options.json:
                print(name, {key: value for key, value in asdict(figures).items() if key != "faults"}, flush=True)
                for fault in figures.faults[:20]:
                    print("   ", fault, flush=True)
    if options.json:
        print(json.dumps({"seed": options.seed, **{name: asdict(figures) for name, figures in total.items()}}))
    if any(figures.faults for figures in total.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
