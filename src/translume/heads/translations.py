"""Likely translations of each source token, learned from the training pairs (IBM model 1; Brown et al. 1993)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from translume.heads.frequency import spread_evenly
from translume.model import HeadData, TrainingPairs

MOST_PAIRS = 200_000
"""Pairs looked at; of a larger corpus, that many spread evenly."""
MOST_LINKS = 12_000_000
"""Links of a source and a target token of one pair that are learned from; some 60 bytes each are held meanwhile."""
WANTED = 50
"""Pairs with a source token that was met fewer times are learned from before all others."""
ROUNDS = 5
"""Of expectation and maximisation."""

Ids = NDArray[np.int64]


def translation_table(data: HeadData, candidates: int) -> NDArray[np.int32]:
    """[source vocabulary, candidates]: the likeliest targets of each source token, best first; −1 where there are none.

    The target token that is spelt like the source token is always among them, since names and numbers are copied.
    """
    sources, targets = len(data.source_pieces), len(data.target_pieces)
    table = np.full((sources, candidates), -1, np.int32)
    links = _links(data.corpus, sources)
    if len(links.source):
        _fill(table, *_learnt(links, targets), targets)
    _add_equals(table, data)
    return table


@dataclass(frozen=True, slots=True)
class _Links:
    """Each target token of a pair with each source token of it, and with none, which is a source token of its own.

    source, target: ids [L], the links of one target token side by side.  begins: [T], where each one's begin.
    """

    source: Ids
    target: Ids
    begins: Ids


def _links(corpus: TrainingPairs, nothing: int) -> _Links:
    source, target, choices = ([np.zeros(0, np.int64)] for _ in range(3))
    for number in _chosen(corpus, nothing):
        read, written = np.append(corpus.source(number), nothing), corpus.target(number)
        source.append(np.tile(read, len(written)))
        target.append(np.repeat(written, len(read)).astype(np.int64))
        choices.append(np.full(len(written), len(read)))
    lengths = np.concatenate(choices)
    return _Links(np.concatenate(source), np.concatenate(target), np.cumsum(lengths) - lengths)


def _chosen(corpus: TrainingPairs, sources: int) -> list[int]:
    """Numbers of pairs that make MOST_LINKS at most, those with rare source tokens first."""
    met = np.zeros(sources, np.int64)
    rare, others, left = [], [], MOST_LINKS
    for number in spread_evenly(corpus.pairs, MOST_PAIRS):
        source = corpus.source(number)
        links = (len(source) + 1) * len(corpus.target(number))
        if not len(source) or links > left:
            continue
        if met[source].min() < WANTED:
            met[source] += 1
            left -= links
            rare.append(number)
        else:
            others.append((number, links))
    for number, links in others:
        if links <= left:
            left -= links
            rare.append(number)
    return rare


def _learnt(links: _Links, targets: int) -> tuple[Ids, NDArray[np.float64]]:
    """Each pair of tokens that was met, as source · targets + target, ascending; and t(target | source)."""
    keys, which = np.unique(links.source * targets + links.target, return_inverse=True)
    owner = keys // targets
    chance = np.ones(len(keys))
    for _ in range(ROUNDS):
        each = chance[which]
        lengths = np.diff(links.begins, append=len(each))
        each /= np.repeat(np.add.reduceat(each, links.begins), lengths)  # how likely each link is, of its target token
        expected = np.bincount(which, each, len(keys))
        chance = expected / np.bincount(owner, expected)[owner]
    return keys, chance


def _fill(table: NDArray[np.int32], keys: Ids, chance: NDArray[np.float64], targets: int) -> None:
    order = np.lexsort((-chance, keys // targets))  # stable: equal ones by smaller target
    owner = keys[order] // targets
    begins = np.searchsorted(owner, np.arange(len(table) + 1))
    rank = np.arange(len(owner)) - begins[owner]
    kept = (rank < table.shape[1]) & (owner < len(table))
    table[owner[kept], rank[kept]] = keys[order][kept] % targets


def _add_equals(table: NDArray[np.int32], data: HeadData) -> None:
    ids = {piece: number for number, piece in enumerate(data.target_pieces)}
    for source, piece in enumerate(data.source_pieces):
        target = ids.get(piece, -1)
        if target >= 0 and target not in data.specials and not (table[source] == target).any():
            free = np.flatnonzero(table[source] < 0)
            table[source, free[0] if len(free) else -1] = target
