"""Measure the filters of `translume data clean`: what they find of planted noise, their speed, and a large corpus.

The noise is planted with a seed in a share of the pairs: misaligned (the target of another pair), language (a target in
a third language), copied (the source as the target) and truncated (the first 20 to 70 % of the words of a target).
For each filter, applied alone: the share of each kind that it drops (recall), how much of what it drops was planted
(precision), and the share of the other pairs that it drops. With --ratios, for several thresholds of `ratio`.

    python benchmarks/cleaning.py SOURCE TARGET FOREIGN --codes en de [--noise 0.3] [--lines N]
        [--ratios | --only NAME ... | --dual FORWARD BACKWARD] [--train FOLDER] [--json]
    python benchmarks/cleaning.py SOURCE TARGET --speed [--processes 1 2] [--lines N] [--json]
    python benchmarks/cleaning.py SOURCE TARGET --large 10000000 [--processes 2] [--json]

--speed: pairs per second of each filter alone, with each number of processes, by wall and by processor time.
--large: seconds, processor time and the peak private memory of all processes, for the usual filters on so many pairs,
each made of two drawn from the files.  --only: these filters.  --dual: the filter `dual` with these models after the
usual ones and `language`, for several thresholds.  --train FOLDER: write the noisy files there and print
the commands that clean them, train on both, and compare BLEU.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from translume.config import DataSettings
from translume.config.clean import FILTERS, OF_MODELS, USUAL, CleanSettings
from translume.data.clean import decide, score
from translume.data.cleaning import KEPT
from translume.data.evaluation_files import settings_for_files
from translume.data.lines import read_lines
from translume.data.pairs import Origin, origins

SHORT = bool(os.environ.get("TRANSLUME_SHORT"))
NOISE = ("misaligned", "language", "copied", "truncated")
CLEAN = "clean"
DUAL = {
    **{f"and dual, least {x}": {"min_dual": x} for x in (0.0003, 0.001, 0.003, 0.01, 0.03)},
    **{f"and dual, quantile {x}": {"dual_quantile": x} for x in (0.05, 0.1, 0.15, 0.2, 0.3)},
}
"""Thresholds of `dual`."""


def planted(
    sources: list[str], targets: list[str], foreign: list[str], share: float, seed: int
) -> tuple[list[str], list[str]]:
    """Return the targets with noise in a share of them, and the kind of each line."""
    draw = random.Random(seed)
    found, kinds = list(targets), [CLEAN] * len(targets)
    for place in draw.sample(range(len(targets)), round(share * len(targets))):
        kind = draw.choice(NOISE)
        words = targets[place].split()
        found[place] = {
            "misaligned": targets[draw.randrange(len(targets))],
            "language": draw.choice(foreign),
            "copied": sources[place],
            "truncated": " ".join(words[: max(1, int(draw.uniform(0.2, 0.7) * len(words)))]),
        }[kind]
        kinds[place] = kind if found[place] != targets[place] else CLEAN
    return found, kinds


def decided(
    folder: Path, sources: list[str], targets: list[str], processes: int, settings: CleanSettings
) -> NDArray[np.int8]:
    """Return what the filters of `settings` decide."""
    files = [folder / "noisy.source", folder / "noisy.target"]
    for file, lines in zip(files, (sources, targets), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return decide(origin_of(folder), settings, folder, processes, lambda done: None)[0]


def origin_of(folder: Path) -> Origin:
    """Return the noisy files in a folder."""
    files = [folder / "noisy.source", folder / "noisy.target"]
    (origin,) = origins(settings_for_files(files, DataSettings()), "train")
    return origin


def quality(kinds: Sequence[str], codes: Any) -> dict[str, float]:
    """Return the recall of each kind of noise, the precision, and the share of clean pairs that are dropped."""
    dropped, kind = codes != KEPT, np.array(kinds)
    shares = {name: float(dropped[kind == name].mean()) for name in (*NOISE, CLEAN)}
    return {**shares, "precision": float((kind[dropped] != CLEAN).mean()) if dropped.any() else float("nan")}


def cases(codes: Sequence[str], ratios: bool, only: Sequence[str] = ()) -> dict[str, CleanSettings]:
    """Return the settings to measure, by name: each filter alone, the usual ones and all of them."""
    languages: dict[str, Any] = {"source_language": codes[0], "target_language": codes[1]} if codes else {}
    if ratios:
        settings = {
            f"ratio, {x} deviations": CleanSettings(filters=("ratio",), max_deviations=x)
            for x in (2.0, 3.0, 4.0, 5.0, 6.0)
        }
        return settings | {"ratio, quantile 0.1": CleanSettings(filters=("ratio",), ratio_quantile=0.1)}
    names = [name for name in FILTERS if (languages or name != "language") and name not in OF_MODELS]
    every: dict[str, tuple[str, ...]] = {name: (name,) for name in names}
    every |= {"usual": USUAL} | ({"usual and language": (*USUAL, "language")} if languages else {})
    return {
        name: CleanSettings(filters=filters, **languages) for name, filters in every.items() if name in (only or every)
    }


def dual_rows(
    folder: Path,
    sources: list[str],
    noisy: list[str],
    kinds: Sequence[str],
    codes: Sequence[str],
    models: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the quality of the usual filters and `language`, and with `dual` after them, for several thresholds."""
    from translume.translator import Translator
    from translume.translator.pair_scores import dual_scorer

    settings = CleanSettings(filters=(*USUAL, "language"), source_language=codes[0], target_language=codes[1])
    kept = decided(folder, sources, noisy, 1, settings)
    rows = [{"filter": "usual and language", **quality(kinds, kept)}]
    scorer, known = dual_scorer(*map(Translator.load, models)), dict[Any, float]()

    def remembered(pairs: Sequence[Any]) -> Any:
        new = [pair for pair in pairs if pair not in known]
        known.update(zip(new, scorer(new) if new else (), strict=True))
        return np.array([known[pair] for pair in pairs])

    for name, values in DUAL.items():
        found, changed = kept.copy(), settings.model_copy(update=values)
        learned = score(origin_of(folder), found, {"dual": remembered}, changed, folder, lambda done: None)
        rows.append({"filter": name, **quality(kinds, found), **learned})
    return rows


