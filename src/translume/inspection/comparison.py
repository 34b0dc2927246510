"""Two models on one corpus: where they differ about the references, and where their own translations part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.inspection.corpus import WINDOW_LINES, Seen, Shorter, numbered, reads
from translume.inspection.corpus_values import CorpusComparison, Gap, Opinion, Parting
from translume.inspection.smallest import Smallest
from translume.translator import Translator
from translume.translator.batching import windows
from translume.translator.scoring import ScoredPair, score_pairs

Settings = tuple[DecodingSettings | None, DecodingSettings | None]


def compare_on_corpus(
    translator: Translator,
    other: Translator,
    pairs: Sequence[tuple[str, str]],
    *,
    settings: Settings = (None, None),
    show: int = 10,
    seen: Seen | None = None,
) -> CorpusComparison:
    """Where two models differ about the targets of `pairs`, and where their translations of the sources part.

    Vocabularies may differ: then what is compared is what stands between two places at which both cut a text.
    Translations are cut into tokens anew, as any text.  settings: each one's own [decoding] where it is None.
    Raises DataError where no pair is short enough for both, and what `translate_all` raises.
    """
    shorter = Shorter(translator.checkpoint, other.checkpoint)
    readable = [each for each, _ in shorter.of(numbered(pairs))]
    shorter.refuse_none(len(readable))
    both = _Both(translator, other)
    gaps, partings = Smallest[Gap](show), Smallest[Parting](show)
    sums, same = np.zeros(4), 0
    translated = zip(
        readable,
        translator.translate_all((pair.source for _, pair in readable), settings=settings[0]),
        other.translate_all((pair.source for _, pair in readable), settings=settings[1]),
        strict=True,
    )
    for window in windows(((each, len(each[0][1].source)) for each in translated), lines=WINDOW_LINES):
        lines = [line for (line, _), _, _ in window]
        references = [pair for (_, pair), _, _ in window]
        sums += _of_references(both, lines, references, gaps)
        texts = [(one.text, another.text) for _, one, another in window]
        same += _of_translations(both, lines, references, texts, partings)
        if seen is not None:
            seen(len(window))
    return CorpusComparison(
        unit="token" if both.alike else "piece",
        pairs=len(readable),
        log_p=float(sums[0]),
        other_log_p=float(sums[1]),
        better=int(sums[2]),
        worse=int(sums[3]),
        gaps=gaps.found(),
        same=same,
        partings=partings.found(),
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """A text as a model reads it: where tokens end [t], in characters, the end mark one beyond the last; log p [t]."""

    ends: NDArray[np.int64]
    log_probs: NDArray[np.float64]

    def by_part(self, common: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of each part between two of the cuts `common`, from 0 on: the sum over the tokens that end in it."""
        part = np.searchsorted(common[1:], self.ends.clip(max=common[-1]))
        return np.bincount(part, self.log_probs, len(common) - 1).astype(np.float64)

    def between(self, begin: int, end: int) -> float:
        """log p of the tokens that end in (begin, end]; from 0 on, of those of no characters at the beginning too."""
        inside = ((self.ends > begin) | (begin == 0)) & (self.ends <= end)
        return float(self.log_probs[inside].sum())


class _Both:
    """Two models that read the same texts."""

    def __init__(self, translator: Translator, other: Translator) -> None:
        self.translators = translator, other
        one, another = (each.checkpoint.target_tokenizer for each in self.translators)
        self.alike = one is another or one.digest == another.digest
        self.normalise = one.normalise

    def read(self, pair: ScoredPair) -> bool:
        """Whether both can read a pair."""
        return all(reads(translator.checkpoint, pair) for translator in self.translators)

    def cuts(self, pairs: Sequence[ScoredPair]) -> list[tuple[_Cut, _Cut]]:
        """Each target as either model reads it after its source."""
        sides = []
        for translator in self.translators:
            checkpoint, most = translator.checkpoint, translator.config.decoding.max_tokens
            scores = score_pairs(checkpoint, pairs, most, translator.models)
            sides.append(
                [
                    _Cut(_ends(checkpoint, str(pair.target)), np.array(score.token_log_probs))
                    for pair, score in zip(pairs, scores, strict=True)
                ]
            )
        return list(zip(*sides, strict=True))


