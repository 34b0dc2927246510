"""Read and write SentencePiece models, .spm files: protocol buffers. Unsupported options are refused by name."""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from translume.errors import DataError, SettingsError
from translume.text import SentencePieces
from translume.text.charsmap import read_charsmap, write_charsmap
from translume.text.specials import BYTES

SPACE = "▁"
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
NORMAL, SYMBOL, BYTE = 1, 4, 6
"""Types of pieces: the first two segment text, the last stands for a byte of an unknown character."""
SPECIAL = (("<unk>", 2), ("<s>", 3), ("</s>", 3))
"""The first pieces of a written model, whose ids are SentencePiece's defaults, and their types."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value = int | bytes


def read_sentencepiece(path: Path, reserved: re.Pattern[str] | None = None) -> SentencePieces:
    """Read the model in a file, unigram or byte-pair encoding.

    reserved: matches whole pieces that do not segment text, although the file may say that they do.
    Raises DataError for a damaged file, SettingsError naming an option that would change the segmentation here.
    """
    file = _read(path)
    if reserved is not None:
        file = replace(file, pieces=[each for each in file.pieces if not reserved.fullmatch(each[0])])
    kind = KINDS.get(file.kind, str(file.kind))
    for name, found, wanted in (
        ("model_type", "unigram" if kind == "bpe" else kind, "unigram"),
        ("treat_whitespace_as_suffix", file.suffix, False),
        ("add_dummy_prefix", file.dummy_prefix, True),
        ("remove_extra_whitespaces", file.collapse, True),
        ("escape_whitespaces", file.escape, True),
        ("user_defined_symbols", [piece for piece, _, kind in file.pieces if kind == SYMBOL], []),
        ("denormalizer_spec", "rules" if file.denormalizes else "none", "none"),
    ):
        if found != wanted:
            raise SettingsError(f"{path}: {name}: found {found!r}, expected {wanted!r}")
    scores = {piece.replace(SPACE, " "): score for piece, score, kind in file.pieces if kind == NORMAL}
    if not scores or "" in scores:
        raise DataError(f"{path}: damaged: it has no pieces, or an empty one")
    known_bytes = {piece for piece, _, kind in file.pieces if kind == BYTE}
    if file.byte_fallback and known_bytes != set(BYTES):
        raise DataError(f"{path}: damaged: it has {len(known_bytes)} pieces for bytes, expected 256")
    return SentencePieces(scores=scores, rules=file.rules, merges=kind == "bpe", fallback=file.byte_fallback)


def read_pieces(path: Path) -> tuple[str, ...]:
    """Return all pieces of a model in order of ids, as the file has them. Raises DataError for a damaged file."""
    return tuple(piece for piece, _, _ in _read(path).pieces)


def write_sentencepiece(model: SentencePieces) -> bytes:
    """Return the content of a file from which `read_sentencepiece` reads this model."""
    given = [*((piece, 0.0, kind) for piece, kind in SPECIAL)]
    given += [(piece, 0.0, BYTE) for piece in BYTES] if model.fallback else []
    given += [(piece.replace(" ", SPACE), score, NORMAL) for piece, score in model.scores.items()]
    return _model_file(model, given)


def write_vocabulary(model: SentencePieces, pieces: Sequence[str]) -> bytes | None:
    """Return the content of a file whose ids are those of `pieces`, or None if the model has other pieces.

    pieces: with spaces, and with special tokens by the names of SentencePiece.
    """
    kinds = {piece: kind for piece, kind in SPECIAL if piece in pieces}
    kinds |= dict.fromkeys(BYTES, BYTE) if model.fallback else {}
    if len(pieces) != len(kinds) + len(model.scores) or {*kinds, *model.scores} != set(pieces):
        return None
    given = [(piece.replace(" ", SPACE), model.scores.get(piece, 0.0), kinds.get(piece, NORMAL)) for piece in pieces]
    return _model_file(model, given)


def _model_file(model: SentencePieces, given: Iterable[tuple[str, float, int]]) -> bytes:
    """Return the content of a file with these pieces, scores and types."""
    pieces = [
        _written(1, piece.encode()) + _tag(2, _FIXED32) + struct.pack("<f", score) + _tag(3, _VARINT) + _number(kind)
        for piece, score, kind in given
    ]
    trainer = _tag(3, _VARINT) + _number(2 if model.merges else 1) + _tag(35, _VARINT) + _number(model.fallback)
    normalizer = _written(2, write_charsmap(model.rules))
    return b"".join([*(_written(1, piece) for piece in pieces), _written(2, trainer), _written(3, normalizer)])


def _written(field: int, content: bytes) -> bytes:
    return _tag(field, _BYTES) + _number(len(content)) + content


def _tag(field: int, kind: int) -> bytes:
    return _number(field << 3 | kind)


def _number(value: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _read(path: Path) -> "_File":
    try:
        return _File.of(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, IndexError, struct.error, UnicodeDecodeError):
        raise DataError(f"{path}: damaged, or not a model of SentencePiece") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The fields of the file; pieces are (text, score, type)."""

    pieces: list[tuple[str, float, int]]
    kind: int
    byte_fallback: bool
    suffix: bool
    dummy_prefix: bool
    collapse: bool
    escape: bool
    denormalizes: bool
    rules: dict[str, str]

    @classmethod
    def of(cls, content: bytes) -> "_File":
        fields = list(_fields(content))
        trainer = _last(fields, 2)
        normalizer = _last(fields, 3)
        denormalizer = _last(fields, 5)
        return cls(
            pieces=[_piece(_message(value)) for number, value in fields if number == 1],
            kind=_integer(trainer, 3, 1),
            byte_fallback=bool(_integer(trainer, 35, 0)),
            suffix=bool(_integer(trainer, 24, 0)),
            dummy_prefix=bool(_integer(normalizer, 3, 1)),
            collapse=bool(_integer(normalizer, 4, 1)),
            escape=bool(_integer(normalizer, 5, 1)),
            denormalizes=bool(_message(denormalizer.get(2, b""))),
            rules=read_charsmap(_message(normalizer.get(2, b""))),
        )


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield numbers and values of a message's fields. Raises ValueError or IndexError for a malformed message."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"field of type {kind}")
        if place + size > len(message):
            raise ValueError("a field extends beyond the message")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def _message(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("found a number, expected a message")
    return value


def _last(fields: list[tuple[int, Value]], wanted: int) -> dict[int, Value]:
    """Return the fields of the message with the number `wanted`, by number; the last one wins among duplicates."""
    return {name: value for number, part in fields if number == wanted for name, value in _fields(_message(part))}


def _integer(fields: dict[int, Value], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError("found a message, expected a number")
    return value


def _piece(message: bytes) -> tuple[str, float, int]:
    fields = dict(_fields(message))
    (score,) = struct.unpack("<f", _message(fields.get(2, bytes(4))))
    return _message(fields.get(1, b"")).decode(), score, _integer(fields, 3, NORMAL)
