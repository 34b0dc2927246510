"""From [decoding] to rules: texts that settings name become rules over the tokens that spell them."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.data import read_lines
from translume.decoding import (
    BannedPhrases,
    ForbidTokens,
    MinimumLength,
    NoRepeatNgram,
    OnlyTokens,
    RepetitionPenalty,
    Rule,
    SearchError,
    Spellings,
    TextPrefix,
)
from translume.errors import DataError, SettingsError
from translume.text import Tokenizer
from translume.text.segmentation import character_class

SHOWN = 20
"""Most characters of a text in an error."""

Stamp = tuple[int, int]
"""When a file was changed, in nanoseconds, and its size: another one is read again."""


def rules_of(tokenizer: Tokenizer, begins: Sequence[bool], settings: DecodingSettings) -> list[Rule]:
    """What [decoding] forbids, forces and penalises, for a search of sentences.  tokenizer: of the target.

    begins: which of them begin with `decoding.prefix`. Raises SettingsError for what the tokenizer cannot spell, and
    DataError for a file that cannot be read.
    """
    specials = tokenizer.specials
    rules: list[Rule] = [ForbidTokens(tuple(sorted({specials.pad, specials.bos} - {specials.eos})))]
    if settings.min_length:
        rules.append(MinimumLength(settings.min_length))
    only = _vocabulary(tokenizer, settings.vocabulary)
    if only is not None:
        rules.append(only)
    if settings.no_repeat_ngram:
        rules.append(NoRepeatNgram(settings.no_repeat_ngram))
    if settings.repetition_penalty != 1.0:
        rules.append(RepetitionPenalty(settings.repetition_penalty))
    phrases = tuple(_phrases(tokenizer, settings.ban))
    if phrases:
        rules.append(_banned(tokenizer, phrases))
    text = tokenizer.spelling(settings.prefix)
    if text:
        spellings = _spellings(tokenizer, only and only.ids)
        _refuse_unspelled(spellings, text, "decoding.vocabulary" if only else "the target's vocabulary")
        if any(begins):
            rules.append(TextPrefix(spellings, text, begins))
    return rules


def check_rules(tokenizer: Tokenizer, settings: DecodingSettings) -> None:
    """Raise what `rules_of` would, before any text is read."""
    rules_of(tokenizer, (), settings)


def explained(error: SearchError, checkpoint: Checkpoint, settings: DecodingSettings) -> SearchError:
    """The error, saying so if the head may be why a sentence can say nothing that rules allow."""
    if checkpoint.model.head.full_support or not (settings.prefix or settings.vocabulary):
        return error
    why = "decoding.prefix" if settings.prefix else "decoding.vocabulary"
    kind = checkpoint.config.model.head.kind
    reason = f"{error.reason}; model.head.kind = '{kind}' holds most tokens for impossible, those of {why} perhaps"
    return SearchError(reason, sentence=error.sentence, token=error.token)


def word_character(character: str) -> bool:
    """Whether a character is part of words: letters, digits and their marks; not of scripts without spaces."""
    return character_class(character) in ("letter", "digit", "mark")


def _refuse_unspelled(spellings: Spellings, text: bytes, wanted: str) -> None:
    reached = spellings.reach(text)
    if reached < len(text):
        before = text[:reached].decode(errors="ignore")
        found = text[len(before.encode()) :].decode()[:SHOWN]
        after = f" after {before.lstrip()[-SHOWN:]!r}" if before.strip() else ""
        raise SettingsError(f"decoding.prefix: found {found!r}{after}, wanted text that tokens of {wanted} spell")


def _phrases(tokenizer: Tokenizer, entries: Sequence[str]) -> list[str]:
    """Banned phrases, each once, as the tokenizer normalises them, words parted by one space."""
    texts: list[str] = []
    for entry in entries:
        if entry.startswith("@") and not entry.startswith("@@"):
            texts += [line for line in _lines_of(entry[1:]) if line.strip()]
        else:
            texts.append(entry[1:] if entry.startswith("@@") else entry)
    phrases = dict.fromkeys(" ".join(tokenizer.normalise(text).split()) for text in texts)
    if "" in phrases:
        raise SettingsError("decoding.ban: found a text without a word, wanted a word or a phrase")
    for phrase in phrases:
        if "\ufffd" in phrase:
            raise SettingsError(
                f"decoding.ban: found {phrase[:SHOWN]!r}, wanted text; U+FFFD is what cannot be read as text"
            )
    return list(phrases)


def _lines_of(path: str) -> list[str]:
    try:
        return list(read_lines(path))
    except DataError as error:
        raise DataError(f"decoding.ban: {error}") from None


def _vocabulary(tokenizer: Tokenizer, path: str) -> OnlyTokens | None:
    """The tokens of a file's texts; None where no file is named."""
    if not path:
        return None
    try:
        state = Path(path).stat()
    except OSError as error:
        raise DataError(f"decoding.vocabulary: {path}: cannot be read: {error.strerror}") from None
    return _only(tokenizer, path, (state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=4)
def _only(tokenizer: Tokenizer, path: str, stamp: Stamp) -> OnlyTokens:
    shown = {piece: id_ for id_, piece in enumerate(tokenizer.pieces())}
    specials = tokenizer.specials
    ids: set[int] = set()
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        found = {shown[line]} if line in shown else set()
        spelled = set(tokenizer.encode(line))
        found |= spelled if specials.unk not in spelled else set()
        if not found:
            raise SettingsError(f"{path}:{number}: found {line[:SHOWN]!r}, wanted text that the target's tokens spell")
        ids |= found
    ids -= {specials.pad, specials.bos, specials.eos, specials.unk}
    if not ids:
        raise SettingsError(f"decoding.vocabulary: {path} allows no token, wanted a word or a token a line")
    return OnlyTokens(ids)


@lru_cache(maxsize=4)
def _banned(tokenizer: Tokenizer, phrases: tuple[str, ...]) -> BannedPhrases:
    return BannedPhrases(tokenizer.spellings, phrases, word_character)


@lru_cache(maxsize=4)
def _spellings(tokenizer: Tokenizer, ids: tuple[int, ...] | None) -> Spellings:
    """What can spell a prefix: no unknown token, and of `ids` alone where a vocabulary is named."""
    allowed = set(range(len(tokenizer)) if ids is None else ids) - {tokenizer.specials.unk}
    return Spellings([each if id_ in allowed else b"" for id_, each in enumerate(tokenizer.spellings)])
