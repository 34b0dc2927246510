"""Tokenize pairs on all cores: in this process, and in child processes once the work is long."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from translume.data.batch import flat
from translume.data.cleaning import truncated_ids
from translume.data.pairs import Pair
from translume.processes import Call, ChildProcess, Request, serve_requests, usable_processors
from translume.tasks import find_task
from translume.text import Labels, Tokenizer

START_SECONDS: Final = 4.0
"""Seconds of tokenization after which processes are started: about twice the time that they take to start."""
MOST_PROCESSES: Final = 8
"""Reading, cleaning and writing stay in one process, which more processes would wait for."""

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


class EncoderPool:
    """Encodes chunks of pairs in order; a context, which ends the processes."""

    def __init__(self, encoder: Encoder, processes: int | None = None) -> None:
        """processes: None for one for each core that this process may use, at most `MOST_PROCESSES`."""
        self._count = min(usable_processors(), MOST_PROCESSES) if processes is None else processes
        self._encoder, self._seconds = encoder, 0.0
        self._children: list[ChildProcess] = []
        self._next = 0
        self._stack = ExitStack()

    def __enter__(self) -> "EncoderPool":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.shutdown()
        self._stack.close()

    @property
    def ahead(self) -> int:
        """Number of chunks to submit before the first result is taken."""
        return 2 * len(self._children)

    def submit(self, pairs: list[Pair]) -> Callable[[], Encoded]:
        """Start to encode pairs of one file, and return a function that returns the result.

        That function raises ProcessLostError if a process ends before.
        """
        if not self._children and self._count > 1 and self._seconds >= START_SECONDS:
            values = self._encoder.to_values()
            for _ in range(self._count):
                self._children.append(self._stack.enter_context(ChildProcess(__name__)))
                self._children[-1].request("load", values)
        if not self._children:
            begun = time.monotonic()
            found = self._encoder.encode(pairs)
            self._seconds += time.monotonic() - begun
            return lambda: found
        child = self._children[self._next % self._count]
        self._next += 1
        body = json.dumps([[pair.source, pair.target, pair.line] for pair in pairs], ensure_ascii=False).encode()
        call = child.request("encode", {"file": pairs[0].file if pairs else ""}, body)
        return lambda: _result(call)


def _result(call: Call) -> Encoded:
    (message,) = call.responses()
    count, source, target = message.values["sizes"]
    numbers = np.frombuffer(message.body, np.int32).astype(np.int64)
    ends = np.cumsum([source, count, target, count])
    sources, source_lengths, targets, target_lengths, cut = np.split(numbers, ends)
    return Encoded(sources, source_lengths, targets, target_lengths, cut.astype(np.bool_))


@cache
def _loaded() -> list[Encoder]:
    return []


def _handle(request: Request) -> None:
    """Handle a request in a child process."""
    if request.method == "load":
        _loaded().append(Encoder.from_values(dict(request.values)))
        return
    rows, file = json.loads(request.body), request.values["file"]
    pairs = [Pair(source=source, target=target, file=file, line=line) for source, target, line in rows]
    found = _loaded()[0].encode(pairs)
    arrays = (found.source, found.source_lengths, found.target, found.target_lengths, found.cut)
    body = np.concatenate([np.asarray(each, np.int32) for each in arrays]).tobytes()
    request.respond({"sizes": [len(found.cut), len(found.source), len(found.target)]}, body)


def main() -> None:
    """Run a child process."""
    serve_requests(_handle, shield=(signal.SIGINT,))
