"""The size that the header of a recording states: whether the file is whole, and what a pipe left open."""

import re
from typing import Final

UNKNOWN: Final = 0x7F000000
"""From this size on, a program wrote to a pipe and did not know it. No file that is read is as large."""
_XING: Final = re.compile(rb"(?:Xing|Info)...([\x02-\x0f])", re.DOTALL)
_MP3_HEAD: Final = 256
"""Bytes of an MP3's first frame that may hold its number of bytes."""


def is_truncated(content: bytes) -> bool:
    """Return whether a file is shorter than its header says."""
    return len(content) < _stated_size(content) < UNKNOWN


def with_sizes(content: bytes) -> bytes:
    """Return a file with unknown sizes in its header set so that it is read to its end."""
    kind, size = content[:4], len(content)
    if kind == b".snd" and not content[8:12].strip(b"\0"):
        return content[:8] + b"\xff" * 4 + content[12:]
    if kind == b"fLaC":  # the number of samples is compared by the reader; libsndfile believes it
        return content[:21] + bytes([content[21] & 0xF0, 0, 0, 0, 0]) + content[26:]
    if kind not in (b"RIFF", b"RF64") or size < _stated_size(content) < UNKNOWN:
        return content
    place = 12
    while place + 8 <= size:
        name, length = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], "little")
        if name == b"ds64" and not 0 < int.from_bytes(content[place + 16 : place + 24], "little") < UNKNOWN:
            content = content[: place + 16] + size.to_bytes(8, "little") + content[place + 24 :]
        if name == b"data" and not length and not place + 8 < _stated_size(content) < UNKNOWN:
            return content[: place + 4] + b"\xff" * 4 + content[place + 8 :]
        place += 8 + length + length % 2
    return content


def stated_samples(content: bytes) -> int:
    """Return the number of samples that a FLAC file states; 0 for others, and if it is unknown."""
    return int.from_bytes(content[21:26]) & (1 << 36) - 1 if content[:4] == b"fLaC" else 0


def _stated_size(content: bytes) -> int:
    """Return the size of a whole file as its header states it; 0 if it does not."""
    kind = content[:4]
    if kind == b"RIFF":  # and a byte less, here and below: the padding of an odd chunk is often missing
        return 7 + int.from_bytes(content[4:8], "little")
    if kind == b"RF64" and content[12:16] == b"ds64":
        return 7 + int.from_bytes(content[20:28], "little")
    if kind == b"riff":  # W64
        return int.from_bytes(content[16:24], "little")
    if kind == b"FORM":
        return 7 + int.from_bytes(content[4:8])
    if kind == b".snd":
        return int.from_bytes(content[4:8]) + int.from_bytes(content[8:12])
    return _ogg_size(content) if kind == b"OggS" else _mp3_size(content)


def _ogg_size(content: bytes) -> int:
    """Return the end of the last page of an Ogg file, which may be beyond the end of the file."""
    place = 0
    while place < len(content) and b"OggS".startswith(content[place : place + 4]):
        segments = content[place + 27 : place + 27 + content[place + 26]] if place + 26 < len(content) else b""
        place += 27 + len(segments) + sum(segments)
    return place


def _mp3_size(content: bytes) -> int:
    """Return the end of an MP3 by the tag in its first frame that encoders write; 0 if there is none."""
    begin = 0
    while content[begin : begin + 3] == b"ID3":
        begin += 10 + sum(
            (each & 0x7F) << 7 * (3 - place) for place, each in enumerate(content[begin + 6 : begin + 10])
        )
    match = _XING.search(content, begin, begin + _MP3_HEAD)
    if match is None or content[begin : begin + 1] != b"\xff" or not match[1][0] & 2:
        return 0
    place = match.end() + (4 if match[1][0] & 1 else 0)
    return begin + int.from_bytes(content[place : place + 4])
