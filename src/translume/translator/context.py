"""The sentences of a document before a piece, as the encoder and the decoder read them."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, zip_longest

from translume.checkpoint import Checkpoint
from translume.config.data import ContextSettings
from translume.translator.assembly import SearchedPiece
from translume.translator.planning import LinePlan, Piece, same_document

DROPPED = "context_dropped"
"""The first word of warnings about context."""


@dataclass(slots=True)
class _Document:
    """A document: the ids of its sentences, each with EOS, and the numbers of its pieces, the last of the sentences."""

    sources: list[list[int]] = field(default_factory=list)
    targets: list[list[int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Context:
    """What is read before a sentence: ids on both sides, and a warning about what does not fit; empty if all does."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    warning: str

    @classmethod
    def from_sentences(
        cls, sources: Sequence[list[int]], targets: Sequence[list[int]], source_room: int, target_room: int
    ) -> "Context":
        """Return the nearest of the sentences before one, which have EOS, as far as they fit.  rooms: in tokens."""
        sides = _nearest(sources, source_room), _nearest(targets, target_room)
        wanted, missing = len(sources) + len(targets), len(sources) + len(targets) - sum(map(len, sides))
        warning = f"{DROPPED}: {missing} of {wanted} sentences before it, to fit the model's limit" if missing else ""
        return cls(tuple(chain.from_iterable(sides[0])), tuple(chain.from_iterable(sides[1])), warning)


class History:
    """The pairs before one in its document, as many as a model reads."""

    def __init__(self, settings: ContextSettings) -> None:
        self._pairs: deque[tuple[str, str]] = deque(maxlen=max(settings.source, settings.target))
        self._document: Hashable = None
        self._blank = 0

    def add(self, source: str, target: str, document: Hashable = None) -> tuple[tuple[str, str], ...]:
        """Add the next pair; return those before it.  document: as `Line.document`; None: blank sources end one."""
        self._blank += not source.strip()
        document = self._blank if document is None else document
        if document != self._document:
            self._pairs.clear()
        before, self._document = tuple(self._pairs), document
        if source.strip():
            self._pairs.append((source, target))
        return before


def context_of_pair(
    checkpoint: Checkpoint, before: Sequence[tuple[str, str]], source_tokens: int, target_tokens: int
) -> Context:
    """Return the context of a pair, whose sides have these numbers of tokens with tags and EOS.

    before: the sources and targets before it in its document.
    """
    config, settings = checkpoint.config, checkpoint.config.data.context
    reads, writes = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    count = len(before)
    read, written = before[max(0, count - settings.source) :], before[max(0, count - settings.target) :]
    sources = [[*reads.encode(each), reads.specials.eos] for each, _ in read]
    targets = [[*writes.encode(each), writes.specials.eos] for _, each in written]
    longest = config.longest_source, config.model.max_positions
    most = [min(each, config.data.cleaning.max_tokens + 1) for each in longest]  # EOS does not count there
    return Context.from_sentences(sources, targets, most[0] - source_tokens, most[1] - target_tokens)


def turns(
    checkpoint: Checkpoint,
    plans: list[LinePlan],
    pieces: list[Piece],
    searched: list[SearchedPiece],
    room: Callable[[Piece], int],
) -> Iterator[list[int]]:
    """Yield the numbers of pieces to search together, whose prompts have the same length.

    Before, `pieces` get their context: ids among their tags. A target is context once `searched`
    has it, so the first pieces of all documents come first, then the second ones, and so on. In the end, `plans` have
    these pieces too, and `searched` has warnings about context that does not fit.

    pieces: of all plans, in order.  room: the most tokens of context that the decoder can read before a piece.
    """
    config, settings = checkpoint.config, checkpoint.config.data.context
    reads, writes = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    ends = max(1, len(reads.specials.source_end))

    def source_of(text: str) -> list[int]:
        return [*reads.encode(text), reads.specials.eos]

    def target_of(text: str) -> list[int]:
        return [*writes.encode(text), writes.specials.eos]

    documents: list[_Document] = []
    places: dict[int, tuple[_Document, int]] = {}
    numbers = iter(range(len(pieces)))
    for index, plan in enumerate(plans):
        if not index or not same_document(plans[index - 1].line, plan.line):
            before = plan.line.before
            documents.append(
                _Document([source_of(each) for each, _ in before], [target_of(each) for _, each in before])
            )
        for piece, number in zip(plan.pieces, numbers, strict=False):
            if piece.ids or piece.kept:
                places[number] = documents[-1], len(documents[-1].sources)
                own = source_of(piece.text) if piece.kept else [*piece.ids, reads.specials.eos]
                documents[-1].sources.append(own)
                documents[-1].numbers.append(number)
    in_order: list[list[int]] = [list(places)]
    if settings.target:
        rounds = zip_longest(*(each.numbers for each in documents))
        in_order = [[number for number in each if number is not None] for each in rounds]
    for turn in in_order:
        lost: dict[int, str] = {}
        for number in turn:
            (document, place), piece = places[number], pieces[number]
            limit = min(config.longest_source - ends - len(piece.source_tags), config.data.cleaning.max_tokens)
            sources = document.sources[max(0, place - settings.source) : place]
            targets = document.targets[max(0, place - settings.target) : place]
            context = Context.from_sentences(sources, targets, limit - len(piece.ids), room(piece))
            pieces[number] = replace(
                piece,
                source_tags=(*piece.source_tags, *context.source),
                target_tags=(*piece.target_tags, *context.target),
            )
            if context.warning:
                lost[number] = context.warning

        def prompt(number: int) -> int:
            return len(pieces[number].target_tags)

        for _, group in groupby(sorted(turn, key=prompt), key=prompt):
            yield list(group)
        for number in turn if settings.target else ():
            hypotheses = searched[number][0]
            places[number][0].targets.append(target_of(hypotheses[0].text if hypotheses else pieces[number].text))
        for number, warning in lost.items():
            searched[number] = searched[number][0], (warning, *searched[number][1])
    rest = iter(pieces)
    plans[:] = [replace(plan, pieces=tuple(next(rest) for _ in plan.pieces)) for plan in plans]


def _nearest(sentences: Sequence[list[int]], room: int) -> Sequence[list[int]]:
    """Return the last sentences that together have at most `room` tokens."""
    count = 0
    while count < len(sentences) and len(sentences[-count - 1]) <= room:
        room -= len(sentences[-count - 1])
        count += 1
    return sentences[len(sentences) - count :]
