"""The vocabulary of a tokenizer and its JSON file, which is validated on reading and canonical on writing."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from pydantic import ValidationError
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

from translume.config import TokenizerSettings
from translume.config.base import RAISE_RAW
from translume.errors import DataError
from translume.text.imported import SPACE, LibraryIds, SentencePieces
from translume.text.specials import BYTES, SpecialIds, SpeechTokens
from translume.text.split_words import SplitWords

FORMAT = 1
PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
BYTE_PIECES = (PAD, BOS, EOS, *BYTES)
"""The pieces of kind "byte", and the first ones of vocabularies with byte fallback."""
MODELS = {"bpe": "BPE", "unigram": "Unigram", "wordpiece": "WordPiece"}
"""The library's model for each kind; the other kinds are look-ups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Pieces in the order of ids (special tokens, bytes, text), with the scores or merges that the kind needs."""

    settings: TokenizerSettings
    specials: SpecialIds
    pieces: tuple[str, ...]
    """A piece that begins a word starts with a space."""
    first: int
    """Ids below are special tokens and bytes."""
    scores: tuple[float, ...] = ()
    """Log-probabilities in nats, by id; only for "unigram"."""
    merges: tuple[tuple[str, str], ...] = ()
    """In merge order; only for "bpe"."""
    sentences: SentencePieces | None = None
    """The SentencePiece model; only for "sentencepiece", whose special tokens may have any ids."""
    library: LibraryIds | None = None
    """The tokenizer of the library; only for "library", whose special tokens may have any ids."""
    words: SplitWords | None = None
    """How words are cut; only for "split", whose special tokens may have any ids."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """The id of the tag of each language code: a special token that tells the model a language. Any text stays text."""
    silent: frozenset[int] = frozenset()
    """Ids that no text is encoded to and that add nothing to a text, such as the sentinels of T5."""

    @property
    def dropped(self) -> frozenset[int]:
        """Ids that no text is encoded to and that add nothing to a text: `silent` ones and the tags of languages."""
        return self.silent | set(self.languages.values())

    @classmethod
    def from_learned(
        cls,
        settings: TokenizerSettings,
        learned: Mapping[str, float],
        merges: tuple[tuple[str, str], ...] = (),
        languages: Sequence[str] = (),
    ) -> Self:
        """Build a vocabulary: special tokens and bytes, then learned pieces with scores (0 if the kind has none).

        languages: codes of languages, each of which gets a tag after the special tokens and bytes.
        """
        reserved = (*reserved_pieces(settings), *map(language_tag, languages))
        return cls(
            settings=id_settings(settings),
            specials=_learned_specials(settings),
            pieces=(*reserved, *learned),
            first=len(reserved),
            scores=(*(0.0 for _ in reserved), *learned.values()) if settings.kind == "unigram" else (),
            merges=merges,
            languages={code: reserved.index(language_tag(code)) for code in languages},
        )

    def with_silent(self, pieces: Sequence[str]) -> Self:
        """Return the vocabulary with tokens at its end that no text is encoded to, such as <mask>."""
        own = [piece for piece in pieces if piece not in self.pieces]
        added = range(len(self.pieces), len(self.pieces) + len(own))
        scores = (*self.scores, *(0.0 for _ in own)) if self.scores else ()
        return replace(self, pieces=(*self.pieces, *own), scores=scores, silent=self.silent | set(added))

    @classmethod
    def from_library(cls, specials: SpecialIds, library: LibraryIds, languages: Mapping[str, int]) -> Self:
        """Build a vocabulary from a tokenizer of the library, which shows pieces as they are."""
        return cls(
            settings=imported_settings("library", len(library.pieces)),
            specials=specials,
            pieces=library.pieces,
            first=len(library.pieces),
            library=library,
            languages=languages,
        )

    @classmethod
    def from_sentencepiece(
        cls,
        sentences: SentencePieces,
        pieces: Iterable[str],
        specials: SpecialIds,
        *,
        languages: Mapping[str, int] | None = None,
        silent: Iterable[int] = (),
    ) -> Self:
        """Build a vocabulary of these pieces, in order of ids, whose spaces may be SentencePiece's.

        Raises ValueError for a piece that is empty or occurs twice, and for a byte without a piece.
        """
        spaced = tuple(piece.replace(SPACE, " ") for piece in pieces)
        _check_pieces(spaced)
        if sentences.fallback and not set(BYTES) <= set(spaced):
            raise ValueError("a piece for a byte is missing")
        languages = languages or {}
        return cls(
            settings=imported_settings("sentencepiece", len(spaced)),
            specials=specials,
            pieces=spaced,
            first=0,
            sentences=sentences,
            languages=languages,
            silent=frozenset(silent) - set(languages.values()),
        )

    @classmethod
    def from_words(
        cls, words: SplitWords, pieces: Sequence[str], specials: SpecialIds, silent: Iterable[int] = ()
    ) -> Self:
        """Build a vocabulary of these pieces of words. Raises ValueError for one that is empty or occurs twice."""
        _check_pieces(pieces)
        return cls(
            settings=imported_settings("split", len(pieces)),
            specials=specials,
            pieces=tuple(pieces),
            first=len(pieces),
            words=words,
            silent=frozenset(silent),
        )

    @classmethod
    def from_bytes(cls, pieces: tuple[str, ...], specials: SpecialIds, silent: Iterable[int]) -> Self:
        """Build the vocabulary of an imported model of bytes, whose special tokens may have any ids.

        Raises ValueError for bytes that are not in order, and for special tokens that are bytes.
        """
        _check_pieces(pieces)
        begin = pieces.index(BYTES[0]) if BYTES[0] in pieces else 0
        if pieces[begin : begin + len(BYTES)] != BYTES:
            raise ValueError("the bytes are not in order")
        for id_ in specials.marks:
            if pieces[id_] in BYTES:
                raise ValueError(f"the special id {id_} is that of a byte")
        return cls(
            settings=imported_settings("byte", len(pieces)),
            specials=specials,
            pieces=pieces,
            first=len(pieces),
            silent=frozenset(silent),
        )

    def speech_tokens(self) -> SpeechTokens:
        """Return the special tokens of Whisper. Raises SettingsError if one is missing."""
        return SpeechTokens.from_pieces(self.pieces, self.languages)

    def model(self) -> models.Model:
        """Return the library's model, which segments runs of known characters."""
        ids = {piece: id_ for id_, piece in enumerate(self.pieces)}
        unk = UNK if self.specials.unk is not None else None
        kind, fallback = self.settings.kind, unk is None
        if kind == "unigram":
            scored = list(zip(self.pieces, self.scores, strict=True))
            return models.Unigram(scored, unk_id=self.specials.unk, byte_fallback=fallback)
        if kind == "bpe":
            return models.BPE(ids, list(self.merges), unk_token=unk, byte_fallback=fallback)
        if kind == "wordpiece":
            longest = max(map(len, self.pieces), default=1) + 1000
            return models.WordPiece(ids, unk_token=UNK, continuing_subword_prefix="", max_input_chars_per_word=longest)
        return models.WordLevel(ids, unk_token=UNK)

    def to_json(self) -> str:
        """Return the JSON text: the settings that determine ids, the special ids and the library's tokenizer."""
        ids = self.specials
        document: dict[str, Any] = {
            "format": FORMAT,
            "kind": "translume tokenizer",
            "settings": {name: getattr(self.settings, name) for name in _ID_SETTINGS},
            "specials": {"pad": ids.pad, "bos": ids.bos, "eos": ids.eos, "unk": ids.unk},
        }
        if ids.start_is_text:
            document["specials"]["start_is_text"] = True
        if not ids.ends_source:
            document["specials"]["ends_source"] = False
        if ids.after_eos:
            document["specials"]["after_eos"] = ids.after_eos
        if self.languages:
            document["languages"] = dict(self.languages)
        if self.silent:
            document["silent"] = sorted(self.silent)
        if self.library is not None:
            document["tokenizer"] = self.library.document
        elif self.settings.kind == "byte" and self.pieces[: len(BYTE_PIECES)] != BYTE_PIECES:
            document["pieces"] = self.pieces
        elif self.words is not None:
            document |= {"pieces": self.pieces, "words": self.words.to_dict()}
        elif self.sentences is not None:
            document |= {"pieces": self.pieces, "sentencepiece": self.sentences.to_dict()}
        else:
            document["tokenizer"] = json.loads(LibraryTokenizer(self.model()).to_str())
        return json.dumps(document, ensure_ascii=False, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, place: str) -> Self:
        """Read a vocabulary from JSON. Raises DataError, beginning with `place`."""
        try:
            document = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{place}: not a tokenizer of Translume: not JSON: {error}") from None
        if not isinstance(document, dict) or document.get("kind") != "translume tokenizer":
            raise DataError(f"{place}: is other JSON; expected a tokenizer written by Translume")
        if (format_ := document.get("format")) != FORMAT:
            raise DataError(f"{place}: found format {format_!r}, expected {FORMAT}; a newer Translume may read it")
        try:
            return cls._checked(document)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, ("settings", *fault["loc"])))
            raise DataError(f"{place}: damaged: {where}: {fault['msg']}, found {fault['input']!r}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            missing = " is missing" if isinstance(error, KeyError) else ""
            raise DataError(f"{place}: damaged: {error}{missing}") from None

    @classmethod
    def _checked(cls, document: dict[str, Any]) -> Self:
        settings = TokenizerSettings.model_validate(document["settings"], context=RAISE_RAW)
        if settings.kind == "library":
            library = LibraryIds(document["tokenizer"], settings.size)
            specials, languages, _ = _checked_ids(document, settings.size)
            return cls.from_library(specials, library, languages)
        if "pieces" in document:
            pieces = tuple(document["pieces"])
            specials, languages, silent = _checked_ids(document, len(pieces))
            if settings.kind == "byte":
                return cls.from_bytes(pieces, specials, silent)
            if settings.kind == "split":
                return cls.from_words(SplitWords.from_dict(document["words"]), pieces, specials, silent)
            sentences = SentencePieces.from_dict(document["sentencepiece"])
            return cls.from_sentencepiece(sentences, pieces, specials, languages=languages, silent=silent)
        return cls._checked_learned(settings, document)

    @classmethod
    def _checked_learned(cls, settings: TokenizerSettings, document: dict[str, Any]) -> Self:
        model = document["tokenizer"]["model"]
        if settings.kind == "unigram":
            pieces = tuple(piece for piece, _ in model["vocab"])
            scores = tuple(float(score) for _, score in model["vocab"])
        else:
            pieces, scores = tuple(sorted(model["vocab"], key=model["vocab"].__getitem__)), ()
            if [model["vocab"][piece] for piece in pieces] != list(range(len(pieces))):
                raise ValueError("ids of the vocabulary are not 0, 1, 2, …")
        _check_pieces(pieces)
        merges = tuple((left, right) for left, right in model["merges"]) if settings.kind == "bpe" else ()
        known = set(pieces)
        for left, right in merges:
            if not {left, right, left + right} <= known:
                raise ValueError(f"the merge of {left!r} and {right!r} is not in the vocabulary")
        reserved = reserved_pieces(settings)
        if pieces[: len(reserved)] != reserved:
            raise ValueError("the special tokens and bytes do not come first")
        specials, languages, silent = _checked_ids(document, len(pieces))
        first = len(reserved) + len(languages)
        if sorted(languages.values()) != list(range(len(reserved), first)):
            raise ValueError("the tags of languages do not follow the special tokens and bytes")
        if specials != _learned_specials(settings):
            raise ValueError("the special ids are not those of the vocabulary")
        return cls(
            settings=id_settings(settings),
            specials=specials,
            pieces=pieces,
            first=first,
            scores=scores,
            merges=merges,
            languages=languages,
            silent=silent,
        )


def _check_pieces(pieces: Sequence[str]) -> None:
    if len(set(pieces)) != len(pieces) or not all(isinstance(piece, str) and piece for piece in pieces):
        raise ValueError("a piece of the vocabulary is empty or occurs twice")


def _checked_ids(document: dict[str, Any], size: int) -> tuple[SpecialIds, dict[str, int], frozenset[int]]:
    """Return the special tokens, the tags of languages and the silent ids in tokenizer.json.

    Raises ValueError for one that is not an id of the vocabulary.
    """
    specials = {name: document["specials"][name] for name in ("pad", "bos", "eos", "unk")}
    languages = {str(code): id_ for code, id_ in document.get("languages", {}).items()}
    silent = frozenset(document.get("silent", ()))
    after = tuple(document["specials"].get("after_eos", ()))
    known = {name: id_ for name, id_ in specials.items() if id_ is not None or name != "unk"}
    for id_ in (*known.values(), *languages.values(), *silent, *after):
        if not isinstance(id_, int) or not 0 <= id_ < size:
            raise ValueError(f"the special id {id_!r} is not one of the {size} of the vocabulary")
    if specials["unk"] is None and document["settings"]["kind"] in ("sentencepiece", "split"):
        raise ValueError("the special id None is not one of the vocabulary")
    text, end = (document["specials"].get(name, name == "ends_source") is True for name in _FLAGS)
    return SpecialIds(**specials, start_is_text=text, ends_source=end, after_eos=after), languages, silent


_FLAGS = ("start_is_text", "ends_source")


_ID_SETTINGS = ("kind", "size", "normalization", "lowercase", "whitespace", "unknown")


def id_settings(settings: TokenizerSettings) -> TokenizerSettings:
    """Return only the settings that determine the ids of a text, without paths, sharing and dropout."""
    return TokenizerSettings(**{name: getattr(settings, name) for name in _ID_SETTINGS})


def imported_settings(kind: Literal["sentencepiece", "library", "byte", "split"], size: int) -> TokenizerSettings:
    """Return the settings of an imported tokenizer, whose own rules normalise a text."""
    if kind == "byte":
        return TokenizerSettings(kind=kind, size=size, normalization="none", whitespace="keep", unknown="bytes")
    return TokenizerSettings(kind=kind, size=max(size, 8), normalization="none", unknown="token")


def reserved_pieces(settings: TokenizerSettings) -> tuple[str, ...]:
    """Return the special tokens and bytes that come first in every learned vocabulary."""
    if settings.kind == "byte" or settings.unknown == "bytes":
        return BYTE_PIECES
    return (PAD, BOS, EOS, UNK)


def _learned_specials(settings: TokenizerSettings) -> SpecialIds:
    reserved = reserved_pieces(settings)
    return SpecialIds(pad=0, bos=1, eos=2, unk=reserved.index(UNK) if UNK in reserved else None)


def language_tag(code: str) -> str:
    """Return the tag of a language as a piece. It mixes letters and symbols, so no piece learned from text is equal."""
    return f"__{code}__"
