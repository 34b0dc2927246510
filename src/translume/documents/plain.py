"""Plain text: each line is a segment."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from translume.documents.encoded import Encoded
from translume.documents.segment import Segment

_BREAKS: Final = re.compile(r"([\r\n]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainText:
    """A text file.  pieces: text as it stands, or None for each line that is a segment, in order."""

    encoded: Encoded
    pieces: tuple[str | None, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, data: bytes) -> "PlainText":
        """The lines of a file; DocumentError where it is no Unicode text."""
        encoded = Encoded.of(data)
        parts = [(part, Segment(runs=(part,))) for part in _BREAKS.split(encoded.text)]
        return cls(
            encoded=encoded,
            pieces=tuple(None if segment.speaks else part for part, segment in parts),
            segments=tuple(segment for _, segment in parts if segment.speaks),
        )

    def with_runs(self, runs: Sequence[Sequence[str]]) -> bytes:
        """The file with other lines."""
        given = iter(runs)
        return self.encoded.encode("".join("".join(next(given)) if piece is None else piece for piece in self.pieces))
