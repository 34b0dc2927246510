"""Scores of groups of sentences: by the length of sources, the rarest word of references, or any other label."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from translume.config import EvaluationSettings
from translume.evaluation.metrics import metric_from, of_texts
from translume.evaluation.scores import References, Score
from translume.translator.constraints import words_of

Groups = Sequence[tuple[int, str]]
"""Rank and name of the group of each sentence."""
LENGTHS, FREQUENCIES = (10, 20, 30, 50), (0, 9, 99, 999)
"""Ends of the ranges of lengths and of occurrences in the training data."""


def group_scores(
    groups: Groups, texts: Sequence[str], references: References, settings: EvaluationSettings, sources: Sequence[str]
) -> list[tuple[str, int, list[Score]]]:
    """Return the name, the number of sentences and the scores of each group, in the order of ranks."""
    settings = of_texts(settings, references[0])
    metrics = [metric_from(name, settings) for name in settings.names]
    counts = [metric.count(texts, references, sources) for metric in metrics]
    scored = []
    for group in sorted(set(groups)):
        members = np.array([each == group for each in groups])
        scores = [metric.score(rows[members].sum(0)) for metric, rows in zip(metrics, counts, strict=True)]
        scored.append((group[1], int(members.sum()), scores))
    return scored


def range_of(number: int, ends: Sequence[int]) -> tuple[int, str]:
    """Return the rank and the name of a range of whole numbers, such as (1, "11-20").  ends: the last of each range."""
    rank = bisect_left(ends, number)
    first = ends[rank - 1] + 1 if rank else 0
    last = ends[rank] if rank < len(ends) else None
    return rank, f"{first}+" if last is None else f"{first}-{last}" if last > first else str(first)


def by_length(sources: Sequence[str]) -> Groups:
    """Return the range of each source's length in words, signs, and characters of scripts without spaces."""
    return [range_of(len(words_of(source)), LENGTHS) for source in sources]


def by_rarest_word(references: Sequence[str], training: Iterable[str]) -> Groups:
    """Return the range of how often the training texts have the rarest word of each reference; 0 for one without."""
    counts = Counter(word for text in training for word in words_of(text))
    return [range_of(min((counts[word] for word in words_of(text)), default=0), FREQUENCIES) for text in references]


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return the lines of a Markdown table with padded columns: the first `left` left-aligned, the others right."""
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        padded = (cell.ljust(width) if place < left else cell.rjust(width) for place, (cell, width) in pairs)
        return f"| {' | '.join(padded)} |"

    dashes = ["-" * (width + 1) for width in widths]
    rule = "|".join([*(f":{each}" for each in dashes[:left]), *(f"{each}:" for each in dashes[left:])])
    return [line(head), f"|{rule}|", *map(line, rows)]
