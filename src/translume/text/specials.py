"""The ids that no text yields."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids that no text yields; they belong to a tokenizer, and no code may assume their values, nor that they differ.

    `unk` is None where characters outside the vocabulary become bytes.
    """

    pad: int
    bos: int
    eos: int
    unk: int | None
