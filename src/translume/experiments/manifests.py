"""Recognise manifests of recordings, images and arrays, and measure what the table in init.toml asks for."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, cast

from translume.config import CleaningSettings, DataSettings, FrameSettings, TokenizerSettings
from translume.config.sources import AudioSettings, ImageSettings
from translume.data.lines import read_lines
from translume.data.pairs import read_pairs
from translume.data.tables import first_rows, has_keys, read_objects
from translume.errors import DataError
from translume.experiments import Proposal
from translume.experiments.columns import Columns, texts_of
from translume.experiments.survey import longest_of, survey
from translume.experiments.table import FEW_PAIRS, SPARE, choose, limits, rows_for
from translume.sources import frame_reader
from translume.sources.headers import FileKind, Header, kind_of, read_header

FIRST_ROWS = 20
"""Rows that decide whether a file is a manifest, and files that are decoded."""
MAX_HEADERS = 2_000
"""Files whose headers are read, at equal distances. All files must exist."""
TARGET_NAMES = ("text", "target", "sentence", "transcript", "transcription", "words", "label", "normalized_text")
"""Names of the column with the target, in the order of preference, if a manifest has several columns of text."""
NAMES = {"audio": "recording", "image": "image", "features": "array"}

MAX_WORDS, MIN_TEXTS_FOR_WORDS, RECURRING = 200, 50, 0.99
"""Words are tokens if targets have at most so many different ones, at least so many texts, and this share recurs."""
MAX_CHARACTERS = 5_000_000
"""Characters of targets, of some hundred hours of speech, from which on pieces of words are tokens."""
TIMED = 0.95
"""Share of the sources that must have a position for each token, for the CTC loss."""
MIN_ASPECT = 0.2
"""Minimum width of a character, as a share of the height of an image, if the image is a line of text."""
GREY = 0.1
"""Maximum difference between the colours of a pixel, from 0 to 1, that counts as grey."""
TELEPHONE = 8000
"""Samples a second up to which the upper half of 80 mel bands would be empty."""
MAX_SECONDS = 80
"""Seconds of the longest recording that the largest `model.max_positions` proposed holds."""
BRIEF, LONG_STRING = 300, 10
"""Frames of brief sources; mean number of words from which on a text is judged word by word."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A file of training data whose sources are paths.  columns: for `data.columns`; empty: the defaults."""

    kind: FileKind
    columns: Columns


def find_manifest(source: Path, target: Path | None, columns: Columns = ()) -> Manifest | None:
    """Return what the training files are if their sources are paths of recordings, images or arrays; None for text.

    target: the file of the targets, if they are not in `source`.  columns: of source and target, if they are known.
    Raises DataError if it is not clear which column is the target.
    """
    for rows in _first_rows(source, target):
        names = list(dict.fromkeys(name for row in rows for name in row))
        for name in columns[:1] or names:
            paths = [row[name] for row in rows if row.get(name, "").strip()]
            kinds = Counter(kind_of(source.parent / text) for text in paths)
            kind = next((kind for kind, count in kinds.items() if 2 * count > len(paths)), None)
            if kind is not None:
                known = columns or target is not None
                others = [each for each in names if each != name]
                return Manifest(kind, columns if known else _with_target(source, name, others))
    return None


def _first_rows(source: Path, target: Path | None) -> Iterator[list[dict[int | str, str]]]:
    """Yield the first rows as texts by column; of a TSV or CSV file by the names in its first line, then by number."""
    if target is not None:
        yield [{0: line} for line in islice(read_lines(source), FIRST_ROWS)]
    elif has_keys(str(source)):
        try:
            values = [json.loads(line) for line in islice(read_objects(str(source)), FIRST_ROWS)]
        except (ValueError, RecursionError):  # reading the pairs reports the error
            return
        yield [dict(texts_of(value)) if isinstance(value, dict) else {} for value in values]
    elif rows := first_rows(str(source), FIRST_ROWS):
        header = [each.strip() for each in rows[0]]
        if not any(kind_of(source.parent / each) for each in header if each):
            yield [dict(zip(header, row, strict=False)) for row in rows[1:]]
        yield [dict(enumerate(row)) for row in rows]


