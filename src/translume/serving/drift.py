"""Whether what is translated still is what the models know: two counts that rise when it is not.

Of each line: how surprised the model was by the tokens of its own translation, which is known already. Of a few lines,
when nothing else is to be done beside translating: the entropy of what it believed at each step.
"""

import itertools
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from translume.serving.api.inspection import entropies
from translume.serving.background import Aside
from translume.serving.metrics import Metrics
from translume.serving.workers.scheduler import Work
from translume.serving.workers.work import Translating
from translume.translator import TextHypothesis, Translation

EVERY: Final = 64
"""One line of so many is looked at once more."""
SHARE: Final = 0.01
"""Most of the time that looking takes: what the plain model reads of one line takes as long as to translate some."""


class Drift:
    """Looks at translations as they are done."""

    def __init__(self, metrics: Metrics, aside: Aside) -> None:
        self._metrics, self._aside = metrics, aside
        self._lines = itertools.count(1)
        self._rested = 0.0

    def watch(self, work: Work, futures: "Sequence[Future[Any]]") -> None:
        """Look at what becomes of some work, if it is translating."""
        if isinstance(work, Translating):
            for future in futures:
                future.add_done_callback(partial(self._done, work))

    def _done(self, work: Translating, future: "Future[Translation]") -> None:
        if future.cancelled() or future.exception() is not None or not future.result().hypotheses:
            return
        translation = future.result()
        best = translation.hypotheses[0]
        if math.isfinite(best.log_prob):
            self._metrics.surprise.observe(-best.log_prob / len(best.tokens))
        if next(self._lines) % EVERY or time.monotonic() < self._rested:
            return
        whole = best.ids.count(work.translator.checkpoint.target_tokenizer.specials.eos) <= 1
        if whole:
            self._aside.spare(lambda go_on: self._entropy(work, translation.source, best))

    def _entropy(self, work: Translating, source: str, best: TextHypothesis) -> None:
        begun = time.monotonic()
        for entropy in entropies(work.translator, source, best, work.settings):
            self._metrics.entropy.observe(entropy)
        self._rested = begun + (time.monotonic() - begun) / SHARE
