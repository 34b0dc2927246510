"""Train and decode with Translume and its peers, one after another, with the same data, time and processor.

    python benchmarks/comparison.py prepare MULTI30K DATA
    python benchmarks/comparison.py run DATA ENVIRONMENTS WORK joeynmt fairseq --minutes 6 --results results.jsonl
    python benchmarks/comparison.py --table benchmarks/comparison/results.jsonl

benchmarks/comparison/ has a folder of each system with all that a user writes: prepare.sh (outside the time limit),
train.sh and translate.sh CHECKPOINT, which translates standard input, and their files. ENVIRONMENTS holds an
environment of Python for each, named as the folder. docs/comparison.md has the results.
"""

import argparse
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent / "comparison"
PEERS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "peers.toml").read_text(encoding="utf-8"))
VOCABULARY = 4000


def prepare(multi30k: Path, data: Path) -> None:
    """Write the texts of Multi30k, a joint vocabulary of SentencePiece, and the texts in its pieces."""
    import sentencepiece

    data.mkdir(parents=True, exist_ok=True)
    for part, name in {"train": "train", "val": "valid", "test_2016_flickr": "test"}.items():
        for language in ("en", "de"):
            path = multi30k / "raw" / f"{part}.{language}"
            text = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
            (data / f"{name}.{language}").write_bytes(text)
    sentencepiece.SentencePieceTrainer.train(
        input=[str(data / "train.en"), str(data / "train.de")], model_prefix=str(data / "pieces"), model_type="bpe",
        vocab_size=VOCABULARY, character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    shutil.copy(data / "pieces.model", data / "pieces.spm")
    model = sentencepiece.SentencePieceProcessor(model_file=str(data / "pieces.model"))
    pieces = [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    (data / "pieces.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    for path in [data / f"{name}.{language}" for name in ("train", "valid", "test") for language in ("en", "de")]:
        lines = path.read_text(encoding="utf-8").splitlines()
        segmented = "".join(" ".join(model.encode(line, out_type=str)) + "\n" for line in lines)
        path.with_name(f"{path.stem}.pieces{path.suffix}").write_text(segmented, encoding="utf-8")


def use_of(group: int) -> tuple[int, float]:
    """Return the resident bytes and the processor seconds of all processes of a process group."""
    pages = ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group:
                ticks += int(fields[11]) + int(fields[12])
                pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), ticks / os.sysconf("SC_CLK_TCK")


class Workplace:
    """The folder in which a system runs: a copy of its files, a link `data`, and the programs of its environment."""

    def __init__(self, peer: str, data: Path, environments: Path, work: Path) -> None:
        self.peer, self.facts, self.folder = peer, PEERS[peer], (work / peer).resolve()
        self.environment = environments / self.facts.get("environment", peer)
        programs = f"{(self.environment / 'bin').resolve()}{os.pathsep}{os.environ['PATH']}"
        self.variables = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(HERE / peer, self.folder, dirs_exist_ok=True)
        if not (self.folder / "data").exists():
            (self.folder / "data").symlink_to(data.resolve())

    def run(
        self,
        words: list[str],
        log: str,
        source: Path | None = None,
        target: Path | None = None,
        limit: float = 3600,
        kill: bool = False,
    ) -> dict[str, Any]:
        """Run a command and return its seconds, peak of resident bytes, exit status, and whether the time was up.

        Then it is asked to end, or killed at once.
        """
        with contextlib.ExitStack() as files:
            errors = files.enter_context((self.folder / log).open("wb"))
            stdin = files.enter_context(source.open("rb")) if source else subprocess.DEVNULL
            stdout = files.enter_context(target.open("wb")) if target else errors
            begin = time.time()
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.variables, stdin=stdin, stdout=stdout, stderr=errors,
                process_group=0,
            )  # fmt: skip
            peak, spent, copied = 0, 0.0, begin
            while process.poll() is None and time.time() - begin < limit:
                used = use_of(process.pid)
                peak, spent = max(peak, used[0]), max(spent, used[1])
                if target is None and time.time() - copied >= 30:
                    copied = self.snapshot(begin)
                time.sleep(0.2)
            seconds, late = time.time() - begin, process.poll() is None
            if target is None:
                self.snapshot(begin)
            for number in (signal.SIGKILL,) if kill else (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(20)
        return {
            "seconds": seconds, "processor": spent, "peak": peak, "status": process.returncode, "late": late,
            "begin": begin,
        }  # fmt: skip

    def snapshot(self, begin: float) -> float:
        """Copy the model of a system that keeps one, and return the time."""
        model = self.folder / self.facts.get("snapshot", "")
        if "snapshot" in self.facts and (model / "manifest.json").exists():
            copy = self.folder / "snapshots" / f"{time.time() - begin:04.0f}"
            try:
                shutil.copytree(
                    model,
                    copy,
                    ignore=shutil.ignore_patterns("resume", "cache", "history*", ".lock"),
                    dirs_exist_ok=True,
                )
            except shutil.Error:  # A file was replaced while it was copied.
                shutil.rmtree(copy)
                return self.snapshot(begin)
        return time.time()

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Return the number, of updates or of seconds, and the path of each checkpoint, in order."""
        pattern = self.facts["checkpoints"]
        form = re.compile(re.escape(pattern).replace(r"\*", r"[^/]*").replace(r"\{\}", r"(\d+)"))
        paths = [path.relative_to(self.folder) for path in self.folder.glob(pattern.replace("{}", "*"))]
        return sorted((int(match[1]), path) for path in paths if (match := form.fullmatch(str(path))))

    def translate(
        self, checkpoint: Path, source: Path, name: str, limit: float = 3600
    ) -> tuple[dict[str, Any], list[str]]:
        """Translate a file with a checkpoint, and return the measurements and the texts."""
        words = str(checkpoint) if self.peer != "sockeye" else checkpoint.suffix.strip(".0")
        target = self.folder / f"{name}.out"
        done = self.run(["bash", "translate.sh", words], f"{name}.log", source, target, limit)
        text = target.read_text(encoding="utf-8")
        return done, [text_of(line) for line in text.removesuffix("\n").split("\n")] if text else []

    def source(self, part: str) -> Path:
        """Return the file to translate: text, or the pieces of it."""
        return self.folder / "data" / (f"{part}.pieces.en" if self.facts.get("pieces") else f"{part}.en")


def text_of(line: str) -> str:
    """Return the text of a line that may be in pieces of SentencePiece."""
    return line.replace(" ", "").replace("\u2581", " ").strip() if "\u2581" in line else line.strip()


def bleu(texts: list[str], data: Path) -> float | None:
    """Return BLEU against the test set, or None if lines are missing."""
    import sacrebleu

    references = (data / "test.de").read_text(encoding="utf-8").splitlines()
    return sacrebleu.corpus_bleu(texts, [references]).score if len(texts) == len(references) else None


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    inside = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in inside if each.is_file() and "optimizer" not in each.name)


def lines_of(peer: str) -> int:
    """Return the number of lines that a user of a system writes: neither blank nor comments."""
    files = [path for path in (HERE / peer).iterdir() if path.is_file()]
    written = [line.strip() for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in written)


def versions(place: Workplace) -> dict[str, str]:
    """Return the versions of Python, of the system, and of torch if it is there."""
    code = (
        "import importlib.metadata as m, platform, sys; print(platform.python_version());"
        "[print(m.version(n) if any(d.metadata['Name'].lower() == n.lower() for d in m.distributions()) else '') "
        "for n in sys.argv[1:]]"
    )
    words = [str(place.environment / "bin/python"), "-c", code, place.facts["package"], "torch"]
    python, system, torch = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[:3]
    return {"python": python, "version": system, "torch": torch}


def measure(place: Workplace, data: Path, minutes: float) -> dict[str, Any]:
    """Train for a time, decode the test set with the last checkpoint, and return the row of a system."""
    row: dict[str, Any] = {"peer": place.peer, **versions(place), "minutes": minutes}
    row["environment"] = size(place.environment)
    if "converts" in place.facts:
        convert(place)
    if (place.folder / "prepare.sh").exists():
        row["prepare_seconds"] = round(place.run(["bash", "-e", "prepare.sh"], "prepare.log")["seconds"], 1)
    checkpoint = Path(place.facts.get("model", "model"))
    if (place.folder / "train.sh").exists():
        done = place.run(["bash", "-e", "train.sh"], "train.log", limit=60 * minutes)
        (place.folder / "begin.json").write_text(json.dumps(done["begin"]))
        row["train_processor_seconds"] = round(done["processor"], 1)
        row["train_peak"], row["train_status"] = done["peak"], None if done["late"] else done["status"]
        # A checkpoint that was being written when the time was up is not complete.
        whole = [each for each in place.checkpoints() if newest(place.folder / each[1]) < done["begin"] + 60 * minutes]
        if not whole:
            return row
        number, checkpoint = whole[-1]
        row["updates"] = updates_of(place, number)
        row["checkpoint"] = {"number": number, "seconds": newest(place.folder / checkpoint) - done["begin"]}
    files = [checkpoint, *map(Path, place.facts.get("needs", []))]
    row["model"] = sum(size(place.folder / path) for path in files)
    first = place.folder / "first.txt"
    first.write_bytes(b"".join(place.source("test").read_bytes().splitlines(keepends=True)[:1]))
    row["start_seconds"] = round(place.translate(checkpoint, first, "first")[0]["seconds"], 2)
    decoded, texts = place.translate(checkpoint, place.source("test"), "test")
    row["decode_processor_seconds"] = round(decoded["processor"], 2)
    row["decode_seconds"], row["decode_peak"] = round(decoded["seconds"], 2), decoded["peak"]
    row["bleu"], row["example"] = bleu(texts, data), texts[:1]
    return row


def newest(path: Path) -> float:
    """Return the time of the last change of a file, or of the files in a folder."""
    return max(each.stat().st_mtime for each in ([path, *path.rglob("*")] if path.is_dir() else [path]))


def updates_of(place: Workplace, number: int) -> int:
    """Return the updates of a checkpoint; of a system whose checkpoints have other numbers, those that it reports."""
    if "updates" in place.facts:
        log = (place.folder / "train.log").read_text(encoding="utf-8")
        return int(re.findall(place.facts["updates"], log)[-1].replace(",", ""))
    return number * int(place.facts.get("interval", 1))


def convert(place: Workplace) -> None:
    """Convert the last checkpoint of another system for one that only decodes, with Translume."""
    other = place.facts["converts"]
    source = place.folder.parent / other
    pattern = PEERS[other]["checkpoints"].replace("{}", "*")
    words = ["bash", "-e", "convert.sh", str(max(source.glob(pattern), key=newest))]
    programs = f"{(place.environment.parent / 'translume-export/bin').resolve()}{os.pathsep}{os.environ['PATH']}"
    with (place.folder / "convert.log").open("wb") as log:
        subprocess.run(
            words, cwd=place.folder, env={**place.variables, "PATH": programs}, stdout=log, stderr=log, check=True
        )


def reach(place: Workplace, data: Path, wanted: float) -> dict[str, Any]:
    """Find the first checkpoint with a BLEU by bisection, as if BLEU only rose, and return its seconds of training."""
    begin = json.loads((place.folder / "begin.json").read_text())
    points: dict[int, float] = {}
    every = place.checkpoints()
    low, high = 0, len(every)
    while low < high:
        middle = (low + high) // 2
        _, texts = place.translate(every[middle][1], place.source("test"), "reach")
        points[middle] = bleu(texts, data) or 0.0
        low, high = (low, middle) if points[middle] >= wanted else (middle + 1, high)
    seconds = newest(place.folder / every[low][1]) - begin if low < len(every) else None
    bleus = {newest(place.folder / every[number][1]) - begin: score for number, score in sorted(points.items())}
    return {"peer": place.peer, "reached": wanted, "seconds_to_bleu": seconds, "points": [*bleus.items()]}


# Each input: what is done to the lines of the source and of the target of 600 pairs, or to the settings.
BAD_TRAINING = {
    "an empty line in the target": lambda source, target: (source, [*target[:5], "", *target[6:]]),
    "one file a line shorter": lambda source, target: (source, [*target[:9], *target[10:]]),
    "a byte that is not UTF-8": lambda source, target: ([*source[:5], source[5] + " \udcff", *source[6:]], target),
    "a pair of 3,000 words": lambda source, target: (
        [*source[:5], " ".join([source[5]] * 300), *source[6:]],
        [*target[:5], " ".join([target[5]] * 300), *target[6:]],
    ),
    "U+2028 in a line": lambda source, target: (
        [*source[:5], source[5].replace(" ", " \u2028 ", 1), *source[6:]],
        target,
    ),
    "a misspelt setting": None,
    "killed, and started again": None,
}
BAD_DECODING = {
    "no line to translate": [],
    "an empty line to translate": ["A man .", "", "A dog ."],
    "a line of 10,000 words": ["A man .", " ".join(["dog"] * 10_000), "A dog ."],
}
SAID = re.compile(
    r"(skip|drop|discard|empty|ignor|too long|longer|invalid|unequal|different|resum|restor|loaded|truncat)[^\n]*", re.I
)


def bad(place: Workplace, data: Path, seconds: float) -> dict[str, Any]:
    """Give a system ten bad inputs, and return what happened to each."""
    folder = place.folder
    (folder / "data").unlink(missing_ok=True)
    found: dict[str, Any] = {}
    for name, change in BAD_TRAINING.items():
        for path in list(folder.iterdir()):
            if path.name not in os.listdir(HERE / place.peer):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(HERE / place.peer, folder, dirs_exist_ok=True)
        spoil(data, folder / "data", change)
        if name == "a misspelt setting":
            for path in folder.iterdir():
                if path.is_file():
                    path.write_text(re.sub("warmup(?!inv)", "warmpu", path.read_text("utf-8")), encoding="utf-8")
        begin = time.time()
        runs: list[dict[str, Any]] = []
        twice = name == "killed, and started again"
        for script in ("prepare.sh", "train.sh", *(["train.sh"] if twice else [])):
            if (folder / script).exists():
                runs.append(place.run(["bash", "-e", script], f"{script}{len(runs)}.log", limit=seconds, kill=twice))
                if runs[-1]["status"] and not runs[-1]["late"]:
                    break
        log = "".join(path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.sh*.log")))
        found[name] = {
            "status": None if runs[-1]["late"] else runs[-1]["status"],
            "traceback": "Traceback (most recent" in log,
            "said": sorted({match[0][:200] for match in SAID.finditer(log)})[:12],
            "last": log.strip().replace("\r", "\n").splitlines()[-1:],
            "checkpoints": [number for number, _ in place.checkpoints()],
            "seconds": round(time.time() - begin, 1),
        }
    return found


def spoil(data: Path, folder: Path, change: Any) -> None:
    """Write 600 pairs with a change of some, raw and in pieces, and what else a system reads."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(data, folder)
    for form in ("train", "train.pieces"):
        pairs = [(data / f"{form}.{side}").read_text("utf-8").splitlines()[:600] for side in ("en", "de")]
        for side, lines in zip(("en", "de"), change(*pairs) if change else pairs, strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{form}.{side}").write_bytes(text.encode("utf-8", "surrogateescape"))


def bad_decoding(place: Workplace, checkpoint: Path) -> dict[str, Any]:
    """Translate bad lines, and return how many lines came out and how it ended."""
    found: dict[str, Any] = {}
    for name, lines in BAD_DECODING.items():
        if place.facts.get("pieces"):
            lines = [line.replace("A ", "▁A ").replace("dog", "▁dog").replace("man", "▁man") for line in lines]
        source = place.folder / "bad.txt"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        done, texts = place.translate(checkpoint, source, "bad", limit=60)
        log = (place.folder / "bad.log").read_text("utf-8", "replace")
        found[name] = {
            "in": len(lines), "out": len(texts), "empty": sum(not text for text in texts), "status": done["status"],
            "late": done["late"], "traceback": "Traceback (most recent" in log, "seconds": round(done["seconds"], 1),
            "last": log.strip().replace("\r", "\n").splitlines()[-1:], "texts": [text[:60] for text in texts],
        }  # fmt: skip
    return found


def tables(results: Path) -> str:
    """Return the tables of a file of results as Markdown; a later row of a system replaces an earlier one."""
    rows: dict[str, dict[str, Any]] = {peer: {} for peer in PEERS}
    for line in results.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows[row["peer"]].update(row)
    rows = {peer: row for peer, row in rows.items() if "version" in row}
    reached = next((row["reached"] for row in rows.values() if "reached" in row), 0)
    first = ["system", "version", "Python", "torch", "environment", "lines", "settings"]
    second = [
        "system", "BLEU", f"seconds to BLEU {reached:g}", "updates", "memory", "sentences/s", "start",
        "decoding memory", "model",
    ]  # fmt: skip
    bad_inputs = [*BAD_TRAINING, *BAD_DECODING]
    parts = [
        table(first, "l", [facts_of(peer, row) for peer, row in rows.items()]),
        table(second, "r", [figures_of(peer, row) for peer, row in rows.items()]),
    ]
    if any("verdicts" in row for row in rows.values()):
        judged = {peer: row["verdicts"] for peer, row in rows.items() if "verdicts" in row}
        cells = [[name, *(each.get(name, "–") for each in judged.values())] for name in bad_inputs]
        parts.append(table(["input", *(PEERS[peer]["name"].split(",")[0] for peer in judged)], "l", cells))
    return "\n".join(parts)


def facts_of(peer: str, row: dict[str, Any]) -> list[str]:
    """Return the cells of a system in the first table."""
    recipe = f", after [theirs]({PEERS[peer]['recipe']})" if "recipe" in PEERS[peer] else ""
    written = ["config.yaml", "config.yml", "config.toml", "train.py", "train.sh", "convert.sh"]
    main_file = next(name for name in written if (HERE / peer / name).exists())
    settings = f"[{main_file}](../benchmarks/comparison/{peer}/{main_file}){recipe}"
    installed = f"{row['environment'] / 1e9:.1f} GB"
    return [
        PEERS[peer]["name"],
        row["version"],
        row["python"],
        row["torch"] or "–",
        installed,
        str(lines_of(peer)),
        settings,
    ]


def figures_of(peer: str, row: dict[str, Any]) -> list[str]:
    """Return the cells of a system in the second table."""
    trained = "updates" in row
    reached = row.get("seconds_to_bleu")
    return [
        PEERS[peer]["name"],
        f"{row['bleu']:.1f}" if row.get("bleu") is not None else "–",
        f"{reached:.0f}"
        if reached
        else "–"
        if trained and row["bleu"] >= 10
        else "not reached"
        if trained
        else "decodes only",
        f"{row['updates']:,}" if trained else "decodes only",
        f"{row['train_peak'] / 2**30:.2f} GiB" if trained else "decodes only",
        f"{1000 / row['decode_seconds']:.0f}" if row.get("decode_seconds") else "–",
        f"{row['start_seconds']:.1f} s" if "start_seconds" in row else "–",
        f"{row['decode_peak'] / 2**30:.2f} GiB" if "decode_peak" in row else "–",
        f"{row['model'] / 1e6:.1f} MB" if "model" in row else "–",
    ]


def table(heads: list[str], align: str, rows: list[list[str]]) -> str:
    """Return a table of Markdown whose columns after the first are aligned to the left (l) or the right (r)."""
    rule = ["---", *(["---:" if align == "r" else "---"] * (len(heads) - 1))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *rows))


def main() -> None:
    """Run a part of the comparison, or print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=HERE / "results.jsonl", help="results to print as Markdown")
    commands = parser.add_subparsers(dest="command")
    first = commands.add_parser("prepare", help="write the data")
    first.add_argument("multi30k", type=Path)
    first.add_argument("data", type=Path)
    for name, text in {
        "run": "train and decode", "reach": "seconds to a BLEU", "bad": "training with bad input",
        "lines": "decoding of bad lines",
    }.items():  # fmt: skip
        command = commands.add_parser(name, help=text)
        for folder in ("data", "environments", "work"):
            command.add_argument(folder, type=Path)
        command.add_argument("peers", nargs="*", choices=list(PEERS), default=list(PEERS))
        command.add_argument("--results", type=Path, required=True, help="JSON lines, to which the rows are added")
        command.add_argument("--minutes", type=float, default=6, help="time of training")
        command.add_argument("--bleu", type=float, default=10, help="for reach")
    given = parser.parse_args()
    if given.command is None:
        print(tables(given.table), end="")
    elif given.command == "prepare":
        prepare(given.multi30k, given.data)
    else:
        for peer in given.peers:
            place = Workplace(peer, given.data, given.environments, given.work)
            if given.command == "run":
                row = measure(place, given.data, given.minutes)
            elif given.command == "reach":
                row = reach(place, given.data, given.bleu)
            elif given.command == "bad":
                row = {"peer": peer, "bad": bad(place, given.data, 60 * given.minutes)}
            else:
                every = [path for _, path in place.checkpoints()] if "checkpoints" in place.facts else [Path("model")]
                row = {"peer": peer, "lines": bad_decoding(place, every[-1])}
            with given.results.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")


if __name__ == "__main__":
    main()
