"""Check the texts of pairs and tokenize them: in this process, or in several."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from translume.config.data import CleaningSettings
from translume.data.addresses import size_of
from translume.data.batch import Ragged, flat, starts_of
from translume.data.cleaning import KEPT, Rules, pair_hashes
from translume.data.held_out import source_hashes
from translume.data.lengths import truncated_ids
from translume.data.pairs import Pair
from translume.parallel import WorkerPool
from translume.processors import usable_processors
from translume.tasks import find_task
from translume.text import Labels, Tokenizer

LONG_BYTES: Final = 64 << 20
"""Size of files from which tokenizing them takes longer in one process than starting others does."""
MAX_PROCESSES: Final = 8
"""Reading, finding duplicates and writing stay in one process, which more processes would wait for."""

Cut = Literal["drop", "keep_first", "keep_last"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of n pairs, one side after the other, and which sources were truncated [n]."""

    source: NDArray[np.int64]
    source_lengths: NDArray[np.int64]
    target: NDArray[np.int64]
    target_lengths: NDArray[np.int64]
    cut: NDArray[np.bool_]

    def sides(self, rows: NDArray[np.int64]) -> tuple[Ragged, Ragged]:
        """Return the sources and the targets of some pairs."""
        source, target = (starts_of(lengths)[rows] for lengths in (self.source_lengths, self.target_lengths))
        return (
            Ragged(self.source, source, self.source_lengths[rows]),
            Ragged(self.target, target, self.target_lengths[rows]),
        )


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes pairs for a task.

    cut, limit: whether and where sources are truncated.  paths: whether sources are paths of files with frames.
    """

    task: str
    source: Tokenizer
    target: Tokenizer | Labels
    cut: Cut
    limit: int | None
    paths: bool = False

    def normalised(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return pairs as the model reads them, to be compared: their texts are normalised, paths are not."""
        source, target = str if self.paths else self.source.normalise, self.target.normalise
        return [pair._replace(source=source(pair.source), target=target(pair.target)) for pair in pairs]

    def encode(self, pairs: list[Pair], positions: list[int] | None = None) -> Encoded:
        """Return the ids of pairs. Raises DataError for an unknown label.

        positions: of sources that are frames, with a 0 in place of each id.
        """
        if positions is None:
            sources = self.source.encode_all([pair.source for pair in pairs])
        else:
            sources = [[0] * count for count in positions]
        cut = np.zeros(len(sources), np.bool_)
        if self.cut != "drop" and self.limit is not None:
            for index, ids in enumerate(sources):
                if len(ids) > self.limit:
                    cut[index] = True
                    sources[index] = truncated_ids(ids, self.limit, self.cut)
        return Encoded(*flat(sources), *flat(find_task(self.task).encode_targets(self.target, pairs)), cut)


@dataclass(frozen=True, slots=True, eq=False)
class CheckedPairs:
    """n pairs after the rules that look at the texts of one pair at a time.

    codes [n]: as `Rules.of_each` returns them.  sources [n]: as `source_hashes` returns them; empty if not needed.
    The rest is of the m pairs with the code KEPT.
    pairs [m]: as `pair_hashes` returns them; empty if not needed.
    """

    codes: NDArray[np.int8]
    pairs: NDArray[np.uint64]
    sources: NDArray[np.uint64]
    encoded: Encoded


@dataclass(frozen=True, slots=True)
class TextChecker:
    """Checks the texts of pairs, and encodes those that are kept.  sampled: whether hashes of sources are needed."""

    encoder: Encoder
    cleaning: CleaningSettings | None
    sampled: bool

    def check(self, pairs: list[Pair]) -> CheckedPairs:
        """Return the codes and ids of pairs. Raises DataError for an unknown label."""
        task = find_task(self.encoder.task)
        rules = Rules(self.cleaning, missing_target=task.missing_target, sources=task.reads == "pairs")
        read = self.encoder.normalised(pairs) if self.sampled or rules.compares else pairs
        codes = rules.of_each(read)
        kept = pairs if (codes == KEPT).all() else [pairs[i] for i in np.flatnonzero(codes == KEPT).tolist()]
        nothing = np.zeros(0, np.uint64)
        return CheckedPairs(
            codes,
            pair_hashes([read[i] for i in np.flatnonzero(codes == KEPT).tolist()]) if rules.duplicates else nothing,
            source_hashes(read) if self.sampled else nothing,
            self.encoder.encode(kept),
        )

    def load(self) -> "TextChecker":
        """Return itself, in a worker process."""
        gc.freeze()
        return self


def processes_for(files: Iterable[str]) -> int:
    """Return the number of processes that tokenize files: 1 unless they are long. Raises OSError for a missing one."""
    return min(usable_processors(), MAX_PROCESSES) if sum(map(size_of, files)) >= LONG_BYTES else 1


@contextmanager
def checking(
    checker: TextChecker, processes: int
) -> Iterator[tuple[Callable[[list[Pair]], Callable[[], CheckedPairs]], int]]:
    """Yield a function that starts to check pairs and returns what gives the result, and how many to start ahead.

    The result raises ProcessLostError if a process ends before.
    """
    if processes == 1:
        yield lambda pairs: partial(checker.check, pairs), 0
        return
    with WorkerPool(processes, checker.load) as pool:
        yield partial(pool.submit, TextChecker.check), 2 * processes
