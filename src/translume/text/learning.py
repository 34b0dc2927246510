"""Learn or extend a vocabulary by text. Deterministic: equal texts give equal vocabularies."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError
from translume.text.segmentation import normaliser, segmenter, with_mark
from translume.text.tokenizer import Tokenizer
from translume.text.vocabulary import Vocabulary, reserved_pieces

COVERAGE = 0.9995
"""Minimum share of the characters of the training text that the alphabet covers (SentencePiece's default)."""
SEPARATOR = "\uffff"
"""A noncharacter between the segments given to the library. It is never in the alphabet."""
KINDS = ("bpe", "word", "character")
"""The kinds whose vocabularies can be extended."""
_FIRST = 0x20000
"""The character that stands for id 0 while merges are learned for an extended vocabulary."""
_MAX_IDS = 0x110000 - _FIRST

LONGEST_PIECE = 16
"""Maximum number of characters in a piece of a unigram model."""
MAX_SUBSTRINGS = 4_000_000
"""Maximum number of substrings to consider. From a larger text, the most frequent words are taken."""
SEED_FACTOR = 10
"""Initial candidates for each piece of the result."""
SHRINK = 0.75
"""Share of the candidates that a round of pruning keeps (as SentencePiece)."""

Grid = NDArray[np.int32]
Floats = NDArray[np.float64]


def train_tokenizer(settings: TokenizerSettings, texts: Iterable[str], languages: Sequence[str] = ()) -> Tokenizer:
    """Learn a tokenizer with at most `settings.size` ids from texts, which are read once.

    languages: codes of the languages that get a tag; see `Tokenizer.languages`.
    The alphabet contains every character of the texts unless that takes more than half of the vocabulary. Then the
    rarest characters, at most 0.05 % of the text, are encoded as bytes or <unk>. Raises DataError for texts without a
    character, and SettingsError for a size too small for the alphabet or a kind that cannot be learned.
    """
    if settings.kind in ("sentencepiece", "library", "split"):
        wanted = "tokenizer.path to a tokenizer.json" if settings.kind == "library" else "'unigram'"
        raise SettingsError(f"tokenizer.kind: '{settings.kind}' is not learned but imported; expected {wanted}")
    if settings.kind == "byte":
        return Tokenizer(Vocabulary.from_learned(settings, {}, languages=languages))
    counts = _count_segments(settings, texts)
    text_ids = settings.size - len(reserved_pieces(settings)) - len(languages)
    if settings.kind == "word":
        _check(settings, text_ids, 1, "word")
        words = dict.fromkeys(_most_frequent(counts)[:text_ids], 0.0)
        return Tokenizer(Vocabulary.from_learned(settings, words, languages=languages))
    alphabet = _alphabet(settings, counts, text_ids)
    if settings.kind == "character":
        return Tokenizer(Vocabulary.from_learned(settings, dict.fromkeys(alphabet, 0.0), languages=languages))
    runs = _known(counts, set(alphabet))
    if settings.kind == "unigram":
        scored = _learn_unigram(runs, alphabet, text_ids)
        return Tokenizer(Vocabulary.from_learned(settings, scored, languages=languages))
    pieces, merges = _learn_merges(runs, alphabet, text_ids)
    kept = tuple(merges) if settings.kind == "bpe" else ()
    return Tokenizer(Vocabulary.from_learned(settings, dict.fromkeys(pieces, 0.0), kept, languages))


def _count_segments(settings: TokenizerSettings, texts: Iterable[str]) -> Counter[str]:
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


def _most_frequent(counts: Counter[str]) -> list[str]:
    """Return the keys by falling count; equal counts by key."""
    return sorted(counts, key=lambda key: (-counts[key], key))


def _characters(counts: Counter[str]) -> Counter[str]:
    """Return the counts of the characters in counted segments."""
    characters: Counter[str] = Counter()
    for segment, count in counts.items():
        for character in segment:
            characters[character] += count
    return characters


def _alphabet(settings: TokenizerSettings, counts: Counter[str], text_ids: int) -> list[str]:
    """Return the characters of the vocabulary, most frequent first."""
    characters = _characters(counts)
    del characters[SEPARATOR]
    ranked = _most_frequent(characters)
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


def _learn_merges(runs: Counter[str], alphabet: Sequence[str], size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most `size` pieces, the alphabet first, and the merges that the library learns."""
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Split(SEPARATOR, "removed")
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, initial_alphabet=list(alphabet), show_progress=False
    )
    library.train_from_iterator(_repeated(runs), trainer)
    model = json.loads(library.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), [(left, right) for left, right in model["merges"]]


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


def _repeated(counts: Counter[str]) -> Iterator[str]:
    """Yield each segment as often as it was counted."""
    for segment in sorted(counts):
        count = counts[segment]
        at_once = max(1, 10_000 // len(segment))
        for begin in range(0, count, at_once):
            yield (segment + SEPARATOR) * min(at_once, count - begin)


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> Tokenizer:
    """Return a tokenizer with up to `count` more ids, learned from texts, after those of `tokenizer`.

    New characters come first, at most half of the new ids (all of them for kind "character"). For "bpe", merges are
    then learned from the texts as the old merges and new characters segment them; they apply after the old ones. Words
    and characters are added by frequency. All must occur twice. Raises SettingsError for other kinds.
    """
    old, kind = tokenizer.vocabulary, tokenizer.settings.kind
    if kind not in KINDS or len(old.pieces) + count > _MAX_IDS:
        raise SettingsError(
            f"tokenizer.extend: found {count} with kind '{kind}', expected 0; {', '.join(KINDS)} can grow"
        )
    counts = _count_segments(tokenizer.settings, texts)
    known = set(old.pieces[old.first :])
    if kind == "word":
        return Tokenizer(_with(old, _common(counts, known)[:count]))
    characters = _common(_characters(counts), known)[: count if kind == "character" else count // 2]
    grown = _with(old, characters)
    if kind == "bpe":
        grown = _merged(Tokenizer(grown), counts, count - len(characters))
    return Tokenizer(grown)


def _common(counts: Counter[str], known: set[str]) -> list[str]:
    return [each for each in _most_frequent(counts) if counts[each] > 1 and each not in known]


def _with(old: Vocabulary, pieces: list[str], merges: tuple[tuple[str, str], ...] = ()) -> Vocabulary:
    return replace(old, pieces=(*old.pieces, *pieces), merges=(*old.merges, *merges))


def _merged(tokenizer: Tokenizer, counts: Counter[str], count: int) -> Vocabulary:
    """Return the vocabulary with `count` more merges, which the library learns from texts of one character for each id.

    The id of an old token stands for itself, so that the merges join old tokens.
    """
    vocabulary = tokenizer.vocabulary
    runs: Counter[str] = Counter()
    for segment, times in counts.items():
        for run in _runs(tokenizer.segment_ids(segment), vocabulary.first):
            runs[run] += times
    alphabet = sorted({character for run in runs for character in run})
    pieces, learned = _learn_merges(runs, alphabet, len(alphabet) + count)
    spelled = {text: "".join(vocabulary.pieces[ord(each) - _FIRST] for each in text) for text in pieces}
    known, merges = set(vocabulary.pieces), set(vocabulary.merges)
    joined = ((spelled[left], spelled[right]) for left, right in learned)
    return _with(
        vocabulary,
        [piece for piece in dict.fromkeys(spelled.values()) if piece not in known],
        tuple(pair for pair in dict.fromkeys(joined) if pair not in merges),
    )


def _runs(ids: Iterable[int], first: int) -> Iterator[str]:
    """Yield runs of ids that are text, one character for each, without special tokens and bytes."""
    for is_text, run in groupby(ids, key=lambda id_: id_ >= first):
        if is_text:
            yield "".join(chr(_FIRST + id_) for id_ in run)


def _learn_unigram(counts: Mapping[str, int], alphabet: Sequence[str], size: int) -> dict[str, float]:
    """Return at most `size` pieces with log-probabilities, likeliest first, including all characters of `alphabet`.

    Unigram language models are by Kudo (2018, section 3.2). The `tokenizers` library learns different ones from the
    same text, because it sums in the order of a randomly seeded hash table. This implementation is deterministic. It
    works on arrays of all words of equal length.
    """
    words = _within_budget(counts)
    pieces = [*alphabet, *_seeds(words, SEED_FACTOR * size)]
    required = len(alphabet)
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    texts = [(_grid(group, ids), np.array([words[word] for word in group], float)) for group in _by_length(words)]
    long = [(_grid(group, ids), [ids[piece] for piece in group]) for group in _by_length(pieces[required:])]
    lengths = np.array([len(piece) for piece in pieces], float)
    frequencies = _occurrences(texts, len(pieces))
    scores = _maximised(frequencies * lengths, required, np.ones(len(pieces), bool))
    while True:
        for _ in range(2):
            frequencies = _expected(texts, scores)
            scores = _maximised(frequencies, required, np.isfinite(scores))
        alive = int(np.isfinite(scores).sum())
        if alive <= size:
            break
        keep = max(int(alive * SHRINK), size)
        losses = np.where(np.isfinite(scores), frequencies, 0.0) * _advantage(long, scores)
        losses[:required] = np.inf
        losses[~np.isfinite(scores)] = -np.inf
        pruned = np.argsort(-losses, kind="stable")[keep:]
        scores[pruned] = -np.inf
    ranked = sorted((-scores[id_], piece) for piece, id_ in ids.items() if np.isfinite(scores[id_]))
    return {piece: -float(negative) for negative, piece in ranked}


def _within_budget(counts: Mapping[str, int]) -> dict[str, int]:
    words: dict[str, int] = {}
    left = MAX_SUBSTRINGS
    for word in sorted(counts, key=lambda word: (-counts[word], word)):
        left -= len(word) * min(len(word), LONGEST_PIECE)
        if left < 0 and words:
            break
        words[word] = counts[word]
    return words


def _seeds(words: Mapping[str, int], size: int) -> list[str]:
    """Return substrings that occur at least twice, sorted by how much of the text they cover."""
    substrings: Counter[str] = Counter()
    for word, count in words.items():
        for begin in range(len(word) - 1):
            for end in range(begin + 2, min(len(word), begin + LONGEST_PIECE) + 1):
                substrings[word[begin:end]] += count
    often = [piece for piece, count in substrings.items() if count > 1]
    return sorted(often, key=lambda piece: (-substrings[piece] * len(piece), piece))[:size]


def _by_length(words: Iterable[str]) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for word in words:
        groups.setdefault(len(word), []).append(word)
    return [groups[length] for length in sorted(groups)]


def _grid(words: Sequence[str], ids: Mapping[str, int]) -> Grid:
    """Return ids of the pieces in words of n characters [words, n starts, min(n, 16) lengths]; len(ids) for none."""
    n, none = len(words[0]), len(ids)
    widths = range(1, min(n, LONGEST_PIECE) + 1)
    flat = [
        ids.get(word[begin : begin + width], none) if begin + width <= n else none
        for word in words
        for begin in range(n)
        for width in widths
    ]
    return np.array(flat, np.int32).reshape(len(words), n, len(widths))


def _occurrences(texts: Sequence[tuple[Grid, Floats]], size: int) -> Floats:
    total = np.zeros(size + 1)
    for grid, counts in texts:
        weights = np.broadcast_to(counts[:, None, None], grid.shape)
        total += np.bincount(grid.ravel(), weights.ravel(), size + 1)
    return total[:-1]


def _maximised(frequencies: Floats, required: int, alive: NDArray[np.bool_]) -> Floats:
    """Return log-probabilities under SentencePiece's sparse prior: digamma(count) − digamma(sum of counts)."""
    kept = alive & (frequencies >= 0.5)
    kept[:required] = True
    counts = np.maximum(frequencies, 0.5)
    scores = _digamma(counts) - _digamma(np.array([counts[kept].sum()]))
    return np.where(kept, scores, -np.inf)


def _digamma(values: Floats) -> Floats:
    """Return ψ(x) for x > 0, by recurrence to x + 6 and the asymptotic series (Abramowitz and Stegun 6.3.5, 6.3.18)."""
    shifted = values + 6
    series = np.log(shifted) - 1 / (2 * shifted) - 1 / (12 * shifted**2) + 1 / (120 * shifted**4)
    return series - sum((1 / (values + k) for k in range(6)), np.zeros_like(values))


def _expected(texts: Sequence[tuple[Grid, Floats]], scores: Floats) -> Floats:
    """Return the expected count of each piece over all segmentations of the words (forward-backward)."""
    padded = np.append(scores, -np.inf)
    total = np.zeros(len(padded))
    for grid, counts in texts:
        gains = padded[grid]  # [words, n, widths]
        words, n, widths = gains.shape
        forward, backward = np.full((words, n + 1), -np.inf), np.full((words, n + 1), -np.inf)
        forward[:, 0] = backward[:, n] = 0
        for place in range(1, n + 1):
            for width in range(1, min(place, widths) + 1):
                reached = forward[:, place - width] + gains[:, place - width, width - 1]
                forward[:, place] = np.logaddexp(forward[:, place], reached)
        for place in range(n - 1, -1, -1):
            for width in range(1, min(n - place, widths) + 1):
                left = gains[:, place, width - 1] + backward[:, place + width]
                backward[:, place] = np.logaddexp(backward[:, place], left)
        for width in range(1, widths + 1):
            begins = slice(0, n - width + 1)
            log_share = forward[:, begins] + gains[:, begins, width - 1] + backward[:, width:]
            share = np.exp(log_share - forward[:, n:]) * counts[:, None]
            total += np.bincount(grid[:, begins, width - 1].ravel(), share.ravel(), len(padded))
    return total[:-1]


def _advantage(long: Sequence[tuple[Grid, list[int]]], scores: Floats) -> Floats:
    """Return the gain of each piece over its best segmentation into other pieces, in nats; 0 for characters."""
    padded = np.append(scores, -np.inf)
    result = np.zeros(len(scores))
    for grid, ids in long:
        gains = padded[grid]
        words, n, widths = gains.shape
        if widths == n:
            gains[:, 0, n - 1] = -np.inf
        best = np.full((words, n + 1), -np.inf)
        best[:, 0] = 0
        for place in range(1, n + 1):
            for width in range(1, min(place, widths) + 1):
                reached = best[:, place - width] + gains[:, place - width, width - 1]
                best[:, place] = np.maximum(best[:, place], reached)
        own = scores[ids]
        alive = np.isfinite(own)
        result[ids] = np.subtract(own, best[:, n], out=np.zeros_like(own), where=alive)
    return result
