"""What labelled texts look like: how many words recur, how long texts are, which labels there are."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from translume.config import TokenizerSettings
from translume.data import Pair
from translume.text.segmentation import normaliser

_READ_CLOSELY = 200_000
"""Texts whose words are counted; of the others, only their labels."""
_WHOLE = 0.999
"""The share of texts that shall be read whole."""
FEW_TEXTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A labelled corpus.

    labels: different ones.  recurring: words, or characters of a script without spaces, that occur at least twice.
    units: mean number of them in a text.  longest: 99.9 % of texts have no more.
    lone: the label of the first line where no other has it, as a header has none; else empty.
    """

    texts: int
    labels: int
    recurring: int
    units: float
    longest: int
    lone: str


def survey_labelled(pairs: Iterable[Pair], *, unspaced: bool) -> Labelled:
    """Look at texts and their labels; at the first 200,000 closely."""
    counts: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    lengths: Counter[int] = Counter()
    normalise = normaliser(TokenizerSettings(kind="word", lowercase=True))
    first = ""
    texts = 0
    for texts, pair in enumerate(pairs, start=1):
        labels[pair.target.strip()] += 1
        first = first or pair.target.strip()
        if texts <= _READ_CLOSELY:
            text = normalise(pair.source)
            units = list(text) if unspaced else text.split()
            counts.update(units)
            lengths[len(units)] += 1
    return Labelled(
        texts=texts,
        labels=len(labels),
        recurring=sum(count >= 2 for count in counts.values()),
        units=counts.total() / (lengths.total() or 1),
        longest=_quantile(lengths, _WHOLE),
        lone=first if labels[first] == 1 and texts >= FEW_TEXTS else "",
    )


def _quantile(lengths: Counter[int], share: float) -> int:
    """The least length that at least this share is no longer than."""
    seen, wanted = 0, share * lengths.total()
    for length, count in sorted(lengths.items()):
        seen += count
        if seen >= wanted:
            return length
    return 0
