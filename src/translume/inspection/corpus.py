"""What a model believes of a whole corpus of pairs: where it is lost, and which pairs it finds impossible."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from translume.checkpoint import Checkpoint
from translume.errors import DataError
from translume.inspection.corpus_values import CorpusLens, PairView
from translume.inspection.smallest import Smallest
from translume.inspection.tally import Tally
from translume.translator import Translator
from translume.translator.batching import windows
from translume.translator.scoring import ScoredPair, beliefs_of_pairs, score_pairs

WINDOW_LINES = 512
"""Pairs that are looked at together: what is kept of every token, some numbers, is kept of so many pairs at a time."""

Seen = Callable[[int], object]
"""Told how many pairs were looked at."""


def inspect_corpus(
    translator: Translator,
    pairs: Iterable[tuple[str, str]],
    *,
    show: int = 10,
    frequencies: Sequence[int] | None = None,
    seen: Seen | None = None,
) -> CorpusLens:
    """What the model believes of each target after its source, pairs in any number; `show` entries of each list.

    frequencies [V]: how often each target token stands in the training targets; None: bands go by the corpus itself.
    A pair with a side that is longer than the model reads is left out and counted. Raises DataError where no pair is
    left, or where there is not a frequency for every token.
    """
    tally = Tally(translator.checkpoint.target_tokenizer)
    known = None if frequencies is None else torch.as_tensor(frequencies)
    size = len(tally.tokenizer)
    if known is not None and known.shape != (size,):
        raise DataError(f"corpus: {len(known):,} frequencies, wanted {size:,}, one for each token")
    suspects, hardest = Smallest[PairView](show), Smallest[PairView](show)
    shorter = Shorter(translator.checkpoint)
    count = 0
    for window in windows(shorter.of(numbered(pairs)), lines=WINDOW_LINES):
        _look(translator, window, tally, suspects, hardest, seen)
        count += len(window)
    shorter.refuse_none(count)
    never = tally.never_predicted()
    return CorpusLens(
        schema="corpus/2",
        pairs=count,
        too_long=shorter.too_long,
        first_too_long=shorter.first,
        tokens=tally.tokens,
        normalised=tally.normalised,
        nll=tally.mean(tally.nll, tally.tokens),
        impossible=tally.impossible,
        reliability=tally.bins.reliability(),
        end=tally.ends.reliability(),
        frequency="corpus" if known is None else "training",
        bands=tally.bands(known),
        ranks=tally.ranks(),
        places=tally.places(),
        suspects=suspects.found(),
        hardest=hardest.found(),
        types=tally.types(),
        never_types=len(never),
        never_tokens=sum(each.tokens for each in never),
        never_predicted=never[:show],
        comparison=None,
    )


def numbered(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[int, ScoredPair]]:
    """Pairs with their lines, from 1."""
    for line, (source, target) in enumerate(pairs, start=1):
        yield line, ScoredPair(place=f"line {line}", source=source, target=target)


class Shorter:
    """Lets through what a model can read, and counts the rest."""

    def __init__(self, *checkpoints: Checkpoint) -> None:
        self.checkpoints = checkpoints
        self.too_long = 0
        self.first: int | None = None

    def of(self, pairs: Iterable[tuple[int, ScoredPair]]) -> Iterator[tuple[tuple[int, ScoredPair], int]]:
        """The pairs that all models can read, with their sizes in characters."""
        for line, pair in pairs:
            if all(reads(checkpoint, pair) for checkpoint in self.checkpoints):
                yield (line, pair), len(pair.source) + len(str(pair.target))
            else:
                self.too_long += 1
                self.first = self.first or line

    def refuse_none(self, left: int) -> None:
        """Raise DataError where no pair is left."""
        if left:
            return
        if self.too_long:
            raise DataError(f"corpus: all {self.too_long:,} pairs are longer than the model reads")
        raise DataError("corpus: no pairs, wanted at least one")


def reads(checkpoint: Checkpoint, pair: ScoredPair) -> bool:
    """Whether both sides are short enough for a model."""
    most = checkpoint.config.model.max_positions - 1  # and the end mark
    sides = (checkpoint.source_tokenizer, pair.source), (checkpoint.target_tokenizer, str(pair.target))
    return all(len(tokenizer.encode(text)) <= most for tokenizer, text in sides)


@torch.no_grad()
def _look(
    translator: Translator,
    window: Sequence[tuple[int, ScoredPair]],
    tally: Tally,
    suspects: Smallest[PairView],
    hardest: Smallest[PairView],
    seen: Seen | None,
) -> None:
    """Count what is believed of some pairs, and keep the worst of them."""
    checkpoint, most = translator.checkpoint, translator.config.decoding.max_tokens
    pairs = [pair for _, pair in window]
    found = []
    for judged in beliefs_of_pairs(checkpoint, pairs, most, models=translator.models):
        found.append((judged.pairs.cpu(), judged.labels.cpu(), tally.add(judged)))
        if seen is not None:
            seen(int((found[-1][1] == tally.end_mark).sum()))  # each target has one
    where, labels, own = (torch.cat(parts) for parts in zip(*found, strict=True))
    lengths = where.bincount(minlength=len(pairs))
    order = where.argsort(stable=True)
    own_of, labels_of = (torch.split(each[order], lengths.tolist()) for each in (own, labels))
    log_p = torch.stack([each.sum() for each in own_of])
    blank = [replace(pair, source="") for pair in pairs]
    prior = torch.tensor(
        [each.log_prob for each in score_pairs(checkpoint, blank, most, translator.models)], dtype=torch.float64
    )
    # What is impossible is so whatever it would be without the source.
    gain = torch.where(log_p.isneginf(), log_p, log_p - prior) / lengths

    def view(index: int) -> PairView:
        worst = int(own_of[index].argmin())
        line, pair = window[index]
        value = float(gain[index])
        return PairView(
            line=line,
            source=pair.source,
            target=str(pair.target),
            log_p=float(log_p[index]),
            tokens=int(lengths[index]),
            gain=value if -torch.inf < value < torch.inf else None,
            worst=tally.tokenizer.tokens([int(labels_of[index][worst])])[0],
            worst_log_p=float(own_of[index][worst]),
        )

    for values, kept in ((gain, suspects), (log_p / lengths, hardest)):
        for value, index in zip(*(each.tolist() for each in values.sort(stable=True)), strict=True):
            if not kept.takes(value):
                break
            kept.add(value, view(index))
