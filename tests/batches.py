"""Batches of given ids."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from translume.data.batch import Batch, Ragged, flat, padded_batch, starts_of
from translume.text import SpecialIds


def pad_batch(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source_specials: SpecialIds,
    target_specials: SpecialIds,
    lines: Sequence[int] = (),
) -> Batch:
    """Return a batch of pairs of ids without bos and eos; `lines` defaults to 0, 1, …"""
    sides = []
    for tokens, lengths in map(flat, (sources, targets)):
        sides.append(Ragged(tokens, starts_of(lengths), lengths))
    tokenizers: list[Any] = [SimpleNamespace(specials=each) for each in (source_specials, target_specials)]
    return padded_batch(*sides, *tokenizers, tuple(lines) or tuple(range(len(sources))))
