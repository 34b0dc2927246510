"""A metric: characters of the translations, in percent of those of the first references."""

from collections.abc import Sequence

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation import Score
from translume.evaluation.scores import Counts, References
from translume.parts import part


@part("metric", "my_part", interface=1)
class MyPart:
    """The length ratio."""

    larger_is_better = False
    """For training.metric."""

    def __init__(self, settings: EvaluationSettings) -> None:
        pass

    def count(self, texts: Sequence[str], references: References, sources: Sequence[str] = ()) -> Counts:
        """Return [n, 2], the number of characters of both."""
        pairs = zip(texts, references[0], strict=True)
        return np.array([(len(text), len(reference or "")) for text, reference in pairs], dtype=np.float64)

    def score(self, total: Counts) -> Score:
        """Return the score of a set of texts from the sum of their statistics."""
        translated, reference = total.tolist()
        value = 100 * translated / max(1.0, reference)
        return Score(name="my_part", title="my_part", value=value, signature="unit:characters|ref:first")
