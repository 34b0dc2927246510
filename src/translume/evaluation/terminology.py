"""Terminology accuracy: the share of the terms in sources whose translation by a glossary is in the output."""

from collections.abc import Sequence

import numpy as np

from translume.config import EvaluationSettings
from translume.errors import SettingsError
from translume.evaluation.scores import Counts, References, Score
from translume.translator.constraints import Terminology, places, read_terms


class TermAccuracy:
    """The metric. A term counts once a source, whatever its case; its translation must be whole words of the output."""

    def __init__(self, settings: EvaluationSettings) -> None:
        if not settings.glossary:
            raise SettingsError("evaluation.metrics: 'terminology' needs a list of terms; expected --glossary FILE")
        self._terms = Terminology.from_pairs(read_terms(settings.glossary, str.casefold), None)
        self._lowercase = settings.lowercase

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 3]: the terms that were translated as they are written, in any case, and all terms."""
        if not sources:
            raise SettingsError("evaluation.metrics: 'terminology' compares with the sources; expected --source FILE")
        rows = []
        for text, source in zip(texts, sources, strict=True):
            terms = [each.targets for each in self._terms.found_in(source.casefold())]
            exact = sum(any(places(target, text) for target in targets) for targets in terms)
            folded = sum(any(places(each.casefold(), text.casefold()) for each in targets) for targets in terms)
            rows.append((exact, folded, len(terms)))
        return np.array(rows, dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return the share in per cent; 0 if the sources have no term."""
        exact, folded, terms = total.tolist()
        return Score(
            name="terminology",
            title="terminology",
            value=100 * (folded if self._lowercase else exact) / (terms or 1),
            signature=f"case:{'lc' if self._lowercase else 'mixed'}",
            detail=f"({exact:.0f} of {terms:.0f} terms, {folded:.0f} in any case)",
        )
