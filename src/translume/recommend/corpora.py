"""Propose settings for several language pairs in one model."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from translume.config import DataSettings
from translume.data import Pair, read_pairs
from translume.recommend import Choice, Proposal
from translume.recommend.sequence import choose
from translume.recommend.survey import Side, survey

UNEVEN = 2
"""Ratio of the largest corpus to the smallest from which small corpora are read more often."""
TEMPERATURE = 2.0
"""`data.sampling_temperature` for such corpora; Arivazhagan et al. (2019) use 5 for ratios above 1,000."""


def propose_for_corpora(data: DataSettings, counts: Iterable[int]) -> Proposal:
    """Return the proposal for the corpora of `data`, which have these numbers of pairs.

    All languages share a vocabulary, and tags tell the model the languages of a pair.
    """
    sizes = list(counts)
    first = data.corpus[0]
    source = _texts(survey((pair.source for pair in _alternating(data)), first.source_language))
    target = _texts(survey((pair.target for pair in _alternating(data)), first.target_language))
    uneven = max(sizes) > UNEVEN * min(sizes)
    changed = {
        "tokenizer.shared": Choice(path="tokenizer.shared", value=True, why="one vocabulary for all languages"),
        "model.head.tie": Choice(path="model.head.tie", value="all", why="weights shared by embeddings and output"),
    }
    choices = [
        changed.get(each.path, each)
        for each in choose(sum(sizes), source, target)
        if each.path != "evaluation.tokenize" or each.value == "none"  # "auto" knows the language of each direction
    ]
    tags = Choice(path="model.language_tags", value="target", why="tags of both languages, which are special tokens")
    place = next(number for number, each in enumerate(choices) if each.path.startswith("model.head"))
    temperature = Choice(
        path="data.sampling_temperature",
        value=TEMPERATURE,
        why=f"smaller corpora are read more often: {min(sizes):,} to {max(sizes):,} pairs",
    )
    found = [*([temperature] if uneven else []), *choices[:place], tags, *choices[place:]]
    directions = dict.fromkeys(f"{each.source_language} to {each.target_language}" for each in data.corpus)
    return Proposal(choices=tuple(found), description=f", {', '.join(directions)}")


def _alternating(data: DataSettings) -> Iterator[Pair]:
    """Yield a pair of each corpus in turn, so that a survey of the first pairs reads all of them."""
    rest = [iter(read_pairs(data.of_corpus(each), "train")) for each in data.corpus]
    while rest:
        for pairs in list(rest):
            if (pair := next(pairs, None)) is None:
                rest.remove(pairs)
            else:
                yield pair


def _texts(side: Side) -> Side:
    """Return the side as one of texts, whose words are not single tokens."""
    return replace(side, recurring=0.0)