def _ends(checkpoint: Checkpoint, text: str) -> NDArray[np.int64]:
    tokenizer = checkpoint.target_tokenizer
    ends = [end for _, end in tokenizer.spans_in(text)]
    return np.array([*ends, len(tokenizer.normalise(text)) + 1])


def _common(cuts: Sequence[_Cut]) -> NDArray[np.int64]:
    """Where all readings of a text cut it, ascending from 0; around the whole only if its length is not one to all."""
    if len({int(cut.ends[-1]) for cut in cuts}) > 1:
        return np.array([0, max(int(cut.ends[-1]) for cut in cuts)])
    common = cuts[0].ends
    for cut in cuts[1:]:
        common = np.intersect1d(common, cut.ends)
    return np.union1d([0], common)


def _of_references(
    both: _Both, lines: Sequence[int], pairs: Sequence[ScoredPair], gaps: Smallest[Gap]
) -> NDArray[np.float64]:
    """log p by either model, how many pairs each gives more; the largest differences go into `gaps`."""
    sums = np.zeros(4)
    for line, pair, (own, theirs) in zip(lines, pairs, both.cuts(pairs), strict=True):
        totals = own.log_probs.sum(), theirs.log_probs.sum()
        sums += [*totals, totals[0] > totals[1], totals[0] < totals[1]]
        common = _common((own, theirs))
        log_p, other_log_p = (cut.by_part(common) for cut in (own, theirs))
        with np.errstate(invalid="ignore"):  # what is impossible for both
            apart = np.nan_to_num(np.abs(log_p - other_log_p), posinf=np.inf)
        text = both.normalise(str(pair.target))
        for number in np.argsort(-apart, kind="stable").tolist():
            if not gaps.takes(-float(apart[number])):
                break
            gap = Gap(
                line=line,
                source=pair.source,
                before=text[: common[number]],
                text=text[common[number] : common[number + 1]],
                log_p=float(log_p[number]),
                other_log_p=float(other_log_p[number]),
            )
            gaps.add(-float(apart[number]), gap)
    return sums


def _of_translations(
    both: _Both,
    lines: Sequence[int],
    pairs: Sequence[ScoredPair],
    texts: Sequence[tuple[str, str]],
    partings: Smallest[Parting],
) -> int:
    """How many texts are the same; where others part, and how far, goes into `partings`."""
    apart = [index for index, (one, other) in enumerate(texts) if both.normalise(one) != both.normalise(other)]
    sides = {index: [replace(pairs[index], target=text) for text in texts[index]] for index in apart}
    # What one has written may have more tokens for the other than it reads.
    judged = [index for index in apart if all(map(both.read, sides[index]))]
    own, theirs = (both.cuts([sides[index][side] for index in judged]) for side in range(2))
    for index, cuts, other_cuts in zip(judged, own, theirs, strict=True):
        parting = _parting(both, lines[index], pairs[index].source, texts[index], (cuts, other_cuts))
        value = parting.own.of_other - parting.own.log_p + parting.other.of_other - parting.other.log_p
        value = value if value == value else 0.0  # what both find impossible tells nothing
        if partings.takes(value):
            partings.add(value, parting)
    return len(texts) - len(apart)


def _parting(
    both: _Both, line: int, source: str, texts: tuple[str, str], cuts: tuple[tuple[_Cut, _Cut], tuple[_Cut, _Cut]]
) -> Parting:
    """Where two translations part, each as both models read it."""
    normalised = both.normalise(texts[0]), both.normalise(texts[1])
    letters = enumerate(zip(*normalised, strict=False))
    alike = next((place for place, (one, other) in letters if one != other), min(map(len, normalised)))
    common = _common(cuts[0]), _common(cuts[1])
    shared = np.intersect1d(common[0], common[1])
    begin = int(shared[shared <= alike].max())
    ends = [int(each[each > alike].min()) for each in common]
    # [the text][the model]
    log_p = [[cut.between(begin, end) for cut in each] for each, end in zip(cuts, ends, strict=True)]
    said = [text[begin:end] for text, end in zip(normalised, ends, strict=True)]
    return Parting(
        line=line,
        source=source,
        shared=normalised[0][:begin],
        text=texts[0],
        other_text=texts[1],
        own=Opinion(text=said[0], log_p=log_p[0][0], of_other=log_p[1][0]),
        other=Opinion(text=said[1], log_p=log_p[1][1], of_other=log_p[0][1]),
    )
