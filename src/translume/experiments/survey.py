"""Survey training data: columns, lengths, scripts, languages and labels, from which settings are chosen."""

import json
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from translume.config import TokenizerSettings
from translume.data.findings import HEADER_WORDS
from translume.data.lines import read_lines, without_compression
from translume.data.pairs import Pair
from translume.data.tables import first_row, first_rows, has_keys, read_objects, table_kind
from translume.errors import DataError, SettingsError
from translume.text.segmentation import normaliser

Columns = tuple[int | str, ...]

SURVEYED_LINES = 10_000
"""Number of lines read to distinguish labels from texts."""
LANGUAGES = {
    **dict.fromkeys(("english", "englisch", "anglais", "inglés", "en"), "en"),
    **dict.fromkeys(("german", "deutsch", "allemand", "alemán", "de"), "de"),
    **dict.fromkeys(("french", "französisch", "français", "francés", "fr"), "fr"),
    **dict.fromkeys(("spanish", "spanisch", "espagnol", "español", "es"), "es"),
    **dict.fromkeys(("italian", "italienisch", "italien", "italiano", "it"), "it"),
    **dict.fromkeys(("chinese", "chinesisch", "chinois", "chino", "zh"), "zh"),
    **dict.fromkeys(HEADER_WORDS, ""),
}
"""Language codes by names of columns in lower case, as the first lines of spreadsheets have them; "" for a side."""
_FOR_TEXTS = "; --task language_model trains on the texts alone"
UNSPACED = {"han", "hiragana", "katakana", "thai", "lao", "khmer", "myanmar"}
"""Scripts written without spaces between words, by the first word of their letters' Unicode names."""

