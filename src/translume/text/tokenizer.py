"""The tokenizer: converts text to ids and back."""

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, final

import numpy as np

from translume.atomic import write_file
from translume.checksums import DigestError, sealed, unsealed
from translume.config import TokenizerSettings
from translume.errors import DataError, SettingsError, refused
from translume.text.bpe_dropout import MergeDropout
from translume.text.imported import SPACE, SentenceIds
from translume.text.library import read_library_vocabulary
from translume.text.segmentation import MAX_SEGMENT, normaliser, segmenter, with_mark, without_mark
from translume.text.specials import BYTES, SpecialIds
from translume.text.split_words import WORD_END, SplitIds
from translume.text.vocabulary import MODELS, Vocabulary

CACHE_SIZE: Final = 200_000
"""Maximum number of segments whose ids are cached. A full cache is emptied."""
UNKNOWN: Final = "\ufffd"


class _SegmentIds(dict[str, tuple[int, ...]]):
    """A cache of the ids of each segment."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        first, pieces = vocabulary.first, vocabulary.pieces
        self._ids = {piece: id_ for id_, piece in enumerate(pieces) if id_ >= first and id_ not in vocabulary.silent}
        self._unknown = vocabulary.specials.unk
        self._byte = pieces.index(BYTES[0]) if self._unknown is None and vocabulary.library is None else 0
        self._model = vocabulary.model() if vocabulary.settings.kind in MODELS else None
        alphabet = "".join(re.escape(piece) for piece in self._ids if len(piece) == 1)
        self._runs = re.compile(f"([{alphabet}]+)" if alphabet else "((?!))", re.DOTALL)

    def __missing__(self, segment: str) -> tuple[int, ...]:
        if len(self) >= CACHE_SIZE:
            self.clear()
        ids = self[segment] = tuple(self._encode(segment))
        return ids

    def _encode(self, segment: str) -> list[int]:
        if self._model is None:
            known = self._ids.get(segment)
            return self._fallback(segment) if known is None else [known]
        ids: list[int] = []
        for index, run in enumerate(self._runs.split(segment)):
            ids += [token.id for token in self._model.tokenize(run)] if index % 2 else self._fallback(run)
        return ids

    def _fallback(self, text: str) -> list[int]:
        """Return the bytes of the text, or one unknown token for each of its units."""
        if self._unknown is None:
            return [self._byte + byte for byte in text.encode()]
        return [self._unknown] * (len(text) if self._model else 1)


class _WordIds(dict[str, tuple[int, ...]]):
    """A cache of the ids of each word with the space before it, made of those of its segments."""

    def __init__(self, segments: Callable[[str], list[str]], segment_ids: _SegmentIds) -> None:
        super().__init__()
        self._segments, self._segment_ids = segments, segment_ids

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple([id_ for segment in self._segments(" " + word) for id_ in self._segment_ids[segment]])
        if len(word) <= MAX_SEGMENT:
            if len(self) >= CACHE_SIZE:
                self.clear()
            self[word] = ids
        return ids


class _Shown(dict[int, str]):
    """A cache of the pieces of ids, as `Tokenizer.tokens` shows them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._pieces, self._first = vocabulary.pieces, vocabulary.first

    def __missing__(self, id_: int) -> str:
        piece = self._pieces[id_]
        if id_ >= self._first:
            piece = piece.replace(SPACE, SPACE * 2)  # ▁ is displayed instead of the space before a word
            piece = SPACE + piece[1:] if piece[0] == " " else piece
        self[id_] = piece
        return piece


