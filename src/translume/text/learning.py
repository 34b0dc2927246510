"""Learn a vocabulary from text with the `tokenizers` library. Deterministic: equal texts give equal vocabularies."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.text.segmentation import normaliser, segmenter, with_mark
from translume.text.tokenizer import Tokenizer
from translume.text.unigram_training import learn_unigram
from translume.text.vocabulary import Vocabulary, reserved_pieces

COVERAGE = 0.9995
"""Minimum share of the characters of the training text that the alphabet covers (SentencePiece's default)."""
SEPARATOR = "\uffff"
"""A noncharacter between the segments given to the library. It is never in the alphabet."""


def train_tokenizer(settings: TokenizerSettings, texts: Iterable[str], languages: Sequence[str] = ()) -> Tokenizer:
    """Learn a tokenizer with at most `settings.size` ids from texts, which are read once.

    languages: codes of the languages that get a tag; see `Tokenizer.languages`.
    The alphabet contains every character of the texts unless that takes more than half of the vocabulary. Then the
    rarest characters, at most 0.05 % of the text, are encoded as bytes or <unk>. Raises DataError for texts without a
    character, and SettingsError for a size too small for the alphabet or a kind that cannot be learned.
    """
    if settings.kind in ("sentencepiece", "library"):
        raise SettingsError(f"tokenizer.kind: '{settings.kind}' is not learned but imported; expected 'unigram'")
    if settings.kind == "byte":
        return Tokenizer(Vocabulary.of(settings, {}, languages=languages))
    counts = segments_of(settings, texts)
    text_ids = settings.size - len(reserved_pieces(settings)) - len(languages)
    if settings.kind == "word":
        _check(settings, text_ids, 1, "word")
        words = dict.fromkeys(most_frequent(counts)[:text_ids], 0.0)
        return Tokenizer(Vocabulary.of(settings, words, languages=languages))
    alphabet = _alphabet(settings, counts, text_ids)
    if settings.kind == "character":
        return Tokenizer(Vocabulary.of(settings, dict.fromkeys(alphabet, 0.0), languages=languages))
    return Tokenizer(_learn(settings, counts, alphabet, text_ids, languages))


def segments_of(settings: TokenizerSettings, texts: Iterable[str]) -> Counter[str]:
    """Return the segments of texts, which no token crosses, with their counts. Raises DataError without any text."""
    normalise, cut = normaliser(settings), segmenter(settings.kind)
    counts: Counter[str] = Counter()
    lines = 0
    for text in texts:
        counts.update(cut(with_mark(normalise(text), settings.kind)))
        lines += 1
    if not counts:
        raise DataError(f"tokenizer: found no text to learn from in {lines} lines, expected at least one character")
    return counts


def most_frequent(counts: Counter[str]) -> list[str]:
    """Return the keys by falling count; equal counts by key."""
    return sorted(counts, key=lambda key: (-counts[key], key))


def _alphabet(settings: TokenizerSettings, counts: Counter[str], text_ids: int) -> list[str]:
    """Return the characters of the vocabulary, most frequent first."""
    characters: Counter[str] = Counter()
    for segment, count in counts.items():
        for character in segment:
            characters[character] += count
    del characters[SEPARATOR]
    ranked = most_frequent(characters)
    needed, covered, total = 0, 0, characters.total()
    while covered < COVERAGE * total:
        covered += characters[ranked[needed]]
        needed += 1
    _check(settings, text_ids, needed, "character")
    return ranked[: max(needed, text_ids if settings.kind == "character" else text_ids // 2)]


def _check(settings: TokenizerSettings, text_ids: int, needed: int, unit: str) -> None:
    """Raise SettingsError if the ids for text are fewer than needed. The others are special, bytes or languages."""
    if text_ids < needed:
        reserved = reserved_pieces(settings)
        special = sum(not piece.startswith("<0x") for piece in reserved)
        parts = [f"{special} special tokens", f"{needed} {unit}{'s' * (needed != 1)}"]
        if len(reserved) > special:
            parts.insert(1, "256 bytes")
        if languages := settings.size - text_ids - len(reserved):
            parts.insert(-1, f"{languages} language{'s' * (languages != 1)}")
        wanted = settings.size - text_ids + needed
        raise SettingsError(f"tokenizer.size: found {settings.size}, expected at least {wanted} ({', '.join(parts)})")


def _learn(
    settings: TokenizerSettings, counts: Counter[str], alphabet: list[str], text_ids: int, languages: Sequence[str]
) -> Vocabulary:
    runs = _known(counts, set(alphabet))
    if settings.kind == "unigram":
        return Vocabulary.of(settings, learn_unigram(runs, alphabet, text_ids), languages=languages)
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Split(SEPARATOR, "removed")
    library.train_from_iterator(
        repeated(runs),
        trainers.BpeTrainer(vocab_size=text_ids, min_frequency=2, initial_alphabet=alphabet, show_progress=False),
    )
    model = json.loads(library.to_str())["model"]
    pieces = dict.fromkeys(sorted(model["vocab"], key=model["vocab"].__getitem__), 0.0)
    merges = tuple((left, right) for left, right in model["merges"]) if settings.kind == "bpe" else ()
    return Vocabulary.of(settings, pieces, merges, languages)


def _known(counts: Counter[str], alphabet: set[str]) -> Counter[str]:
    """Return the segments cut at characters outside the alphabet, with their counts."""
    runs: Counter[str] = Counter()
    for segment, count in counts.items():
        if alphabet.issuperset(segment):
            runs[segment] += count
        else:
            for run in "".join(c if c in alphabet else SEPARATOR for c in segment).split(SEPARATOR):
                if run:
                    runs[run] += count
    return runs


def repeated(counts: Counter[str]) -> Iterator[str]:
    """Yield each segment as often as it was counted."""
    for segment in sorted(counts):
        count = counts[segment]
        at_once = max(1, 10_000 // len(segment))
        for begin in range(0, count, at_once):
            yield (segment + SEPARATOR) * min(at_once, count - begin)
