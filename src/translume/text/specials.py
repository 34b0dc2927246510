"""Ids of the special tokens."""

from dataclasses import dataclass

BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
"""The pieces for single bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of special tokens. No text is encoded to them. Code must not assume their values, nor that they differ.

    `unk` is None if characters outside the vocabulary are encoded as bytes.
    """

    pad: int
    bos: int
    eos: int
    unk: int | None

    @property
    def outside_targets(self) -> frozenset[int]:
        """The ids that no target holds. In BART the begin mark is the end mark too, which every target holds."""
        return frozenset(each for each in (self.pad, self.bos, self.unk) if each is not None) - {self.eos}
