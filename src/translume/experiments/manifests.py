"""Recognise manifests of recordings, images and arrays, and propose settings for them: docs/init.md has the table."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Literal

from translume.config import CleaningSettings, DataSettings, FrameSettings, ModelSettings, TokenizerSettings
from translume.config.sources import AudioSettings, ImageSettings
from translume.data.lines import read_lines
from translume.data.pairs import read_pairs
from translume.data.tables import first_rows, has_keys, read_objects
from translume.errors import DataError
from translume.experiments import Choice, Proposal
from translume.experiments.survey import FEW_PAIRS, SPARE, Columns, Side, longest_of, positions_for, survey, texts_of
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
LONG_STRING = 10
"""Mean number of words from which on a text is judged word by word."""


@dataclass(frozen=True, slots=True)
class Size:
    """A row of the table: the model for at most `positions` positions of the encoder in the training data.

    The first rows are those of recipes/fsdd.toml and recipes/an4.toml; those of 256 and 512 follow ESPnet's
    Transformers for 100 and 960 hours of LibriSpeech, which have 12 layers in the encoder and 6 in the decoder.
    ctc_weight: of the loss, where CTC is possible.  encoding: of positions.
    """

    positions: float
    width: int
    feed_forward: int
    encoder_layers: int
    decoder_layers: int
    attention_heads: int
    dropout: float
    updates: int
    max_tokens: int
    learning_rate: float
    warmup_updates: int
    ctc_weight: float = 0.3
    encoding: str = ModelSettings().positions


# positions, width, feed-forward, layers, heads, dropout, updates, positions of a batch, rate, warm-up, CTC, encoding
SIZES = (
    Size(2_000_000, 144, 576, 6, 2, 4, 0.25, 5_000, 3_000, 2e-3, 600, 0.5, "rotary"),
    Size(10_000_000, 256, 1024, 8, 4, 4, 0.1, 40_000, 8_192, 1e-3, 4_000),
    Size(math.inf, 512, 2048, 12, 6, 8, 0.1, 100_000, 24_576, 7e-4, 10_000),
)
WORDS = Size(5_000_000, 112, 448, 4, 2, 4, 0.15, 5_000, 3_000, 2e-3, 400)
"""The model for targets of few different words."""


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
    rows = _first_rows(source, target)
    if not rows:
        return None
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns[:1] or names:
        kind = _kind_of_paths(source, [row.get(name, "") for row in rows])
        if kind is None:
            continue
        if columns or target is not None:
            return Manifest(kind, columns)
        return Manifest(kind, _with_target(source, name, [each for each in names if each != name]))
    return None


def _first_rows(source: Path, target: Path | None) -> list[dict[int | str, str]]:
    """Return the first rows as texts by column; named by the first line of a TSV or CSV file if it has no path."""
    file = str(source)
    if target is not None:
        return [{0: line} for line in islice(read_lines(file), FIRST_ROWS)]
    if has_keys(file):
        found = []
        for line in islice(read_objects(file), FIRST_ROWS):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):  # reading the pairs reports the error
                return []
            found.append(dict[int | str, str](texts_of(value)) if isinstance(value, dict) else {})
        return found
    rows = first_rows(file, FIRST_ROWS)
    header = rows[0] if rows else []
    if len(rows) > 1 and not any(kind_of(source.parent / each) for each in header if each.strip()):
        names = [each.strip() for each in header]
        named = [dict[int | str, str](zip(names, row, strict=False)) for row in rows[1:]]
        if any(_kind_of_paths(source, [row.get(name, "") for row in named]) for name in names):
            return named
    return [dict(enumerate(row)) for row in rows]


def _kind_of_paths(manifest: Path, texts: Sequence[str]) -> FileKind | None:
    """Return the kind of most of the files that texts name, if most texts name one."""
    given = [text for text in texts if text.strip()]
    kinds = Counter(kind_of(manifest.parent / text) for text in given)
    kind, count = kinds.most_common(1)[0] if kinds else (None, 0)
    return kind if 2 * count > len(given) else None


def _with_target(file: Path, path: int | str, others: list[int | str]) -> Columns:
    """Return the columns of paths and targets; empty if they are the defaults of [data]."""
    if not others:
        raise DataError(
            f"{file}:1: found a path without a target, expected both, separated by a tab, or a file of targets"
        )
    known = [name for name in TARGET_NAMES for each in others if str(each).strip().lower() == name]
    if len(others) > 1 and not known:
        each = ", ".join(map(str, others))
        raise DataError(f"{file}:1: found paths in column {path} and others: {each}; choose with --columns {path},NAME")
    by_name = {str(each).strip().lower(): each for each in others}
    target = by_name[known[0]] if len(others) > 1 else others[0]
    usual = ("source", "target") if has_keys(str(file)) else (0, 1)
    return () if (path, target) == usual and len(others) == 1 else (path, target)


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

    def positions(self, source: FrameSettings) -> int:
        """Return the number of positions that the encoder makes of all files looked at."""
        return sum(_positions(header, source) for header in self.headers)

    def notes(self) -> Iterator[str]:
        """Yield a warning about files that cannot be read, if there are any."""
        if self.broken:
            place, reason = next(iter(self.broken.items()))
            yield (
                f"{place}: {reason}; {len(self.broken):,} of {self.examined:,} files looked at cannot be read, "
                "which training drops and counts"
            )


def survey_files(data: DataSettings, count: int) -> Survey:
    """Return what the headers of the files of a manifest say, of 2,000 files at equal distances; all must exist.

    Raises DataError if not even half of the files looked at can be read.
    """
    kind, apart = _kind(data), math.ceil(count / MAX_HEADERS)
    found = Survey(headers=[], targets=[], examined=0, broken={})
    examined = 0
    for number, pair in enumerate(read_pairs(data, "train")):
        if not pair.source or not pair.target.strip():
            continue
        if number % apart and number >= FIRST_ROWS and Path(pair.source).is_file():
            continue
        examined += 1
        try:
            header = read_header(kind, Path(pair.source))
        except DataError as error:
            found.broken[f"{pair.file}:{pair.line}"] = str(error)
            continue
        found.headers.append(header)
        found.targets.append(pair.target)
    found = replace(found, examined=examined)
    _refuse_unreadable(data, found)
    return found


def _refuse_unreadable(data: DataSettings, found: Survey) -> None:
    if found.headers and 2 * len(found.broken) <= found.examined:
        return
    if not found.broken:
        raise DataError(f"{(*data.train_source, *data.train)[0]}:1: found no path with a target")
    place, reason = next(iter(found.broken.items()))
    more = f"; {len(found.broken):,} of {found.examined:,} files cannot be read" if len(found.broken) > 1 else ""
    hint = "; paths are relative to the folder of the manifest" if reason.endswith("no such file") else ""
    raise DataError(f"{place}: {reason}{hint}{more}")


def propose_for_manifest(data: DataSettings, count: int) -> Proposal:
    """Return the proposal for `count` pairs of a path and a text, read from the files in `data`.

    Of `data.source` only the kind is used. Raises DataError if not even half of the files can be read.
    """
    found = survey_files(data, count)
    target = survey((pair.target for pair in read_pairs(data, "train")), "")
    units = units_of(target, count)
    tokens = [_tokens(text, units) for text in found.targets]
    source, whys = choose_source(data, found, tokens)
    longest = max(
        longest_of(Counter(_positions(header, source) for header in found.headers)),
        longest_of(Counter(map(len, tokens))),
    )
    timed = _is_timed(source, found, tokens)
    positions = found.positions(source) * count / len(found.headers)
    size = next(size for size in SIZES if positions <= size.positions)
    size = WORDS if units == "word" and positions <= WORDS.positions else size
    data = data.model_copy(update={"source": source})
    _decode_first(data, found)
    _refuse_unreadable(data, found)
    choices = (
        *(Choice(f"data.source.{name}", getattr(source, name), why=why) for name, why in {"kind": "", **whys}.items()),
        *_limits(longest),
        *_tokenizer(units, target, count),
        *_model(size, longest),
        *_training(size, target, longest, count, timed=timed),
        Choice("evaluation.metrics", _metrics(units, target)),
        Choice("decoding.beam", 5, why="larger is slower and seldom better"),
        *((Choice("decoding.ctc_weight", 0.5, why="0 is faster and less accurate"),) if timed else ()),
    )
    name = NAMES[source.kind]
    return Proposal(
        choices=choices,
        description=_description(found),
        notes=tuple(_notes(found, source, longest)),
        size=f"{count:,} {name}" + ("" if count == 1 else "s"),
    )


def _kind(data: DataSettings) -> FileKind:
    kinds: dict[str, FileKind] = {"whisper": "audio", "audio": "audio", "image": "image", "features": "features"}
    return kinds[data.source.kind]


Units = Literal["word", "character", "bpe"]


def units_of(target: Side, count: int) -> Units:
    """Return the kind of tokens for targets: words if there are few, else characters, or pieces of many texts."""
    if target.texts >= MIN_TEXTS_FOR_WORDS and target.types <= MAX_WORDS and target.recurring >= RECURRING:
        return "word"
    return "bpe" if target.length * count > MAX_CHARACTERS and not target.unspaced else "character"


def _tokens(text: str, units: Units) -> list[str]:
    """Return the tokens of a text; of pieces of words, which are not known yet, about as many."""
    if units == "word":
        return text.split()
    return list(" ".join(text.split())[:: 1 if units == "character" else 3])


def choose_source(
    data: DataSettings, found: Survey, tokens: Sequence[Sequence[str]]
) -> tuple[FrameSettings, dict[str, str]]:
    """Return [data.source], and the names of its settings that are printed, each with the reason."""
    values: dict[str, object] = {"kind": _kind(data)}
    whys: dict[str, str] = {}

    def choose(name: str, value: object, why: str = "") -> None:
        values[name] = value
        whys[name] = why

    if values["kind"] == "audio":
        _choose_audio(found, choose)
    elif values["kind"] == "image":
        _choose_image(data, found, choose)
    else:
        widths = Counter(header.values for header in found.headers)
        choose("values", widths.most_common(1)[0][0])
    source = _settings(values)
    fits = (many for many in (2, 1) if _is_timed(_settings({**values, "convolutions": many}), found, tokens))
    if next(fits, 2) == 1:
        choose("convolutions", 1, "so that there is a position for each token")
    if values["kind"] == "image":
        choose("shift", max(1, source.size // (3 if values.get("color") else 1) // 14), "pixels by which images move")
    else:
        few = median(_frames(header, source) for header in found.headers) < 300
        choose("time_masks", 1 if few else 2, "SpecAugment: stretches of time that are hidden")
        choose("time_mask_frames", 20 if few else 40)
        choose("value_masks", 2 if source.size >= 20 else 1 if source.size >= 8 else 0)
        choose("value_mask_size", 1 + source.size // 6)
        choose("speed", 0.1, "sources are made up to 10 % slower or faster")
    return _settings(values), whys


def _settings(values: Mapping[str, object]) -> FrameSettings:
    source = DataSettings.model_validate({"source": values}).source
    assert isinstance(source, FrameSettings)
    return source


def _choose_audio(found: Survey, choose: Callable[..., None]) -> None:
    highest = max(header.rate for header in found.headers)
    choose("mels", 40 if highest <= TELEPHONE else 80, f"for {highest / 1000:g} kHz" if highest <= TELEPHONE else "")
    longest = max(header.length for header in found.headers)
    if longest > AudioSettings().max_seconds:
        choose("max_seconds", float(min(MAX_SECONDS, math.ceil(longest))), "longer recordings are dropped, and counted")


def _choose_image(data: DataSettings, found: Survey, choose: Callable[..., None]) -> None:
    lines = median(header.length / header.height for header in found.headers) >= 1.5
    height = min(64 if lines else 96, max(16, round(median(header.height for header in found.headers))))
    choose("height", height, "to which all images are scaled")
    first = islice(read_pairs(data, "train"), FIRST_ROWS)
    if any(header.color for header in found.headers) and any(_is_coloured(Path(pair.source)) for pair in first):
        choose("color", True, "some images have colours")


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
    if header.kind == "audio":
        return max(1, int(header.length * 100))
    if header.kind == "image":
        assert isinstance(source, ImageSettings)
        return max(1, round(header.length * source.height / header.height))
    return int(header.length)


def _positions(header: Header, source: FrameSettings) -> int:
    """Return the number of positions that the encoder makes of a file, or of a window."""
    return source.positions_of(source.window or _frames(header, source))


def _is_timed(source: FrameSettings, found: Survey, tokens: Sequence[Sequence[str]]) -> bool:
    """Return whether nearly all sources have the positions that the CTC loss needs for their targets.

    A target needs one for each token and one between two equal tokens. An image must be wide enough for its text.
    """
    fits = 0
    for header, target in zip(found.headers, tokens, strict=True):
        needed = len(target) + sum(one == other for one, other in pairwise(target))
        fits += _positions(header, source) >= needed and (
            header.kind != "image" or header.length / header.height >= MIN_ASPECT * len(target)
        )
    return fits >= TIMED * len(found.headers)


def _decode_first(data: DataSettings, found: Survey) -> None:
    """Decode the first files, and add those that cannot be read to `found.broken`."""
    reader = frame_reader(data.source)
    assert reader is not None
    for pair in islice(read_pairs(data, "train"), FIRST_ROWS):
        place = f"{pair.file}:{pair.line}"
        if pair.source and place not in found.broken:
            try:
                reader.read(pair.source)
            except DataError as error:
                found.broken[place] = str(error)


def _limits(longest: int) -> Iterable[Choice]:
    if longest > CleaningSettings().max_tokens:
        why = "positions of the encoder; longer sources are dropped, and counted"
        yield Choice("data.cleaning.max_tokens", positions_for(longest) - SPARE, why=why)


def _tokenizer(units: Units, target: Side, count: int) -> Iterable[Choice]:
    why = f"{target.types:,} different words" if units == "word" else ""
    yield Choice("tokenizer.kind", units, why=why)
    if units == "bpe":
        vocabulary = 1_000 if target.length * count < 10 * MAX_CHARACTERS else 5_000
        yield Choice("tokenizer.size", max(vocabulary, 500 + target.characters))
        return
    many = math.ceil(1.25 * max(target.characters, target.types if units == "word" else 0)) + 8
    if many > TokenizerSettings().size:
        yield Choice("tokenizer.size", many)
    yield Choice("tokenizer.unknown", "token", why="bytes are meaningless for speech or images")


def _model(size: Size, longest: int) -> Iterable[Choice]:
    for name in ("width", "feed_forward", "encoder_layers", "decoder_layers", "attention_heads", "dropout"):
        yield Choice(f"model.{name}", getattr(size, name))
    if size.encoding != ModelSettings().positions:
        yield Choice("model.positions", size.encoding)
    if positions_for(longest) > ModelSettings().max_positions:
        yield Choice("model.max_positions", positions_for(longest), why="for the length of these sources")
    yield Choice("model.head.tie", "target", why="weights shared by the target's embedding and the output")


def _training(size: Size, target: Side, longest: int, pairs: int, *, timed: bool) -> Iterable[Choice]:
    every = max(100, size.updates // 20)
    yield Choice("training.updates", size.updates)
    why = "positions in a batch; less if memory is short"
    yield Choice("training.max_tokens", max(size.max_tokens, positions_for(longest)), why=why)
    yield Choice("training.learning_rate", size.learning_rate)
    yield Choice("training.warmup_updates", size.warmup_updates)
    yield Choice("training.label_smoothing", 0.1)
    if timed:
        why = "attention alone learns slowly which part belongs to which token"
        yield Choice("training.ctc_weight", size.ctc_weight, why=why)
    yield Choice("training.validate_every", every)
    yield Choice("training.save_every", every)
    why = "the model is the mean of the last 5 saved, unless the best is clearly better"
    yield Choice("training.average_last", 5, why=why)
    if pairs > FEW_PAIRS:
        yield Choice("training.patience", 10, why="stop after 10 validations without improvement")
    yield Choice("training.metric", "cer" if target.unspaced else "wer")


def _metrics(units: Units, target: Side) -> tuple[str, ...]:
    """Return the metrics of an evaluation."""
    if target.unspaced:
        return ("cer",)
    if units == "word" and target.words < LONG_STRING:
        return ("exact_match", "wer")
    return ("wer", "cer")


def _description(found: Survey) -> str:
    """Return the sizes of the files in words."""
    first = found.headers[0]
    lengths = sorted(header.length for header in found.headers)
    if first.kind == "image":
        heights = sorted(header.height for header in found.headers)
        return f" of {_range(lengths)} × {_range(heights)} pixels"
    if first.kind == "features":
        return f" of {_range(lengths)} frames"
    rates = sorted(header.rate / 1000 for header in found.headers)
    names = {1: "mono", 2: "stereo"}
    channels = sorted({header.channels for header in found.headers})
    sides = " and ".join(names.get(each, f"{each} channels") for each in channels)
    return f" of {_range(lengths, '.1f')} seconds, {_range(rates, 'g')} kHz, {sides}"


def _range(numbers: Sequence[float], form: str = ",.0f") -> str:
    """Return the first and the last of sorted numbers, or the one if they are equal."""
    return " to ".join(dict.fromkeys(f"{each:{form}}" for each in (numbers[0], numbers[-1])))


def _notes(found: Survey, source: FrameSettings, longest: int) -> Iterator[str]:
    yield from found.notes()
    limit = max(CleaningSettings().max_tokens, positions_for(longest) - SPARE)
    dropped = sum(_positions(header, source) > limit for header in found.headers)
    if dropped:
        yield (
            f"{dropped:,} of {len(found.headers):,} sources are longer than {limit:,} positions of the encoder, and "
            "training drops them; cut them, recordings at pauses"
        )