_NAMES = {"cjk": "han"}
_TWO_LETTERS = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee "
    "el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is "
    "it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms "
    "mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si "
    "sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh "
    "yi yo za zh zu"
)
"""The codes of ISO 639-1."""
_NO_LANGUAGES = "bpe csv dat dev hyp inp new old out raw ref src tgt tok trg trn tsv txt val zip"
"""Words of three letters in names of files and columns."""
_MAX_SURVEYED = 200_000
"""Texts whose characters and words are counted. The rest are not read."""
_MAX_COMPARED = 20_000
"""Pairs whose two sides are compared word by word."""
_KEYED_ROWS = 100
"""Rows whose keys are taken together, since a row may lack some."""
_RARE = 5
_COVERED = 0.999
"""Share of the texts that the model should read without truncation."""
MAX_POSITIONS, SPARE = 2048, 8
"""The largest `model.max_positions` proposed, and the positions that `max_tokens` leaves free for marks."""
FEW_PAIRS = 5000
"""Up to this many pairs, too few are held out to see whether a model still improves."""
FEW_TEXTS = 20
FEW_LINES = 300
"""Fewer lines do not show whether words recur."""
MAX_SYMBOLS = 2_000
"""Different words up to which every word may be a token of its own."""
COPIED = 0.25
"""Minimum share of a target's words that occur in its source, for targets that repeat their sources.

The share is 0.03 in translations, and 0.35 to 0.7 in summaries, code and logical forms.
"""
SENTENCE_ENDS = frozenset(".!?;…。！？；।؟։")
_SEPARATORS = SENTENCE_ENDS | frozenset(")]}>:|")
"""Signs that may end the parts of a text: sentences, or the names of speakers."""
_PIECE = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_")
_WORD = re.compile(r"[^\W\d_]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a corpus.

    script: of most letters, such as "latin" or "han".  scripts: those of at least a fifth of the letters.
    characters: distinct ones that occur at least five times.
    words: mean number of space-separated words.  length: mean number of characters.
    cased: whether capitals occur.  tokenized: whether there are spaces before final punctuation.
    texts: number of texts counted.  types: distinct space-separated words.  recurring: share of all words whose type
    occurs at least five times.
    longest_words, longest_pieces, longest_characters: number of space-separated words, of words, digits and signs, and
    of characters that 99.9 % of the texts do not exceed.
    copied: for targets, the share of words and numbers that occur in their source; see `copied_share`.
    separator: the most frequent sign that every text has, on average at least twice, such as the end of a sentence or
    of the name of a speaker; empty if there is none.  parts: the number of parts that it makes of a text, at most.
    """

    language: str
    script: str
    characters: int
    words: float
    length: float
    cased: bool
    tokenized: bool
    scripts: frozenset[str] = frozenset()
    texts: int = 0
    types: int = 0
    recurring: float = 0.0
    longest_words: int = 0
    longest_pieces: int = 0
    longest_characters: int = 0
    copied: float = 0.0
    separator: str = ""
    parts: int = 1

    @property
    def copies(self) -> bool:
        """Whether targets repeat many words of their sources, unlike translations into another language."""
        return self.copied >= COPIED

    @property
    def symbols(self) -> bool:
        """Whether lines consist of few, recurring symbols, such as phones or the words of a formal language."""
        return self.texts >= FEW_LINES and self.types <= MAX_SYMBOLS and self.recurring >= 0.99

    @property
    def few_words(self) -> bool:
        """Whether lines have so few different words that each word can be a token."""
        return self.texts >= FEW_LINES and self.types <= MAX_SYMBOLS and self.recurring >= 0.9

    @property
    def unspaced(self) -> bool:
        """Whether words are not separated by spaces."""
        return self.script in UNSPACED

    @property
    def short(self) -> bool:
        """Whether lines are single words rather than sentences."""
        return self.words <= 3 and self.length <= (8 if self.unspaced else 36)


def survey(texts: Iterable[str], language: str) -> Side:
    """Return statistics of the first 200,000 texts of one side."""
    counts: Counter[str] = Counter()
    types: Counter[str] = Counter()
    words: Counter[int] = Counter()
    pieces: Counter[int] = Counter()
    characters: Counter[int] = Counter()
    signs: dict[str, int] | None = None
    sentences = written = apart = ended = 0
    for text in texts:
        sentences += 1
        if sentences > _MAX_SURVEYED:
            break
        if text.strip():
            written += 1
            if signs is None:
                signs = {sign: 0 for sign in text if sign in _SEPARATORS}
            signs = {sign: max(most, text.count(sign)) for sign, most in signs.items() if sign in text}
        counts.update(text)
        found_words = text.split()
        types.update(found_words)
        words[len(found_words)] += 1
        pieces[len(_PIECE.findall(text))] += 1
        characters[len(text)] += 1
        if text.rstrip()[-1:] in (".", "?", "!"):
            ended += 1
            apart += text.rstrip()[-2:-1] == " "
    signs = signs or {}
    read = min(sentences, _MAX_SURVEYED) or 1
    scripts: Counter[str] = Counter()
    for character, count in counts.items():
        if character.isalpha():
            scripts[script_of(character)] += count
    found = scripts.most_common(1)[0][0] if scripts else ""
    if {"hiragana", "katakana"} & set(scripts) and found == "han":
        found = "hiragana"
    separator = max((sign for sign in signs if counts[sign] >= 2 * written), key=lambda sign: counts[sign], default="")
    return Side(
        language=language or {"han": "zh", "hiragana": "ja", "hangul": "ko", "thai": "th"}.get(found, ""),
        script=found,
        characters=sum(count >= _RARE for count in counts.values()),
        words=types.total() / read,
        length=counts.total() / read,
        cased=any(character.isupper() for character in counts),
        tokenized=ended > 0 and apart / ended > 0.5,
        scripts=frozenset(script for script, count in scripts.items() if count >= scripts.total() / 5),
        texts=min(sentences, _MAX_SURVEYED),
        types=len(types),
        recurring=sum(count for count in types.values() if count >= _RARE) / (types.total() or 1),
        longest_words=longest_of(words),
        longest_pieces=longest_of(pieces),
        longest_characters=longest_of(characters),
        separator=separator,
        parts=signs.get(separator, 0) + 1,
    )


def copied_share(pairs: Iterable[Pair]) -> float:
    """Return the share of the targets' words and numbers that occur in their source, in the first 20,000 pairs."""
    words = copied = 0
    for pair in islice(pairs, _MAX_COMPARED):
        found = set(_WORD.findall(pair.source))
        target = _WORD.findall(pair.target)
        words += len(target)
        copied += sum(word in found for word in target)
    return copied / (words or 1)


def script_of(character: str) -> str:
    """Return the script of a letter, the first word of its Unicode name: "latin", "cyrillic", "han", …"""
    name = unicodedata.name(character, "unknown").split()[0].lower()
    return _NAMES.get(name, name)


def is_language(code: str) -> bool:
    """Return whether a word is a language code: "en", "zh-Hant", or three letters that are no usual suffix of files."""
    if not re.fullmatch(r"[a-z]{2,3}([-_]\w+)?", code):
        return False
    language = re.split("[-_]", code)[0]
    return language in _TWO_LETTERS.split() if len(language) == 2 else language not in _NO_LANGUAGES.split()


def language_of(path: Path) -> str:
    """Return the language code at the end of a file name ("train.en.gz": "en"), or an empty string."""
    _, dot, suffix = without_compression(path.name).rpartition(".")
    return suffix if dot and is_language(suffix) else ""


def languages_of(path: Path) -> tuple[str, str]:
    """Return the language codes in the name of a file with both sides ("train.en-de.tsv"), or empty strings."""
    for part in reversed(path.name.split(".")[1:]):
        codes = part.split("-")
        if len(codes) == 2 and all(map(is_language, codes)):
            return codes[0], codes[1]
    return "", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A labelled corpus.

    labels: number of distinct labels.  recurring: number of words (or characters of a script without spaces) that occur
    at least twice.  units: mean number of words (or characters) in a text.  longest: their number in the longest of
    99.9 % of the texts.
    lone: the label of the first line if no other line has it, as for a header; else empty.
    """

    texts: int
    labels: int
    recurring: int
    units: float
    longest: int
    lone: str


def survey_labelled(pairs: Iterable[Pair], *, unspaced: bool) -> Labelled:
    """Return statistics of texts and their labels; words are counted in the first 200,000 texts."""
    counts: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    normalise = normaliser(TokenizerSettings(kind="word", lowercase=True))
    first = ""
    texts = 0
    for texts, pair in enumerate(pairs, start=1):
        if label := pair.target.strip():  # training drops texts without a label
            labels[label] += 1
            first = first or label
        if texts <= _MAX_SURVEYED:
            text = normalise(pair.source)
            units = list(text) if unspaced else text.split()
            counts.update(units)
            lengths[len(units)] += 1
    return Labelled(
        texts=texts,
        labels=len(labels),
        recurring=sum(count >= 2 for count in counts.values()),
        units=counts.total() / (lengths.total() or 1),
        longest=longest_of(lengths),
        lone=first if labels[first] == 1 and texts >= FEW_TEXTS else "",
    )


def longest_of(lengths: Counter[int]) -> int:
    """Return the smallest length that 99.9 % do not exceed; 0 for no lengths."""
    covered, needed = 0, _COVERED * lengths.total()
    for length, count in sorted(lengths.items()):
        covered += count
        if covered >= needed:
            return length
    return 0


def positions_for(longest: int) -> int:
    """Return the `model.max_positions` to propose for sources and targets of up to `longest` tokens."""
    return min(MAX_POSITIONS, 1 << (longest + SPARE - 1).bit_length())


def parse_columns(option: str, *, template: bool = False) -> Columns:
    """Parse --columns: two numbers from 0, or two names; one with a template, which names the rest."""
    parts = [part.strip() for part in option.split(",")]
    if template and (len(parts) != 1 or not parts[0]):
        raise SettingsError(f"--columns: found '{option}' with --template, expected the target's column")
    if not template and (len(parts) != 2 or not all(parts)):
        raise SettingsError(f"--columns: found '{option}', expected two columns such as 0,1 or source,target")
    return tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts)


def find_columns(file: Path, keys: tuple[str, str], *, labelled: bool) -> Columns:
    """Return the columns of a file that has two of them; empty if they are the defaults of [data].

    keys: default keys of a JSONL or Parquet file.  labelled: whether one of the columns contains labels.
    Raises DataError, which suggests --columns, if the columns are not clear.
    """
    sides = " and ".join(keys)
    lines = list(islice(read_objects(str(file)) if has_keys(str(file)) else read_lines(file), _KEYED_ROWS))
    if not lines:
        raise DataError(f"{file}: empty file, expected one {sides} per line")
    if has_keys(str(file)):
        return _find_keys(file, lines, keys, labelled=labelled)
    fields = first_row(str(file))
    if not labelled and "text" in [field.strip().lower() for field in fields]:
        raise DataError(
            f"{file}:1: found columns {', '.join(map(repr, fields))}; choose {sides} with --columns A,B{_FOR_TEXTS}"
        )
    if len(fields) == 1:
        raise DataError(
            f"{file}:1: found no tab, expected two parallel files, or one TSV, CSV, JSONL or Parquet file with {sides} "
            f"(named .csv, .jsonl, .ndjson, .json or .parquet){'' if labelled else _FOR_TEXTS}"
        )
    known = [field.strip() for field in fields if _language(field) is not None]
    if len(fields) > 2:
        first, second = known[:2] if len(known) > 1 else _text_and_label(file) if labelled else ("0", "1")
        names = [field.strip() for field in fields] if len(known) > 1 else [*map(str, range(len(fields)))]
        more = next((name for name in names if name not in (first, second)), second)
        # Without names or labels, the target is more likely the last column than the second.
        target, part = (second, more) if labelled or len(known) > 1 else (more, second)
        raise DataError(
            f"{file}:1: found {len(fields)} columns; choose {sides} with --columns {shlex.quote(f'{first},{second}')} "
            "(by name or counted from 0), or make a source of several columns "
            f"with --template '{{{first}}} {{{part}}}' --columns {shlex.quote(target)}"
        )
    if len(known) == 2:
        return tuple(known)
    return (1, 0) if labelled and _text_and_label(file) == ("1", "0") else ()


def unknown_names(file: Path, *, labelled: bool) -> list[str]:
    """Return the first row if it may be names of columns: of CSV any, of TSV words of two letters or more.

    labelled: whether one column contains labels. Then TSV is left out, since a label that occurs once is noticed.
    """
    kind = table_kind(str(file))
    if kind not in ("csv", "tsv") or (kind == "tsv" and labelled):
        return []
    fields = first_row(str(file))
    words = all(field.strip().isalpha() and len(field.strip()) > 1 for field in fields)
    return fields if kind == "csv" or words else []


def languages_of_columns(columns: Columns) -> tuple[str, str]:
    """Return the language codes in keys such as "en" or "translation.de", or empty strings."""
    if len(columns) != 2:
        return "", ""
    named = [(str(column), _language(str(column))) for column in columns]
    first, second = (column.rpartition(".")[2] if found is None else found for column, found in named)
    return (first, second) if is_language(first) and is_language(second) else ("", "")


def _language(name: str) -> str | None:
    """Return the language code that a name in the first line stands for, "" if it names a side; None for other texts.

    "Englisch (Original)" stands for "en", and "de-DE" and "de_AT" for "de".
    """
    word = name.partition("(")[0].strip().lower()
    regional = re.fullmatch(r"([a-z]{2})[-_][a-z]{2}", word)
    return LANGUAGES.get(regional[1] if regional else word)


def is_text(file: Path) -> bool:
    """Return whether a file is text without columns: no JSONL or CSV, no tab in its first lines, not empty."""
    if table_kind(str(file)) != "tsv":
        return False
    lines = list(islice(read_lines(file), SURVEYED_LINES))
    return bool(lines) and not any("\t" in line for line in lines)


def _find_keys(file: Path, lines: Iterable[str], keys: tuple[str, str], *, labelled: bool) -> Columns:
    value: dict[str, Any] = {}
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # reading the pairs reports the error
            break
        if not isinstance(row, dict):
            break
        _add(value, row)
    if not value:
        return ()
    if all(key in dict(texts_of(value, labels=True)) for key in keys):
        return ()
    texts = dict(texts_of(value, labels=labelled))
    if labelled or len(texts) != 2:
        found = ", ".join(texts) or "none"
        more = _FOR_TEXTS if not labelled and "text" in texts else ""
        raise DataError(
            f"{file}:1: found texts under: {found}; choose {' and '.join(keys)} with --columns KEY,KEY{more}"
        )
    return tuple(texts)


def _add(value: dict[str, Any], row: dict[str, Any]) -> None:
    """Add the keys of a row, also of inner objects, to those of earlier rows, which may have null there."""
    for key, each in row.items():
        if isinstance(each, dict) and isinstance(value.get(key) or {}, dict):
            value[key] = value.get(key) or {}
            _add(value[key], each)
        elif value.get(key) is None:
            value[key] = each


def texts_of(value: dict[str, object], above: str = "", *, labels: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the texts in an object and its inner objects, with their names for data.columns.

    labels: also integers and truth values.
    """
    for key, each in value.items():
        if isinstance(each, str):
            yield above + key, each
        elif isinstance(each, int) and labels:
            yield above + key, json.dumps(each)
        elif isinstance(each, dict) and not above:
            yield from texts_of(each, f"{key}.", labels=labels)


def _text_and_label(file: Path) -> tuple[str, str]:
    """Return the numbers of the columns that are most likely the text and its label, judged by the first lines.

    The label has the fewest distinct values, but more than one; of equals it is the last. The text is the longest of
    the other columns.
    """
    rows = first_rows(str(file), SURVEYED_LINES)
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    counts = [len(set(column)) for column in columns]
    label = min(range(len(columns)), key=lambda number: (counts[number] < 2, counts[number], -number))
    texts = [number for number in range(len(columns)) if number != label]
    return str(max(texts, key=lambda number: sum(map(len, columns[number])))), str(label)
