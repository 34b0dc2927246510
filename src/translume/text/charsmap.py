"""The rules of a SentencePiece normaliser as bytes: a double array of their keys, and the texts that replace them."""

import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

RECENT = 2048
"""Number of units at the end of a growing double array that are searched for free ones."""
_VALUE = -1
"""Key of a node's value in the tree of a double array."""


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