@final
class Tokenizer:
    """Converts text to ids and back. Immutable and thread-safe.

    With `unknown = "bytes"`, `decode(encode(text)) == normalise(text)` for any text. Special tokens are never matched
    in text: a typed `</s>` is text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.settings: TokenizerSettings = vocabulary.settings
        self.specials: SpecialIds = vocabulary.specials
        sentences = vocabulary.sentences
        self._spelt: SentenceIds | SplitIds | None = None
        if sentences is not None:
            self._spelt = SentenceIds(sentences, vocabulary.pieces, self.specials, vocabulary.dropped)
        elif (words := vocabulary.words) is not None:
            self._spelt = SplitIds(words, vocabulary.pieces, self.specials, vocabulary.silent)
        self._imported = self._spelt or vocabulary.library
        self.normalise = normaliser(vocabulary.settings) if self._imported is None else self._imported.normalise
        """Normalises a text, as before learning and encoding; `decode` returns normalised text."""
        self.languages: Mapping[str, int] = vocabulary.languages
        """The id of each language's tag, by its code. No text is encoded to a tag, and `decode` drops tags."""
        self.vocabulary = vocabulary
        self._kind = vocabulary.settings.kind
        self._segments = segmenter(self._kind)
        self._segment_ids = _SegmentIds(vocabulary)
        self._word_ids = _WordIds(self._segments, self._segment_ids)
        self._bytes, self._shown = _spellings(vocabulary), _Shown(vocabulary)
        library = vocabulary.library
        self._of_library = None if library is None else library.decoder(self.specials, vocabulary.dropped, UNKNOWN)

    def __len__(self) -> int:
        """Return V, the number of ids."""
        return len(self.vocabulary.pieces)

    def encode(self, text: str) -> list[int]:
        """Return the ids of the normalised text, without bos and eos."""
        if self._imported is not None:
            return self._imported.encode(text)
        marked = with_mark(self.normalise(text), self._kind)
        if self._kind in ("character", "byte"):
            segment_ids = self._segment_ids
            return [id_ for character in marked for id_ in segment_ids[character]]
        begin, *words = marked.split(" ")
        ids = [id_ for segment in self._segments(begin) for id_ in self._segment_ids[segment]] if begin else []
        word_ids = self._word_ids
        for word in words:
            ids += word_ids[word]
        return ids

    def segment_ids(self, segment: str) -> tuple[int, ...]:
        """Return the ids of one segment or piece, with its space, as within a text. Not for imported tokenizers."""
        return self._segment_ids[segment]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def drop(self, ids: Sequence[int], dropout: float, seed: int) -> list[int]:
        """Segment the text of `ids` again with BPE-dropout (Provilkov et al. 2020); the same ids for dropout 0.

        `dropout` is the probability in [0, 1] that a merge is skipped. Raises SettingsError for a kind without merges.
        """
        plain: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if dropout == 0:
            return plain
        if self._kind != "bpe":
            raise SettingsError(
                f"tokenizer.dropout: found {dropout} with kind '{self._kind}', expected 0; only kind 'bpe' has merges"
            )
        if not 0 <= dropout <= 1:
            raise SettingsError(f"tokenizer.dropout: found {dropout}, expected a probability from 0 to 1")
        return self._dropout.draw(plain, dropout, seed)

    @cached_property
    def _dropout(self) -> MergeDropout:
        pieces = self.vocabulary.pieces
        ids = {piece: id_ for id_, piece in enumerate(pieces)}
        pairs = {(ids[left], ids[right]): ids[left + right] for left, right in self.vocabulary.merges}
        return MergeDropout(pieces, pairs, self.vocabulary.first)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. <unk> and invalid bytes become U+FFFD; the other special tokens add nothing."""
        return self.without_mark(self._text(ids)) if self._of_library is None else self._of_library(ids)

    def beginning(self, ids: Sequence[int]) -> str:
        """Return a text that `decode` of any continuation of these ids begins with.

        Leaves out an incomplete character and trailing white space, since the continuation may change them.
        """
        if self._of_library is not None:
            return self._of_library(ids).rstrip(UNKNOWN).rstrip()
        spellings = self._bytes
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join([spellings[id_] for id_ in ids]))
        return (self._spelt.beginning(text) if isinstance(self._spelt, SplitIds) else self.without_mark(text)).rstrip()

    def without_mark(self, text: str) -> str:
        """Return the text of `spellings` as `decode` returns it: without the mark of its first word."""
        return without_mark(text, self._kind) if self._spelt is None else self._spelt.without_mark(text)

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text of ids including the mark of the first word."""
        spellings = self._bytes
        return b"".join([spellings[id_] for id_ in ids]).decode(errors="replace")

    def spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `decode(ids)` that each id stands for, with the space before a word.

        An id that adds nothing has begin = end. A character of several ids (bytes) belongs to each of them.
        """
        if isinstance(self._spelt, SplitIds):
            return self._spelt.spans_of([self._bytes[id_].decode() for id_ in ids])
        spelt = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # The mark of the first word is not part of the text; a library may strip spaces at the end instead.
        spelt_text, text = self._text(ids), self.decode(ids)
        shift = len(spelt_text) - len(text) if self._of_library is None else spelt_text[:1] == " " != text[:1]
        spans, count, begun = [], 0, 0
        for id_ in ids:
            spelling = self._bytes[id_]
            goes_on = begun and b"\x80" <= spelling[:1] < b"\xc0"
            begin = count if goes_on else count + begun  # an incomplete character that does not continue is invalid
            count += len(spelt.decode(spelling))
            begun = len(spelt.getstate()[0].decode(errors="replace"))  # 2 for half a surrogate pair
            spans.append((max(0, begin - shift), max(0, count + begun - shift)))
        if self._of_library is not None:
            spans = [(min(begin, len(text)), min(end, len(text))) for begin, end in spans]
        return spans

    def spans_in(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [begin, end) of `normalise(text)` that each id of `encode(text)` stands for."""
        if self._imported is not None:
            return self._imported.spans(text)
        text = self.normalise(text)
        if self._kind != "word":
            return self.spans(self.encode(text))  # an unknown token stands for one character and is decoded as one
        marked = with_mark(text, self._kind)
        ends = [0, *accumulate(map(len, self._segments(marked)))]
        shift = len(marked) - len(text)
        return [(max(0, begin - shift), end - shift) for begin, end in pairwise(ends)]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return pieces for display: `▁` where a word begins, `<0xE2>` for a byte, `</s>` for a special token."""
        shown = self._shown
        return [shown[id_] for id_ in ids]

    def pieces(self) -> list[str]:
        """Return the vocabulary in the order of ids, as `tokens` shows it. All are distinct."""
        return self.tokens(range(len(self)))

    @property
    def spellings(self) -> tuple[bytes, ...]:
        """The UTF-8 bytes that each id adds to a text. `decode` removes the space before the first word."""
        return tuple(self._bytes)

    def spelling(self, text: str) -> bytes:
        """Return the bytes that the ids of a text add up to: normalised, in UTF-8, with the mark of its first word."""
        return with_mark(self.normalise(text), self._kind).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Return the content of tokenizer.json: a format number, the settings and the library's tokenizer."""
        return self.vocabulary.to_json()

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Pickle for worker processes by the content of tokenizer.json."""
        return Tokenizer.from_json, (self.to_json(),)

    @classmethod
    def from_json(cls, text: str, place: str = "tokenizer.json") -> "Tokenizer":
        """Read what `to_json` returned. Raises DataError, beginning with `place`, for anything else."""
        vocabulary = Vocabulary.from_json(text, place)
        try:
            return cls(vocabulary)
        except ValueError as error:
            raise DataError(f"{place}: damaged: {error}") from None

    def save(self, path: Path) -> None:
        """Write tokenizer.json atomically. Raises DataError if it cannot be written."""
        write_file(path, sealed(json.loads(self.to_json()), ensure_ascii=False).encode(), permissions=0o644)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a file that `save` wrote, or a tokenizer.json of the library `tokenizers` as it is.

        Special tokens of the latter are those that the files beside it name, else the usual ones.
        Raises DataError, naming the file, for anything else.
        """
        if path.suffix in (".spm", ".model"):
            raise DataError(
                f"{path}: found a SentencePiece model, expected a tokenizer.json of Translume; "
                "tokenizer.kind = 'unigram' without a path trains one"
            )
        try:
            with refused(path, "cannot be read"):
                text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{path}: not a tokenizer of Translume: not UTF-8 text") from None
        try:
            unsealed(text)
        except DigestError as error:
            raise DataError(f"{path}: damaged or changed: {error}; restore it from a copy") from None
        except (ValueError, RecursionError):
            pass  # the error of `from_json` says more
        return cls._of_the_library(path, text) or cls.from_json(text, str(path))

    @classmethod
    def _of_the_library(cls, path: Path, text: str) -> "Tokenizer | None":
        """Return the tokenizer of a file of the library `tokenizers`; None for another file."""
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            if isinstance(document, dict) and {"model", "added_tokens"} <= document.keys():
                return cls(read_library_vocabulary(path, document))
        return None


def _spellings(vocabulary: Vocabulary) -> list[bytes]:
    """Return what each id adds to a decoded text."""
    specials = vocabulary.specials
    if vocabulary.library is not None:
        return vocabulary.library.spellings(specials, vocabulary.dropped, UNKNOWN.encode())
    unknown = (" " if vocabulary.settings.kind == "word" else "") + UNKNOWN
    pieces = vocabulary.pieces
    if (words := vocabulary.words) is not None:
        unknown = words.spelling(UNKNOWN if words.joiner else UNKNOWN + WORD_END)
        pieces = tuple(map(words.spelling, pieces))
    result = [piece.encode() for piece in pieces]
    for id_ in specials.marks | vocabulary.dropped:
        result[id_] = b""
    if specials.unk is not None:
        result[specials.unk] = unknown.encode()
    if vocabulary.sentences is not None and vocabulary.sentences.fallback:
        for byte, piece in enumerate(BYTES):
            result[vocabulary.pieces.index(piece)] = bytes([byte])
    elif specials.unk is None:
        begin = vocabulary.pieces.index(BYTES[0])
        result[begin : begin + 256] = [bytes([byte]) for byte in range(256)]
    return result