def write_large(folder: Path, sources: list[str], targets: list[str], pairs: int) -> list[Path]:
    """Write pairs made of two drawn with a seed, of which one in ten is repeated."""
    files = [folder / "large.en", folder / "large.de"]
    draw = np.random.default_rng(5)
    with files[0].open("w", encoding="utf-8") as one, files[1].open("w", encoding="utf-8") as other:
        for begin in range(0, pairs, 100_000):
            count = min(100_000, pairs - begin)
            drawn = draw.integers(0, len(sources), (count, 2))
            drawn[count - count // 10 :] = drawn[: count // 10]
            for file, texts in ((one, sources), (other, targets)):
                file.writelines(f"{texts[a]} {texts[b]}\n" for a, b in drawn.tolist())
    return files


def memory_of(parent: int) -> int:
    """Return the private memory of a process and its children in bytes."""
    total, waiting = 0, [parent]
    while waiting:
        number = waiting.pop()
        try:
            status = Path(f"/proc/{number}/status").read_text()
            waiting += map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))
    return total * 1024


def processor_time() -> float:
    """Return the seconds of processors that this process and its ended children have used."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def large(folder: Path, sources: list[str], targets: list[str], pairs: int, processes: int) -> dict[str, Any]:
    """Return the time and memory of the command on a large corpus."""
    files = write_large(folder, sources, targets, pairs)
    began, before, most = time.perf_counter(), processor_time(), 0
    words = ["data", "clean", *map(str, files), "--out", str(folder / "new"), "--workers", str(processes), "--json"]
    with subprocess.Popen([sys.executable, "-m", "translume", *words], stdout=subprocess.PIPE, text=True) as running:
        while running.poll() is None:
            most = max(most, memory_of(running.pid))
            time.sleep(0.2)
        assert running.stdout is not None
        report = json.loads(running.stdout.read())
    seconds, used = time.perf_counter() - began, processor_time() - before
    return {"pairs": pairs, "processes": processes, "seconds": seconds, "cpu_seconds": used,
            "pairs_per_second": pairs / seconds,
            "peak_mib": most / 2**20, "kept": report["kept"], "dropped": report["dropped"]}  # fmt: skip


def speeds(
    folder: Path, sources: list[str], targets: list[str], processes: list[int], settings: dict[str, CleanSettings]
) -> list[dict[str, Any]]:
    """Return the pairs per second of each filter alone; "reading" has one that takes no time."""
    rows = []
    for name, chosen in {"reading": CleanSettings(filters=("length",)), **settings}.items():
        row: dict[str, Any] = {"filter": name}
        few = 2000 if "language" in chosen.filters else len(sources)
        for count in processes:
            began, used = time.perf_counter(), processor_time()
            decided(folder, sources[:few], targets[:few], count, chosen)
            row[f"{count}"] = few / (time.perf_counter() - began)
            row[f"{count}, by processor time"] = few / (processor_time() - used)
        rows.append(row)
    return rows


def write_training(folder: Path, sources: list[str], noisy: list[str], codes: Sequence[str]) -> None:
    """Write noisy files and print the commands that clean them, train on both, and compare BLEU."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, lines in (("source", sources), ("target", noisy)):
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    languages = f" --from {codes[0]} --to {codes[1]}" if codes else ""
    print(f"translume data clean {folder}/train.source {folder}/train.target --out {folder}/clean{languages}")
    for name, place in (("noisy", folder), ("clean", folder / "clean")):
        files = f"--set data.train_source={place}/train.source --set data.train_target={place}/train.target"
        print(f"translume train CONFIG.toml --out models/{name} {files}")
        print(f"translume evaluate models/{name} TEST.source TEST.target")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?")
    parser.add_argument("target", nargs="?")
    parser.add_argument("foreign", nargs="?")
    parser.add_argument("--codes", nargs=2, default=())
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lines", type=int, default=2000 if SHORT else None)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--ratios", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--large", type=int)
    parser.add_argument("--dual", nargs=2)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.target is None:
        print("skipped: expected SOURCE TARGET [FOREIGN]")
        return
    sources, targets = (list(islice(read_lines(path), options.lines)) for path in (options.source, options.target))
    settings = cases(options.codes, options.ratios, options.only)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if options.large:
            rows = [large(folder, sources, targets, options.large, options.processes[-1])]
        elif options.speed:
            rows = speeds(folder, sources, targets, options.processes, settings)
        else:
            if options.foreign is None:
                parser.error("expected FOREIGN, a file of a third language")
            foreign = list(islice(read_lines(options.foreign), options.lines))
            noisy, kinds = planted(sources, targets, foreign, options.noise, options.seed)
            if options.train:
                write_training(options.train, sources, noisy, options.codes)
                return
            rows = []
            if options.dual:
                rows, settings = dual_rows(folder, sources, noisy, kinds, options.codes, options.dual), {}
            for name, each in settings.items():
                found = quality(kinds, decided(folder, sources, noisy, 1, each))
                rows.append({"filter": name, "planted": 1 - kinds.count(CLEAN) / len(kinds), **found})
    if options.json:
        print(json.dumps(rows))
        return
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(f"{each:.4g}" if isinstance(each, float) else str(each) for each in row.values()))


if __name__ == "__main__":
    main()
