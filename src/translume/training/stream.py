"""The endless line of training batches, known by its position alone, and the seeds that go with it."""

import hashlib

from translume.data import Batch, BatchPlan, TokenizedCorpus


class Stream:
    """Batches epoch after epoch; `epoch` and `position` say which comes next, so that going on needs no replay."""

    def __init__(
        self, corpus: TokenizedCorpus, *, max_tokens: int, seed: int, dropout: float, epoch: int = 0, position: int = 0
    ) -> None:
        """position: batches of `epoch` that are used up.  dropout: of merges in the subword segmentation."""
        self.epoch, self.position = epoch, position
        self._corpus, self._max_tokens, self._seed, self._dropout = corpus, max_tokens, seed, dropout
        self._plan = self._plan_of(epoch)

    def next(self) -> Batch:
        """The next batch; begins the next epoch where one is used up."""
        if self.position >= len(self._plan):
            self.epoch, self.position = self.epoch + 1, 0
            self._plan = self._plan_of(self.epoch)
        batch = self._plan.batch(self.position)
        self.position += 1
        return batch

    def _plan_of(self, epoch: int) -> BatchPlan:
        return BatchPlan(self._corpus, max_tokens=self._max_tokens, seed=self._seed, epoch=epoch, dropout=self._dropout)


def seed_of(*numbers: int) -> int:
    """A seed in [0, 2⁶³) from whole numbers: the same everywhere, unlike for numbers that differ anywhere.

    Everything random in an update is seeded by (seed, update, batch), so no generator's state has to be saved.
    """
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1
