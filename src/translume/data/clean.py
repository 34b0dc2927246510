"""Clean parallel data in two passes: the first decides which pairs are dropped and why, the second writes them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from translume.config.clean import CleanSettings
from translume.data.cleaning import KEPT
from translume.data.filters import CODE, DROPS, Checked, PairFilters, Texts
from translume.data.fingerprints import groups
from translume.data.held_out import chunks
from translume.data.pairs import Origin, Pair
from translume.data.scripts import refuse_unknown, usual_script
from translume.errors import DataError, refused
from translume.parallel import ProcessLostError, WorkerPool
from translume.text.detection import Lingua

_BLOCK = 4096
_FIRST = 3
"""Blocks of which the scripts are learned."""
_SAMPLE = 1_000_000
"""Pairs of which the ratio of lengths is learned, about."""
_EXAMPLES = 3
_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution, in median distances from the median."""


Scorer = Callable[[Sequence[Texts]], NDArray[Any]]
"""Returns the scores of some pairs [n]."""
Learned = dict[str, str | float]
"""What is learned from the data: the scripts, the median and deviation of the log ratio of lengths, thresholds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """Counts of pairs, and the first examples of each filter (texts truncated to 200 characters).

    read == kept + sum of dropped.
    """

    read: int
    kept: int
    learned: Learned
    dropped: dict[str, int]
    examples: dict[str, list[Pair]]

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        examples = {
            name: [{**pair.to_dict(), "target_file": pair.target_file} for pair in pairs]
            for name, pairs in self.examples.items()
        }
        return {**asdict(self), "examples": examples}

    def lines(self) -> Iterator[str]:
        """Yield the counts and the examples as lines of text."""
        yield f"{self.read:,} pairs read, {self.kept:,} kept, {sum(self.dropped.values()):,} dropped"
        for name, value in self.learned.items():
            yield f"  {name}: {value or 'any' if isinstance(value, str) else f'{value:.3f}'}"
        for name, count in self.dropped.items():
            yield f"  {name}: {count:,} ({count / self.read:.2%})"
            for pair in self.examples[name]:
                yield f"    {pair.shown()}"


class Read(NamedTuple):
    """A pair, and why it cannot be used; empty if it can."""

    pair: Pair
    fault: str


def read_blocks(origin: Origin) -> Iterator[list[Read]]:
    """Yield the pairs of files in blocks. Raises DataError for what cannot be read, but not for a row of a table."""
    faults, of_lines = list[str](), dict[int, str]()

    def pairs() -> Iterator[Pair]:
        for pair in origin.read(faults):
            if faults:
                of_lines[pair.line] = faults.pop()
            yield pair

    for block in chunks(pairs(), _BLOCK):
        yield [Read(pair, of_lines.pop(pair.line, "")) for pair in block]


def decide(
    origin: Origin, settings: CleanSettings, folder: Path, workers: int, progress: Callable[[int], None]
) -> tuple[NDArray[np.int8], Learned]:
    """Apply the filters of `settings` in `workers` processes, and return codes [n]: KEPT, or an index of DROPS.

    folder: where a temporary folder with 28 bytes for each pair is made, and 8 for each of `near_bands`.
    progress: gets the number of pairs that are checked.
    Raises DataError for what cannot be read, a full disk and a process that ended, and SettingsError.
    """
    settings, learned = _with_scripts(origin, settings)
    filters = PairFilters(settings)
    blocks = (
        ([(pair.source, pair.target) for pair, _ in block], [place for place, each in enumerate(block) if each.fault])
        for block in read_blocks(origin)
    )
    try:
        with refused(folder, "cannot be written"), TemporaryDirectory(dir=folder, prefix=".translume-clean-") as place:
            pool: Any = nullcontext() if workers == 1 else WorkerPool(workers, partial(PairFilters, settings))
            with pool:
                checked = map(filters.check, blocks) if workers == 1 else pool.map(PairFilters.check, blocks)
                codes, ratios, fingerprints = _stored(checked, Path(place), progress)
            if "ratio" in settings.filters:
                learned |= _mark_ratios(codes, ratios, settings)
            for name, values in zip(("duplicate", "duplicate_source", "duplicate_target"), fingerprints, strict=False):
                if name in settings.filters:
                    _mark_equal(codes, values, name)
            for values in fingerprints[1:3] if "boilerplate" in settings.filters else ():
                _mark_equal(codes, values, "boilerplate", settings.max_occurrences)
            for values in fingerprints[3:]:
                _mark_equal(codes, values, "near_duplicate")
    except ProcessLostError as lost:
        raise DataError(f"{origin.file}: {lost}, perhaps for lack of memory; --workers N uses fewer") from None
    return codes, learned


def score(
    origin: Origin,
    codes: NDArray[np.int8],
    scorers: Mapping[str, Scorer],
    settings: CleanSettings,
    folder: Path,
    progress: Callable[[int], None],
) -> Learned:
    """Drop pairs that are kept so far, in `codes`, by the filters of models, and return the thresholds.

    scorers: functions of some pairs by the name of the filter, which return scores of which larger ones are better, and
    NaN for a pair to drop.
    folder: where a file with 4 bytes for each pair is made.  progress: gets the number of pairs that are scored.
    Raises DataError if the files have changed, and for a full disk.
    """
    learned: Learned = {}
    for name, scorer in scorers.items():
        with refused(folder, "cannot be written"), TemporaryFile(dir=folder) as file:
            done = 0
            for block in read_blocks(origin):
                rows = np.flatnonzero(codes[done : done + len(block)] == KEPT)
                scores = np.full(len(block), np.inf, np.float32)
                if len(rows):
                    pair_scores = scorer([block[row].pair[:2] for row in rows.tolist()])
                    scores[rows] = np.where(np.isnan(pair_scores), -np.inf, pair_scores)
                file.write(scores.tobytes())
                done += len(block)
                progress(done)
            if done != len(codes):
                raise DataError(f"{origin.file}: changed while it was read")
            file.flush()
            learned[f"{name}_threshold"] = _mark_scores(codes, np.memmap(file, np.float32, "r"), name, settings)
    return learned


def apply(
    origin: Origin,
    codes: NDArray[np.int8],
    learned: Learned,
    keep: Callable[[Pair], object],
    drop: Callable[[Read, str], None],
    progress: Callable[[int], None],
) -> CleanReport:
    """Read the pairs again, call `keep` or `drop` with each, and return the counts.

    codes, learned: what `decide` returned.  drop: gets the name of the filter as well.
    Raises DataError if the files have changed.
    """
    counts = np.bincount(codes[codes != KEPT], minlength=len(DROPS)).tolist()
    dropped = {name: count for name, count in zip(DROPS, counts, strict=True) if count}
    examples = {name: list[Pair]() for name in dropped}
    kept, done = len(codes) - sum(dropped.values()), 0
    for block in read_blocks(origin):
        own = codes[done : done + len(block)].tolist()
        done += len(block)
        if done > len(codes):
            break
        for item, code in zip(block, own, strict=True):
            if code == KEPT:
                keep(item.pair)
                continue
            drop(item, DROPS[code])
            if len(examples[DROPS[code]]) < _EXAMPLES:
                examples[DROPS[code]].append(item.pair.shortened())
        progress(done)
    if done != len(codes):
        raise DataError(f"{origin.file}: changed while it was read")
    return CleanReport(read=done, kept=kept, learned=learned, dropped=dropped, examples=examples)


def _with_scripts(origin: Origin, settings: CleanSettings) -> tuple[CleanSettings, Learned]:
    """Return settings with the scripts of both sides in place of "auto", and the names of these."""
    if "language" in settings.filters:
        for code in filter(None, (settings.source_language, settings.target_language)):
            Lingua().probability("", code)  # an error before hours of work
    if "script" not in settings.filters:
        return settings, {}
    first = [(each.pair.source, each.pair.target) for block in islice(read_blocks(origin), _FIRST) for each in block]
    scripts = {}
    for side, name in enumerate(("source_script", "target_script")):
        script = getattr(settings, name)
        scripts[name] = usual_script([texts[side] for texts in first]) if script == "auto" else script
        if scripts[name]:
            refuse_unknown(scripts[name], f"clean.{name}")
    return settings.model_copy(update=scripts), {**scripts}


def _stored(
    checked: Iterable[Checked], folder: Path, progress: Callable[[int], None]
) -> tuple[NDArray[np.int8], NDArray[np.float32], list[NDArray[np.uint64]]]:
    """Write what is known of the pairs to files, and return it as arrays, all but the codes mapped from the files."""
    codes, done, files = list[NDArray[np.int8]](), 0, list[BinaryIO]()
    with ExitStack() as stack:
        for block in checked:
            codes.append(block.codes)
            rows = [block.ratios, *block.fingerprints]
            files = files or [stack.enter_context((folder / str(number)).open("wb")) for number in range(len(rows))]
            for file, row in zip(files, rows, strict=True):
                file.write(row.tobytes())
            done += len(block.codes)
            progress(done)
    ratios = np.memmap(folder / "0", np.float32, "r")
    return np.concatenate(codes), ratios, [np.memmap(file.name, np.uint64, "r") for file in files[1:]]


def _mark_ratios(codes: NDArray[np.int8], ratios: NDArray[np.float32], settings: CleanSettings) -> dict[str, float]:
    """Drop pairs whose log ratio of lengths is far from the median, and return the median and the deviation."""
    step = math.ceil(len(codes) / _SAMPLE)
    sample = ratios[::step][codes[::step] == KEPT]
    if not len(sample):
        return {}
    median = float(np.median(sample))
    distances = np.abs(sample - median)
    deviation = _TO_DEVIATION * float(np.median(distances))
    limit = settings.max_deviations * deviation or math.inf
    if settings.ratio_quantile:
        limit = float(np.quantile(distances, 1 - settings.ratio_quantile))
    for begin in range(0, len(codes), _SAMPLE):
        own = codes[begin : begin + _SAMPLE]
        own[(own == KEPT) & (np.abs(ratios[begin : begin + _SAMPLE] - median) > limit)] = CODE["ratio"]
    return {"ratio_median": median, "ratio_deviation": deviation}


def _mark_scores(codes: NDArray[np.int8], scores: NDArray[np.float32], name: str, settings: CleanSettings) -> float:
    """Drop kept pairs with a score below the threshold, and return it."""
    threshold, share = getattr(settings, f"min_{name}"), getattr(settings, f"{name}_quantile")
    step = math.ceil(len(codes) / _SAMPLE)
    sample = scores[::step][codes[::step] == KEPT]
    if share and len(sample):
        threshold = np.quantile(sample, share, method="lower")
    for begin in range(0, len(codes), _SAMPLE):
        own, values = codes[begin : begin + _SAMPLE], scores[begin : begin + _SAMPLE]
        own[(own == KEPT) & ((values < threshold) | np.isneginf(values))] = CODE[name]
    return float(threshold)


def _mark_equal(codes: NDArray[np.int8], fingerprints: NDArray[np.uint64], name: str, max_occurrences: int = 0) -> None:
    """Drop pairs with the fingerprint of an earlier one; with `max_occurrences`, all those of which there are more."""
    for rows, first in groups(fingerprints, codes == KEPT):
        counts = np.diff(np.flatnonzero(first), append=len(rows))
        codes[rows[np.repeat(counts, counts) > max_occurrences if max_occurrences else ~first]] = CODE[name]
