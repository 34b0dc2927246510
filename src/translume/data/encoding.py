"""Check the texts of pairs and tokenize them: in this process, and on all cores once the work is long."""

import gc
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from translume.config.data import CleaningSettings
from translume.data.batch import flat
from translume.data.cleaning import KEPT, Rules, pair_hashes, truncated_ids
from translume.data.held_out import source_hashes
from translume.data.pairs import Pair
from translume.processes import Call, ChildProcess, Request, serve_requests, usable_processors
from translume.tasks import find_task
from translume.text import Labels, Tokenizer

START_SECONDS: Final = 4.0
"""Seconds of tokenization after which processes are started: about twice the time that they take to start."""
MOST_PROCESSES: Final = 8
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


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encodes pairs for a task.  cut, limit: whether and where sources are truncated."""

    task: str
    source: Tokenizer
    target: Tokenizer | Labels
    cut: Cut
    limit: int | None

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
        encode_targets: Callable[..., Sequence[Sequence[int]]] = find_task(self.task).part("encode_targets")
        return Encoded(*flat(sources), *flat(encode_targets(self.target, pairs)), cut)

    def to_values(self) -> dict[str, Any]:
        """Return the encoder as JSON values."""
        return {
            "task": self.task,
            "source": self.source.to_json(),
            "target": self.target.to_json(),
            "kind": type(self.target).__name__,
            "cut": self.cut,
            "limit": self.limit,
        }

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Encoder":
        """Read what `to_values` returned."""
        kinds: dict[str, type[Tokenizer | Labels]] = {each.__name__: each for each in (Tokenizer, Labels)}
        source, target = Tokenizer.from_json(values["source"]), kinds[values["kind"]].from_json(values["target"])
        return cls(values["task"], source, target, values["cut"], values["limit"])


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

    def to_body(self) -> tuple[list[int], bytes]:
        """Return sizes and bytes for `from_body`."""
        found = self.encoded
        arrays: list[NDArray[Any]] = [self.pairs, self.sources]
        for ids in (found.source, found.source_lengths, found.target, found.target_lengths):
            arrays.append(ids.astype(np.int32))
        arrays += [self.codes, found.cut]
        return [len(each) for each in arrays], b"".join(each.tobytes() for each in arrays)

    @classmethod
    def from_body(cls, sizes: list[int], body: bytes) -> "CheckedPairs":
        """Read what `to_body` returned."""
        arrays: list[NDArray[Any]] = []
        begin = 0
        for size, kind in zip(sizes, ("u8", "u8", "i4", "i4", "i4", "i4", "i1", "?"), strict=True):
            arrays.append(np.frombuffer(body, kind, size, begin))
            begin += arrays[-1].nbytes
        pairs, sources, source, source_lengths, target, target_lengths, codes, cut = arrays
        return cls(
            codes.copy(),
            pairs,
            sources,
            Encoded(
                source=source.astype(np.int64),
                source_lengths=source_lengths.astype(np.int64),
                target=target.astype(np.int64),
                target_lengths=target_lengths.astype(np.int64),
                cut=cut,
            ),
        )


@dataclass(frozen=True, slots=True)
class TextChecker:
    """Checks the texts of pairs, and encodes those that are kept.  sampled: whether hashes of sources are needed."""

    encoder: Encoder
    cleaning: CleaningSettings | None
    sampled: bool

    def check(self, pairs: list[Pair]) -> CheckedPairs:
        """Return the codes and ids of pairs. Raises DataError for an unknown label."""
        task = find_task(self.encoder.task)
        rules = Rules(self.cleaning, None, missing_target=task.missing_target, sources=task.reads == "pairs")
        codes = rules.of_each(pairs)
        kept = pairs if (codes == KEPT).all() else [pairs[i] for i in np.flatnonzero(codes == KEPT).tolist()]
        nothing = np.zeros(0, np.uint64)
        return CheckedPairs(
            codes,
            pair_hashes(kept) if rules.duplicates else nothing,
            source_hashes(pairs) if self.sampled else nothing,
            self.encoder.encode(kept),
        )

    def to_values(self) -> dict[str, Any]:
        """Return the checker as JSON values."""
        cleaning = None if self.cleaning is None else self.cleaning.model_dump(mode="json")
        return {"encoder": self.encoder.to_values(), "cleaning": cleaning, "sampled": self.sampled}

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "TextChecker":
        """Read what `to_values` returned."""
        cleaning = values["cleaning"]
        return cls(
            Encoder.from_values(values["encoder"]),
            None if cleaning is None else CleaningSettings.model_validate(cleaning),
            values["sampled"],
        )


class CheckerPool:
    """Checks and encodes chunks of pairs in order; a context, which ends the processes."""

    def __init__(self, checker: TextChecker, processes: int | None = None) -> None:
        """processes: None for one for each core that this process may use, at most `MOST_PROCESSES`."""
        self._count = min(usable_processors(), MOST_PROCESSES) if processes is None else processes
        self._checker, self._seconds = checker, 0.0
        self._children: list[ChildProcess] = []
        self._next = 0
        self._stack = ExitStack()

    def __enter__(self) -> "CheckerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.shutdown()
        self._stack.close()

    @property
    def ahead(self) -> int:
        """Number of chunks to submit before the first result is taken."""
        return 2 * len(self._children)

    def submit(self, pairs: list[Pair]) -> Callable[[], CheckedPairs]:
        """Start to check pairs of one file, and return a function that returns the result.

        That function raises ProcessLostError if a process ends before.
        """
        if not self._children and self._count > 1 and self._seconds >= START_SECONDS:
            values = self._checker.to_values()
            for _ in range(self._count):
                self._children.append(self._stack.enter_context(ChildProcess(__name__)))
                self._children[-1].request("load", values)
        if not self._children:
            begun = time.monotonic()
            found = self._checker.check(pairs)
            self._seconds += time.monotonic() - begun
            return lambda: found
        child = self._children[self._next % self._count]
        self._next += 1
        call = child.request("check", {"file": pairs[0].file, "count": len(pairs)}, _to_body(pairs))
        return lambda: _result(call)


def _to_body(pairs: list[Pair]) -> bytes:
    """Return the line number and the lengths of the texts of each pair, [3, n], all sources, and all targets."""
    sources, targets, _, lines = zip(*pairs, strict=True)
    numbers = np.array([lines, list(map(len, sources)), list(map(len, targets))], np.int64)
    return numbers.tobytes() + "".join([*sources, *targets]).encode()


def _from_body(file: str, count: int, body: bytes) -> list[Pair]:
    """Read what `_to_body` returned."""
    numbers = np.frombuffer(body, np.int64, 3 * count)
    text = body[numbers.nbytes :].decode()
    ends = np.cumsum(numbers[count:]).tolist()
    texts = [text[begin:end] for begin, end in pairwise([0, *ends])]
    return list(map(Pair, texts[:count], texts[count:], repeat(file), numbers[:count].tolist()))


def _result(call: Call) -> CheckedPairs:
    (message,) = call.responses()
    return CheckedPairs.from_body(message.values["sizes"], message.body)


_checkers: list[TextChecker] = []
"""The checker of a child process, once it is loaded."""


def _handle(request: Request) -> None:
    """Handle a request in a child process."""
    if request.method == "load":
        _checkers.append(TextChecker.from_values(dict(request.values)))
        gc.freeze()
        return
    pairs = _from_body(request.values["file"], request.values["count"], request.body)
    sizes, body = _checkers[0].check(pairs).to_body()
    request.respond({"sizes": sizes}, body)


def main() -> None:
    """Run a child process."""
    serve_requests(_handle, shield=(signal.SIGINT,))
