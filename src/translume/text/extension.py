"""Extend a vocabulary for texts of a new domain or language. Existing ids and their pieces stay as they are."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from translume.errors import SettingsError
from translume.text.learning import SEPARATOR, most_frequent, repeated, segments_of
from translume.text.tokenizer import Tokenizer
from translume.text.vocabulary import Vocabulary

KINDS = ("bpe", "word", "character")
_FIRST = 0x20000
"""The character that stands for id 0 while merges are learned."""
_MOST = 0x110000 - _FIRST


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], count: int) -> Tokenizer:
    """Return a tokenizer with up to `count` more ids, learned from texts, after those of `tokenizer`.

    New characters come first, at most half of the new ids (all of them for kind "character"). For "bpe", merges are
    then learned from the texts as the old merges and new characters segment them; they apply after the old ones. Words
    and characters are added by frequency. All must occur twice. Raises SettingsError for other kinds.
    """
    old, kind = tokenizer.vocabulary, tokenizer.settings.kind
    if kind not in KINDS or len(old.pieces) + count > _MOST:
        raise SettingsError(
            f"tokenizer.extend: found {count} with kind '{kind}', expected 0; {', '.join(KINDS)} can grow"
        )
    counts = segments_of(tokenizer.settings, texts)
    known = set(old.pieces[old.first :])
    if kind == "word":
        return Tokenizer(_with(old, _common(counts, known)[:count]))
    characters: Counter[str] = Counter()
    for segment, times in counts.items():
        for character in segment:
            characters[character] += times
    found = _common(characters, known)[: count if kind == "character" else count // 2]
    grown = _with(old, found)
    if kind == "bpe":
        grown = _merged(Tokenizer(grown), counts, count - len(found))
    return Tokenizer(grown)


def _common(counts: Counter[str], known: set[str]) -> list[str]:
    return [each for each in most_frequent(counts) if counts[each] > 1 and each not in known]


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
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Split(SEPARATOR, "removed")
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + count, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(repeated(runs), trainer)
    model = json.loads(library.to_str())["model"]
    spelled = {text: "".join(vocabulary.pieces[ord(each) - _FIRST] for each in text) for text in model["vocab"]}
    known, merges = set(vocabulary.pieces), set(vocabulary.merges)
    learned = [spelled[text] for text in sorted(spelled, key=model["vocab"].__getitem__)]
    joined = [(spelled[left], spelled[right]) for left, right in model["merges"]]
    return _with(
        vocabulary,
        [piece for piece in dict.fromkeys(learned) if piece not in known],
        tuple(pair for pair in dict.fromkeys(joined) if pair not in merges),
    )


def _runs(ids: Iterable[int], first: int) -> Iterator[str]:
    """Yield runs of ids that are text, one character for each, without special tokens and bytes."""
    run = ""
    for id_ in ids:
        if id_ >= first:
            run += chr(_FIRST + id_)
        elif run:
            yield run
            run = ""
    if run:
        yield run
