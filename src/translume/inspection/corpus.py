"""What a model believes of a whole corpus of pairs: where it is lost, and which pairs it finds impossible."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from translume.errors import DataError
from translume.inspection.plain import from_plain, plain
from translume.translator import TargetScore, Translator

RANKS = (1, 2, 5, 10, 100)
"""Upper ends of the ranks that are counted together; the last group is of all above."""
PLACES = 20
"""Places of a target that are looked at one by one; the last one is of all beyond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """One pair, by its line from 1.

    log_p: nats, of the target with its end mark, given the source.  tokens: of the target, the end mark counted.
    gain: (log p(y|x) − log p(y)) / tokens, what the source says for the target, y without a source being the target
    after a blank one; about zero or below for a target that has nothing to do with its source. None where one is −∞.
    worst: the target's token of the lowest probability, and worst_log_p its log p.
    """

    line: int
    source: str
    target: str
    log_p: float
    tokens: int
    gain: float | None
    worst: str
    worst_log_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCount:
    """How many reference tokens had a rank up to `most` (and above the group before); None: any rank."""

    most: int | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """Reference tokens at a place from 1 (the last: from there on): how many, mean entropy and mean nll, in nats."""

    place: int
    tokens: int
    entropy: float
    nll: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFirst:
    """A token that references hold `tokens` times and that was never the likeliest where it stood."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusLens:
    """A corpus as a model sees it, under forced decoding.

    nll: nats a token.  suspects: the pairs of the smallest gain, smallest first: likely misaligned.  hardest: the pairs
    of the lowest log p a token.  never_first: the most frequent ones first.
    """

    schema: Literal["corpus/1"]
    pairs: int
    tokens: int
    nll: float | None
    ranks: tuple[RankCount, ...]
    places: tuple[PlaceView, ...]
    suspects: tuple[PairView, ...]
    hardest: tuple[PairView, ...]
    never_first: tuple[NeverFirst, ...]

    def to_dict(self) -> dict[str, Any]:
        """The lens as JSON knows it."""
        content: dict[str, Any] = plain(self)
        return content

    @classmethod
    def from_dict(cls, content: object) -> "CorpusLens":
        """What `to_dict` wrote; DataError for anything else."""
        return from_plain(cls, content)


def inspect_corpus(
    translator: Translator, sources: Sequence[str], targets: Sequence[str], *, show: int = 10
) -> CorpusLens:
    """What the model believes of each of `targets` after its source; `show` pairs and tokens of each list.

    Raises DataError for sides of unequal numbers of lines or none, TranslationError for one that is too long.
    """
    if len(sources) != len(targets):
        raise DataError(f"corpus: {len(sources):,} sources but {len(targets):,} targets; wanted as many of both")
    if not sources:
        raise DataError("corpus: no pairs, wanted at least one")
    views = list(_views(translator, sources, targets))
    ranks, places, never = _beliefs(translator, sources, targets)
    tokens = sum(view.tokens for view in views)
    total = sum(view.log_p for view in views)
    return CorpusLens(
        schema="corpus/1",
        pairs=len(views),
        tokens=tokens,
        nll=-total / tokens if total > -torch.inf else None,
        ranks=ranks,
        places=places,
        suspects=tuple(sorted(views, key=lambda view: -torch.inf if view.gain is None else view.gain)[:show]),
        hardest=tuple(sorted(views, key=lambda view: view.log_p / view.tokens)[:show]),
        never_first=tuple(NeverFirst(text=text, tokens=count) for text, count in never.most_common(show)),
    )


def _views(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Iterator[PairView]:
    scored = translator.score_all(zip(sources, targets, strict=True))
    blank = translator.score_all(("", target) for target in targets)
    for line, (pair, after, before) in enumerate(
        zip(zip(sources, targets, strict=True), scored, blank, strict=True), 1
    ):
        yield _view(line, pair, after, before)


def _view(line: int, pair: tuple[str, str], after: TargetScore, before: TargetScore) -> PairView:
    own = after.token_log_probs
    worst = min(range(len(own)), key=own.__getitem__)
    gain = (after.log_prob - before.log_prob) / len(own)
    return PairView(
        line=line,
        source=pair[0],
        target=pair[1],
        log_p=after.log_prob,
        tokens=len(own),
        gain=gain if -torch.inf < gain < torch.inf else None,
        worst=after.tokens[worst],
        worst_log_p=own[worst],
    )


def _beliefs(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> tuple[tuple[RankCount, ...], tuple[PlaceView, ...], Counter[str]]:
    """Ranks, places and tokens that were never likeliest, in one pass of forced decoding."""
    eos = translator.checkpoint.target_tokenizer.specials.eos
    counts = torch.zeros(len(RANKS) + 1, dtype=torch.long)
    sums = torch.zeros(PLACES, 3, dtype=torch.float64)  # tokens, entropy, nll
    seen: Counter[int] = Counter()
    first: set[int] = set()
    place = 0
    bounds = torch.tensor(RANKS)
    for belief, labels in translator.beliefs(zip(sources, targets, strict=True)):
        log_probs = belief.log_probs().double().cpu()
        labels = labels.cpu()
        own = log_probs.gather(1, labels[:, None])
        ranks = (log_probs > own).sum(-1) + 1
        counts += torch.bucketize(ranks, bounds).bincount(minlength=len(RANKS) + 1)
        where = []
        for label in labels.tolist():  # sentence after sentence: an end mark ends one
            where.append(min(place, PLACES - 1))
            place = 0 if label == eos else place + 1
        rows = torch.stack([torch.ones(len(own)), torch.special.entr(log_probs.exp()).sum(-1), -own[:, 0]], 1)
        sums.index_add_(0, torch.tensor(where), rows.double())
        seen.update(labels.tolist())
        first.update(labels[ranks == 1].tolist())
    never = {id_: count for id_, count in seen.items() if id_ not in first}
    names = translator.checkpoint.target_tokenizer.tokens(list(never))
    return (
        tuple(RankCount(most=most, tokens=int(n)) for most, n in zip((*RANKS, None), counts.tolist(), strict=True)),
        tuple(_place(number, *row) for number, row in enumerate(sums.tolist(), start=1) if row[0]),
        Counter(dict(zip(names, never.values(), strict=True))),
    )


def _place(number: int, tokens: float, entropy: float, nll: float) -> PlaceView:
    finite = nll < torch.inf
    return PlaceView(place=number, tokens=int(tokens), entropy=entropy / tokens, nll=nll / tokens if finite else None)
