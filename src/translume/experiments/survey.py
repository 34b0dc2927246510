"""Survey training data: scripts, lengths, vocabulary, distinct targets and labels, from which settings are chosen."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from translume.config import TokenizerSettings
from translume.data.pairs import Pair
from translume.text.segmentation import normaliser

UNSPACED = {"han", "hiragana", "katakana", "thai", "lao", "khmer", "myanmar"}
"""Scripts written without spaces between words, by the first word of their letters' Unicode names."""
FEW_TEXTS, FEW_LINES = 20, 300
"""Fewer texts do not show a header among labels; fewer lines do not show whether words recur."""
MAX_SYMBOLS = 2_000
"""Different words up to which every word may be a token of its own."""
COPIED = 0.25
"""Minimum share of a target's words that occur in its source, for targets that repeat their sources.

The share is 0.03 in translations, and 0.35 to 0.7 in summaries, code and logical forms.
"""
BLANK_SHARE = 0.01
"""Share of blank lines from which lines are parts of longer documents."""
SENTENCE_ENDS = frozenset(".!?;…。！？；।؟։")
_SEPARATORS = SENTENCE_ENDS | frozenset(")]}>:|")
"""Signs that may end the parts of a text: sentences, or the names of speakers."""
_MAX_SURVEYED, _MAX_COMPARED = 200_000, 20_000
"""Texts whose characters and words are counted, and pairs whose sides are compared. The rest are not read."""
_RARE, _COVERED = 5, 0.999
"""Occurrences of a character or word that recurs, and the share of the texts to read without truncation."""
_PIECE, _WORD = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_"), re.compile(r"[^\W\d_]+|\d+")


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
        return self.few_words and self.recurring >= 0.99

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
    counts, types, scripts = Counter[str](), Counter[str](), Counter[str]()
    lengths: list[tuple[int, int, int]] = []
    signs: dict[str, int] | None = None
    written = apart = ended = 0
    for text in islice(texts, _MAX_SURVEYED):
        if stripped := text.rstrip():
            written += 1
            most = dict.fromkeys(_SEPARATORS, 0) if signs is None else signs
            signs = {sign: max(count, text.count(sign)) for sign, count in most.items() if sign in text}
            ended += stripped[-1] in ".?!"
            apart += stripped[-1] in ".?!" and stripped[-2:-1] == " "
        counts.update(text)
        types.update(text.split())
        lengths.append((len(text.split()), len(_PIECE.findall(text)), len(text)))
    signs, read = signs or {}, len(lengths)
    words, pieces, characters = zip(*lengths, strict=True) if lengths else ((), (), ())
    for character, count in counts.items():
        if character.isalpha():
            scripts[script_of(character)] += count
    usual = max(scripts, key=lambda script: scripts[script], default="")
    if {"hiragana", "katakana"} & set(scripts) and usual == "han":
        usual = "hiragana"
    separator = max((sign for sign in signs if counts[sign] >= 2 * written), key=lambda sign: counts[sign], default="")
    return Side(
        language=language or {"han": "zh", "hiragana": "ja", "hangul": "ko", "thai": "th"}.get(usual, ""),
        script=usual,
        characters=sum(count >= _RARE for count in counts.values()),
        words=types.total() / (read or 1),
        length=counts.total() / (read or 1),
        cased=any(character.isupper() for character in counts),
        tokenized=ended > 0 and apart / ended > 0.5,
        scripts=frozenset(script for script, count in scripts.items() if count >= scripts.total() / 5),
        texts=read,
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
        source, target = set(_WORD.findall(pair.source)), _WORD.findall(pair.target)
        words += len(target)
        copied += sum(word in source for word in target)
    return copied / (words or 1)


def script_of(character: str) -> str:
    """Return the script of a letter, the first word of its Unicode name: "latin", "cyrillic", "han", …"""
    return unicodedata.name(character, "unknown").split()[0].lower().replace("cjk", "han")


def longest_of(lengths: Sequence[int]) -> int:
    """Return the smallest length that 99.9 % do not exceed; 0 for no lengths."""
    return sorted(lengths)[math.ceil(_COVERED * len(lengths)) - 1] if lengths else 0


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
    counts, labels, lengths = Counter[str](), Counter[str](), list[int]()
    normalise = normaliser(TokenizerSettings(kind="word", lowercase=True))
    texts = 0
    for texts, pair in enumerate(pairs, start=1):
        if label := pair.target.strip():  # training drops texts without a label
            labels[label] += 1
        if texts <= _MAX_SURVEYED:
            text = normalise(pair.source)
            units = list(text) if unspaced else text.split()
            counts.update(units)
            lengths.append(len(units))
    first = next(iter(labels), "")
    return Labelled(
        texts=texts,
        labels=len(labels),
        recurring=sum(count >= 2 for count in counts.values()),
        units=counts.total() / (len(lengths) or 1),
        longest=longest_of(lengths),
        lone=first if labels[first] == 1 and texts >= FEW_TEXTS else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Statistics of text files.  blank: lines without text.  characters: with line ends.  distinct: characters."""

    lines: int
    blank: int
    characters: int
    distinct: int

    @property
    def running(self) -> bool:
        """Whether lines are parts of longer documents."""
        return self.blank > BLANK_SHARE * self.lines


def survey_documents(texts: Iterable[str]) -> Documents:
    """Return statistics of lines."""
    lines = blank = characters = 0
    distinct = {"\n"}
    for line in texts:
        lines += 1
        blank += not line.strip()
        characters += len(line) + 1
        distinct.update(line)
    return Documents(lines=lines, blank=blank, characters=characters, distinct=len(distinct))
