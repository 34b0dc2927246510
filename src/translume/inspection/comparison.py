"""Compare two models on one corpus: on the references, and where their own translations diverge."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.errors import suggest_keywords
from translume.inspection.corpus import WINDOW_LINES, LengthFilter, ProgressCallback, Smallest, can_read, numbered
from translume.inspection.values import Continuation, CorpusComparison, Divergence, Gap
from translume.translator import Translator
from translume.translator.planning import windows
from translume.translator.scoring import ScoredPair, score_pairs

Settings = tuple[DecodingSettings | None, DecodingSettings | None]


@suggest_keywords
def compare_on_corpus(
    translator: Translator,
    other: Translator,
    pairs: Sequence[tuple[str, str]],
    *,
    settings: Settings = (None, None),
    show: int = 10,
    progress: ProgressCallback | None = None,
) -> CorpusComparison:
    """Compare two models on the targets of `pairs`, and on their own translations of the sources.

    With different vocabularies, the parts compared are the texts between positions where both tokenizers split.
    Translations are tokenized again as texts.  settings: of each model's decoding; None: the model's own.
    Raises DataError if no pair is short enough for both models, and the errors of `translate_all`.
    """
    lengths = LengthFilter(translator.checkpoint, other.checkpoint)
    readable = [each for each, _ in lengths.readable(numbered(pairs))]
    lengths.check_not_empty(len(readable))
    models = _ModelPair(translator, other)
    gaps, partings = Smallest[Gap](show), Smallest[Divergence](show)
    sums, same, apart = np.zeros(4), 0, range(len(readable))
    translated = zip(
        readable,
        translator.translate_all((pair.source for _, pair in readable), settings=settings[0], documents=apart),
        other.translate_all((pair.source for _, pair in readable), settings=settings[1], documents=apart),
        strict=True,
    )
    for window in windows(((each, len(each[0][1].source)) for each in translated), lines=WINDOW_LINES):
        lines = [line for (line, _), _, _ in window]
        references = [pair for (_, pair), _, _ in window]
        sums += _compare_references(models, lines, references, gaps)
        texts = [(one.text, another.text) for _, one, another in window]
        same += _compare_translations(models, lines, references, texts, partings)
        if progress is not None:
            progress(len(window))
    return CorpusComparison(
        unit="token" if models.same_vocabulary else "piece",
        pairs=len(readable),
        log_p=float(sums[0]),
        other_log_p=float(sums[1]),
        better=int(sums[2]),
        worse=int(sums[3]),
        gaps=gaps.entries(),
        same=same,
        partings=partings.entries(),
    )


@dataclass(frozen=True, slots=True)
class _Segmentation:
    """A text as one model tokenizes it: the ends of its tokens [t] in characters, and their log p [t].

    EOS ends one character beyond the text.
    """

    ends: NDArray[np.int64]
    log_probs: NDArray[np.float64]

    def by_part(self, common: NDArray[np.int64]) -> NDArray[np.float64]:
        """Sum log p over the tokens that end between consecutive positions of `common`, which begin with 0."""
        part = np.searchsorted(common[1:], self.ends.clip(max=common[-1]))
        return np.bincount(part, self.log_probs, len(common) - 1).astype(np.float64)

    def between(self, begin: int, end: int) -> float:
        """Sum log p over the tokens that end in (begin, end]; begin 0 includes tokens without characters."""
        inside = ((self.ends > begin) | (begin == 0)) & (self.ends <= end)
        return float(self.log_probs[inside].sum())


class _ModelPair:
    """Two models that read the same texts."""

    def __init__(self, translator: Translator, other: Translator) -> None:
        self.translators = translator, other
        one, another = (each.checkpoint.target_tokenizer for each in self.translators)
        self.same_vocabulary = one is another or one.digest == another.digest
        self.normalise = one.normalise

    def can_read(self, pair: ScoredPair) -> bool:
        """Return whether both models can read a pair."""
        return all(can_read(translator.checkpoint, pair) for translator in self.translators)

    def segment(self, pairs: Sequence[ScoredPair]) -> list[tuple[_Segmentation, _Segmentation]]:
        """Return each target as both models tokenize and score it."""
        sides = []
        for translator in self.translators:
            checkpoint, max_tokens = translator.checkpoint, translator.config.decoding.max_tokens
            sides.append(
                [
                    _Segmentation(_ends(checkpoint, str(pair.target)), np.array(score.token_log_probs))
                    for pair, score in zip(
                        pairs, score_pairs(checkpoint, pairs, max_tokens, translator.models), strict=True
                    )
                ]
            )
        return list(zip(*sides, strict=True))


def _ends(checkpoint: Checkpoint, text: str) -> NDArray[np.int64]:
    tokenizer = checkpoint.target_tokenizer
    return np.array([*[end for _, end in tokenizer.spans_in(text)], len(tokenizer.normalise(text)) + 1])


def _common(cuts: Sequence[_Segmentation]) -> NDArray[np.int64]:
    """Return the positions where all segmentations split, ascending from 0; only both ends if lengths differ."""
    if len({int(cut.ends[-1]) for cut in cuts}) > 1:
        return np.array([0, max(int(cut.ends[-1]) for cut in cuts)])
    common = cuts[0].ends
    for cut in cuts[1:]:
        common = np.intersect1d(common, cut.ends)
    return np.union1d([0], common)


def _compare_references(
    models: _ModelPair, lines: Sequence[int], pairs: Sequence[ScoredPair], gaps: Smallest[Gap]
) -> NDArray[np.float64]:
    """Return log p by each model and the number of pairs each prefers; add the largest differences to `gaps`."""
    sums = np.zeros(4)
    for line, pair, (own, theirs) in zip(lines, pairs, models.segment(pairs), strict=True):
        totals = own.log_probs.sum(), theirs.log_probs.sum()
        sums += [*totals, totals[0] > totals[1], totals[0] < totals[1]]
        common = _common((own, theirs))
        log_p, other_log_p = (cut.by_part(common) for cut in (own, theirs))
        with np.errstate(invalid="ignore"):  # −inf − −inf, if both models find a part impossible
            apart = np.nan_to_num(np.abs(log_p - other_log_p), posinf=np.inf)
        text = models.normalise(str(pair.target))
        for number in np.argsort(-apart, kind="stable").tolist():
            if not gaps.accepts(-float(apart[number])):
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


def _compare_translations(
    models: _ModelPair,
    lines: Sequence[int],
    pairs: Sequence[ScoredPair],
    texts: Sequence[tuple[str, str]],
    partings: Smallest[Divergence],
) -> int:
    """Return how many translations are equal; add the divergences of the others to `partings`."""
    apart = [index for index, (one, other) in enumerate(texts) if models.normalise(one) != models.normalise(other)]
    sides = {index: [replace(pairs[index], target=text) for text in texts[index]] for index in apart}
    # A translation by one model may have too many tokens for the other.
    judged = [index for index in apart if all(map(models.can_read, sides[index]))]
    own, theirs = (models.segment([sides[index][side] for index in judged]) for side in range(2))
    for index, cuts, other_cuts in zip(judged, own, theirs, strict=True):
        divergence = _divergence(models, lines[index], pairs[index].source, texts[index], (cuts, other_cuts))
        value = divergence.own.of_other - divergence.own.log_p + divergence.other.of_other - divergence.other.log_p
        value = value if value == value else 0.0  # NaN if impossible under both models
        if partings.accepts(value):
            partings.add(value, divergence)
    return len(texts) - len(apart)


def _divergence(
    models: _ModelPair,
    line: int,
    source: str,
    texts: tuple[str, str],
    cuts: tuple[tuple[_Segmentation, _Segmentation], tuple[_Segmentation, _Segmentation]],
) -> Divergence:
    """Return where two translations diverge; cuts: each translation as both models tokenize it."""
    normalised = models.normalise(texts[0]), models.normalise(texts[1])
    letters = enumerate(zip(*normalised, strict=False))
    alike = next((place for place, (one, other) in letters if one != other), min(map(len, normalised)))
    common = _common(cuts[0]), _common(cuts[1])
    shared = np.intersect1d(common[0], common[1])
    begin = int(shared[shared <= alike].max())
    ends = [int(each[each > alike].min()) for each in common]
    # [the text][the model]
    log_p = [[cut.between(begin, end) for cut in each] for each, end in zip(cuts, ends, strict=True)]
    texts_from_begin = [text[begin:end] for text, end in zip(normalised, ends, strict=True)]
    return Divergence(
        line=line,
        source=source,
        shared=normalised[0][:begin],
        text=texts[0],
        other_text=texts[1],
        own=Continuation(text=texts_from_begin[0], log_p=log_p[0][0], of_other=log_p[1][0]),
        other=Continuation(text=texts_from_begin[1], log_p=log_p[1][1], of_other=log_p[0][1]),
    )
