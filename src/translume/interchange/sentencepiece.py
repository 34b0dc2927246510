"""Read and write SentencePiece models, .spm files: protocol buffers. Unsupported options are refused by name."""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from translume.errors import DataError, SettingsError
from translume.text import SentencePieces

SPACE = "▁"
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
NORMAL, SYMBOL = 1, 4
"""Types of pieces that segment text; unknown, control and unused pieces never do."""
SPECIAL = (("<unk>", 2), ("<s>", 3), ("</s>", 3))
"""The first pieces of a written model, whose ids are SentencePiece's defaults, and their types."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value = int | bytes
RECENT = 2048
"""Number of units at the end of a growing double array that are searched for free ones."""
_VALUE = -1
"""Key of a node's value in the tree of a double array."""


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
        ("byte_fallback", file.byte_fallback, False),
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
    return SentencePieces(scores=scores, rules=file.rules, merges=kind == "bpe")


def read_pieces(path: Path) -> tuple[str, ...]:
    """Return all pieces of a model in order of ids, as the file has them. Raises DataError for a damaged file."""
    return tuple(piece for piece, _, _ in _read(path).pieces)


def write_sentencepiece(model: SentencePieces) -> bytes:
    """Return the content of a file from which `read_sentencepiece` reads this model."""
    given = [*((piece, 0.0, kind) for piece, kind in SPECIAL)]
    given += [(piece.replace(" ", SPACE), score, NORMAL) for piece, score in model.scores.items()]
    pieces = [
        _written(1, piece.encode()) + _tag(2, _FIXED32) + struct.pack("<f", score) + _tag(3, _VARINT) + _number(kind)
        for piece, score, kind in given
    ]
    trainer = _tag(3, _VARINT) + _number(2 if model.merges else 1)
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


def read_charsmap(charsmap: bytes) -> dict[str, str]:
    """Return the replacements of a normaliser: the keys of a double array (Aoe 1989) and the texts they point to.

    The blob holds the array's size in bytes, the array in the format of Darts-clone, and zero-terminated texts.
    """
    if not charsmap:
        return {}
    (size,) = struct.unpack_from("<I", charsmap)
    if size % 4 or 4 + size > len(charsmap):
        raise ValueError("the double array extends beyond the rules")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    return _keys(np.pad(units, (0, -len(units) % 256)), charsmap[4 + size :])


def _keys(units: NDArray[np.int64], texts: bytes) -> dict[str, str]:
    """Return the keys of a double array in order of length; a node's child by byte b is at index `node ^ b`."""
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    has_leaf = (units >> 8) & 1
    labels = np.where(units & 0x80000000, 0, units & 0xFF).astype(np.uint8).reshape(-1, 256)
    wanted = np.arange(256, dtype=np.uint8)[:, None] ^ np.arange(256, dtype=np.uint8)
    wanted[np.arange(256), np.arange(256)] = 255  # byte 0 ends a key and leads to its value
    labels[labels == 255] = 0  # not a byte of UTF-8
    found: dict[str, str] = {}
    nodes, keys = offsets[:1], [b""]
    while len(nodes):
        parents, lows = (labels[nodes >> 8] == wanted[nodes & 255]).nonzero()
        places = (nodes[parents] & ~255) | lows
        letters = ((nodes[parents] ^ lows) & 255).tolist()
        keys = [keys[parent] + bytes((letter,)) for parent, letter in zip(parents.tolist(), letters, strict=True)]
        nodes = places ^ offsets[places]
        leaves = has_leaf[places].nonzero()[0]
        for row, begin in zip(leaves.tolist(), (units[nodes[leaves]] & 0x7FFFFFFF).tolist(), strict=True):
            found[keys[row].decode()] = texts[begin : texts.index(0, begin)].decode()
    return found


def write_charsmap(rules: Mapping[str, str]) -> bytes:
    """Return the bytes from which `read_charsmap` reads these rules; empty for none."""
    if not rules:
        return b""
    texts, places = bytearray(), {}
    for put in rules.values():
        if put not in places:
            places[put] = len(texts)
            texts += put.encode() + b"\0"
    units = _double_array({given.encode(): places[put] for given, put in rules.items()})
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + bytes(texts)


def _double_array(values: Mapping[bytes, int]) -> list[int]:
    """Return the units of a double array (Aoe 1989) in the format of Darts-clone: 256 times a whole number of them.

    A node at index i with base b = i ^ offset has its child by byte c at b ^ c, and its value, if it has one, at b.
    Nodes below which the same keys and values follow have the same base, so that they need space once.
    """
    nodes = _shared_nodes(values)
    units, used = [0] * 256, {0}
    bases: dict[int, int] = {}
    taken = {0}  # SentencePiece refuses a root that is its own child by byte 0
    waiting = [(0, len(nodes) - 1)]
    while waiting:
        place, number = waiting.pop()
        node = nodes[number]
        known, base = number in bases, bases.get(number, 0)
        if not known:
            labels = [max(label, 0) for label, _ in node]
            free = max(1, len(units) - RECENT)
            while free in used or (base := free ^ labels[0]) in taken or any(base ^ each in used for each in labels):
                free += 1
            bases[number] = base
            taken.add(base)
            used.update(base ^ each for each in labels)
            units += [0] * (256 * (base // 256 + 1) - len(units))
        units[place] |= (place ^ base) << 10 | (node[0][0] == _VALUE) << 8
        for label, child in () if known else node:
            if label == _VALUE:
                units[base] = child | 1 << 31
            else:
                units[base ^ label] = label
                waiting.append((base ^ label, child))
    return units


def _shared_nodes(values: Mapping[bytes, int]) -> list[tuple[tuple[int, int], ...]]:
    """Return the different nodes of a tree of keys, children before parents.

    A node is its labels in ascending order, each with the number of the child; `_VALUE` first, with the value.
    """
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    path: list[list[tuple[int, int]]] = [[]]
    before = b""

    def close(depth: int) -> None:
        while len(path) > depth + 1:
            node = tuple(path.pop())
            path[-1].append((before[len(path) - 1], numbers.setdefault(node, len(numbers))))

    for key in sorted(values):
        same = next((i for i, (one, other) in enumerate(zip(before, key, strict=False)) if one != other), len(before))
        close(same)
        path += [[] for _ in key[same:]]
        path[-1].append((_VALUE, values[key]))
        before = key
    close(0)
    return [*numbers, tuple(path[0])]