def _with_target(file: Path, path: int | str, others: list[int | str]) -> Columns:
    """Return the columns of paths and targets; empty if they are the defaults of [data]."""
    if not others:
        raise DataError(
            f"{file}:1: found a path without a target, expected both, separated by a tab, or a file of targets"
        )
    by_name = {str(each).strip().lower(): each for each in others}
    if len(others) == 1:
        usual = ("source", "target") if has_keys(str(file)) else (0, 1)
        return () if (path, others[0]) == usual else (path, others[0])
    if known := [by_name[name] for name in TARGET_NAMES if name in by_name]:
        return path, known[0]
    each = ", ".join(map(str, others))
    raise DataError(f"{file}:1: found paths in column {path} and others: {each}; choose with --columns {path},NAME")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the files of a manifest are.

    headers: of the files looked at that can be read.  targets: the targets of these files.
    examined: number of files looked at.
    broken: the reason for each file that is missing or cannot be read, by its place in the manifest.
    """

    headers: list[Header]
    targets: list[str]
    examined: int
    broken: dict[str, str]

    def lengths(self, source: FrameSettings) -> list[int]:
        """Return the number of positions that the encoder makes of each of the files looked at."""
        return [source.positions_of(source.window or _frames(header, source)) for header in self.headers]

    def notes(self) -> Iterator[str]:
        """Yield a warning about files that cannot be read, if there are any."""
        for place, reason in islice(self.broken.items(), 1):
            broken = f"{len(self.broken):,} of {self.examined:,} files looked at cannot be read"
            yield f"{place}: {reason}; {broken}, which training drops and counts"

    def refuse_unreadable(self, data: DataSettings) -> None:
        """Raise DataError if not even half of the files looked at can be read."""
        if self.headers and 2 * len(self.broken) <= self.examined:
            return
        for place, reason in self.broken.items():
            more = f"; {len(self.broken):,} of {self.examined:,} files cannot be read" if len(self.broken) > 1 else ""
            hint = "; paths are relative to the folder of the manifest" if reason.endswith("no such file") else ""
            raise DataError(f"{place}: {reason}{hint}{more}")
        raise DataError(f"{(*data.train_source, *data.train)[0]}:1: found no path with a target")


def survey_files(data: DataSettings, count: int) -> Survey:
    """Return what the headers of the files of a manifest say, of 2,000 files at equal distances; all must exist.

    Raises DataError if not even half of the files looked at can be read.
    """
    kind, apart = _kind(data), math.ceil(count / MAX_HEADERS)
    files = Survey(headers=[], targets=[], examined=0, broken={})
    for number, pair in enumerate(read_pairs(data, "train")):
        looked_at = not number % apart or number < FIRST_ROWS or not Path(pair.source).is_file()
        if pair.source and pair.target.strip() and looked_at:
            try:
                files.headers.append(read_header(kind, Path(pair.source)))
                files.targets.append(pair.target)
            except DataError as error:
                files.broken[f"{pair.file}:{pair.line}"] = str(error)
    files = replace(files, examined=len(files.headers) + len(files.broken))
    files.refuse_unreadable(data)
    return files


def _kind(data: DataSettings) -> FileKind:
    return cast(FileKind, data.source.files)  # a string, since parts from outside add kinds; manifests have these


def propose_for_manifest(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` pairs of a path and a text, read from the files in `data`.

    Of `data.source` only the kind is used. Raises DataError if not even half of the files can be read.
    """
    files = survey_files(data, count)
    target = survey((pair.target for pair in read_pairs(data, "train")), "")
    words = target.texts >= MIN_TEXTS_FOR_WORDS and target.types <= MAX_WORDS and target.recurring >= RECURRING
    pieces = not words and not target.unspaced and target.length * count > MAX_CHARACTERS
    # The tokens of pieces of words are not known yet: about a third as many as characters.
    tokens = [text.split() if words else list(" ".join(text.split())[:: 3 if pieces else 1]) for text in files.targets]
    facts = _source_facts(data, files)
    settings = {name: facts[name] for name in ("mels", "height", "color", "values", "max_seconds") if facts.get(name)}
    sources = [_settings(kind=_kind(data), convolutions=many, **settings) for many in (2, 1)]
    fits = [_is_timed(source, files, tokens) for source in sources]
    source = sources[not fits[0] and fits[1]]
    positions = files.lengths(source)
    longest = max(longest_of(positions), longest_of([len(each) for each in tokens]))
    _decode_first(data.model_copy(update={"source": source}), files)
    files.refuse_unreadable(data)
    amount = sum(positions) * count / len(files.headers)
    row = next(rows_for((["few words"] if words else []) + ["files"], amount))
    many = math.ceil(1.25 * max(target.characters, target.types * words)) + 8
    size = many if many > TokenizerSettings().size else None
    if pieces:
        size = max(1_000 if target.length * count < 10 * MAX_CHARACTERS else 5_000, 500 + target.characters)
    fit = limits(longest)
    facts |= fit | {
        "files": True, "source_kind": source.kind, "tight": not fits[0] and fits[1], "timed": any(fits),
        "brief": median(_frames(header, source) for header in files.headers) < BRIEF,
        "shift": max(1, source.size // (3 if facts.get("color") else 1) // 14) if source.kind == "image" else None,
        "value_masks": 2 if source.size >= 20 else int(source.size >= 8), "value_mask_size": 1 + source.size // 6,
        "kind": "word" if words else "bpe" if pieces else "character", "words": words, "pieces": pieces, "size": size,
        "target_types": target.types, "unspaced": target.unspaced, "strings": target.words >= LONG_STRING,
        "batch": max(row["max_tokens"], fit["limit"] + SPARE), "many": count > FEW_PAIRS,
        "beam": 5,
    }  # fmt: skip
    limit = max(CleaningSettings().max_tokens, fit["limit"])
    dropped = sum(each > limit for each in positions)
    long = (
        f"{dropped:,} of {len(positions):,} sources are longer than {limit:,} positions of the encoder, and training "
        "drops them; cut them, recordings at pauses"
    )
    return Proposal(
        choices=choose([row["data"]], amount, facts),
        description=_description(files),
        notes=(*files.notes(), *([long] if dropped else [])),
        size=f"{count:,} {NAMES[source.kind]}" + "s" * (count != 1),
    )


def _settings(**values: object) -> FrameSettings:
    source = DataSettings.model_validate({"source": values}).source
    assert isinstance(source, FrameSettings)
    return source


def _source_facts(data: DataSettings, files: Survey) -> dict[str, Any]:
    """Return facts about recordings, images or arrays: values of settings of [data.source], and what decides others."""
    headers, kind = files.headers, _kind(data)
    if kind == "audio":
        rate, longest = max(header.rate for header in headers), max(header.length for header in headers)
        seconds = float(min(MAX_SECONDS, math.ceil(longest))) if longest > AudioSettings().max_seconds else None
        telephone = rate <= TELEPHONE
        facts = {"mels": 40 if telephone else 80, "telephone": telephone, "rate": rate / 1000, "max_seconds": seconds}
    elif kind == "image":
        lines = median(header.length / header.height for header in headers) >= 1.5
        height = min(64 if lines else 96, max(16, round(median(header.height for header in headers))))
        first = [Path(pair.source) for pair in islice(read_pairs(data, "train"), FIRST_ROWS)]
        return {"height": height, "color": any(h.color for h in headers) and any(map(_is_coloured, first))}
    else:
        facts = {"values": Counter(header.values for header in headers).most_common(1)[0][0]}
    return {"sequence": True, **facts}


def _is_coloured(path: Path) -> bool:
    """Return whether more than 1 % of the pixels are not shades of grey. False for a file that cannot be read."""
    reader = frame_reader(ImageSettings(height=64, color=True))
    assert reader is not None
    try:
        pixels = reader.read(path).reshape(-1, 3)
    except DataError:
        return False
    return bool(((pixels.max(1) - pixels.min(1)) > GREY).mean() > 0.01)


def _frames(header: Header, source: FrameSettings) -> int:
    """Return the number of frames of a file."""
    if isinstance(source, ImageSettings):
        return max(1, round(header.length * source.height / header.height))
    return max(1, int(header.length * source.rate)) if header.kind == "audio" else int(header.length)


def _is_timed(source: FrameSettings, files: Survey, tokens: Sequence[Sequence[str]]) -> bool:
    """Return whether nearly all sources have the positions that the CTC loss needs for their targets.

    A target needs one for each token and one between two equal tokens. An image must be wide enough for its text.
    """
    fits = 0
    for header, positions, target in zip(files.headers, files.lengths(source), tokens, strict=True):
        needed = len(target) + sum(token == following for token, following in pairwise(target))
        narrow = header.kind == "image" and header.length / header.height < MIN_ASPECT * len(target)
        fits += positions >= needed and not narrow
    return fits >= TIMED * len(files.headers)


def _decode_first(data: DataSettings, files: Survey) -> None:
    """Decode the first files, and add those that cannot be read to `files.broken`."""
    reader = frame_reader(data.source)
    assert reader is not None
    for pair in islice(read_pairs(data, "train"), FIRST_ROWS):
        place = f"{pair.file}:{pair.line}"
        if pair.source and place not in files.broken:
            try:
                reader.read(pair.source)
            except DataError as error:
                files.broken[place] = str(error)


def _description(files: Survey) -> str:
    """Return the sizes of the files in words."""
    first = files.headers[0]
    lengths = [header.length for header in files.headers]
    if first.kind == "image":
        return f" of {_range(lengths)} × {_range([header.height for header in files.headers])} pixels"
    if first.kind == "features":
        return f" of {_range(lengths)} frames"
    channels = sorted({header.channels for header in files.headers})
    sides = " and ".join({1: "mono", 2: "stereo"}.get(each, f"{each} channels") for each in channels)
    rates = _range([header.rate / 1000 for header in files.headers], "g")
    return f" of {_range(lengths, '.1f')} seconds, {rates} kHz, {sides}"


def _range(numbers: Sequence[float], form: str = ",.0f") -> str:
    """Return the smallest and the largest number, or the one if they are equal."""
    return " to ".join(dict.fromkeys(f"{each:{form}}" for each in (min(numbers), max(numbers))))
