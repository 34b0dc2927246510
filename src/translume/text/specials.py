"""Ids of the special tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of special tokens. No text is encoded to them. Code must not assume their values, nor that they differ.

    `unk` is None if characters outside the vocabulary are encoded as bytes.
    """

    pad: int
    bos: int
    eos: int
    unk: int | None
