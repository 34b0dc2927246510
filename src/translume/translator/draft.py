"""What a draft is worth: the time of greedy search with a small model that guesses tokens, and without it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from translume.checkpoint import store_decoding
from translume.translator.loading import ComputeOptions
from translume.translator.translator import Translator

COUNTS = (1, 2, 3, 4, 6, 8)
"""Values of decoding.draft_tokens that `measure_draft` compares."""
ROUNDS = 3
WORTH = 1.05
"""Minimum gain in speed for which `choose_draft` keeps a draft."""


def measure_draft(
    model: Path, draft: Path, lines: Sequence[str], options: ComputeOptions, progress: Callable[[int, int], None]
) -> dict[int, float]:
    """Return the processor time of greedy search in seconds, by the number of tokens guessed; 0: without the draft.

    Each line is translated alone. The numbers take turns, and the time is the least of three rounds.
    options: name the fast engine.  progress: called with the lines done, and with those of all.
    """
    translator, done = Translator.load(model, options), 0
    seconds: dict[int, list[float]] = {count: [] for count in (0, *COUNTS)}
    for number in range(ROUNDS + 1):
        for count, measured in seconds.items():
            named = {"draft": str(draft), "draft_tokens": count} if count else {"draft": ""}
            greedy = {"strategy": "greedy", "beam": 1, "nbest": 1}
            settings = translator.config.decoding.model_copy(update={**greedy, **named})
            begin = time.process_time()
            for line in lines:
                translator.translate(line, settings=settings)
            measured += [time.process_time() - begin] if number else []  # the first round loads and warms up
            done += len(lines)
            progress(done, (ROUNDS + 1) * len(seconds) * len(lines))
    return {count: min(measured) for count, measured in seconds.items()}


def choose_draft(model: Path, draft: Path, seconds: dict[int, float]) -> int:
    """Write the draft and its best number of tokens into the settings of a model folder; return this number.

    seconds: as measured. 0 is returned, and nothing written, if no number is at least 5 % faster than no draft.
    """
    best = min(COUNTS, key=lambda count: seconds[count])
    if seconds[0] < WORTH * seconds[best]:
        return 0
    store_decoding(model, {"draft": str(draft.absolute()), "draft_tokens": best})
    return best
