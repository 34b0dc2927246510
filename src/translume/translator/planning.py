"""Split lines into pieces that the model can read, and group them into windows and batches."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from translume.errors import TranslationError, TranslumeError
from translume.text import Tokenizer
from translume.text.sentences import split_sentences
from translume.translator.constraints import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A text and its line number from 1; 0 if there is only one text.

    constraints: phrases that its target must contain.
    """

    number: int
    text: str
    constraints: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The beginning of error messages about the line."""
        return f"line {self.number}" if self.number else "text"


class LineError(TranslationError):
    """A line that cannot be translated. The lines before it are not affected."""

    def __init__(self, line: Line, reason: str) -> None:
        super().__init__(f"{line.place}: {reason}")
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A whole line, or one sentence of it, that is translated at once.

    ids: without an end mark; empty if there is nothing to translate.  text: of these ids.  spacing: the white space
    after it.  first: whether it is the first piece of its line.
    """

    ids: tuple[int, ...]
    text: str = ""
    spacing: str = ""
    first: bool = True
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlan:
    """A line split into pieces."""

    line: Line
    pieces: tuple[Piece, ...]
    warnings: tuple[str, ...] = ()


def plan_line(
    line: Line, ids: Sequence[int], tokenizer: Tokenizer, limit: int, action: Literal["error", "truncate"]
) -> LinePlan:
    """The line as one piece, or as its sentences if it has more than `limit` tokens.

    ids: of the whole line.  Raises LineError if a single sentence is too long and `action` is "error".
    """
    if len(ids) <= limit:
        return LinePlan(line=line, pieces=(Piece(ids=tuple(ids), text=line.text),))
    sentences = split_sentences(line.text.strip())
    pieces, warnings = [], []
    encoded = tokenizer.encode_all([text for text, _ in sentences]) if len(sentences) > 1 else [list(ids)]
    for number, (found, (text, spacing)) in enumerate(zip(encoded, sentences, strict=True), start=1):
        if len(found) > limit:
            which = f"sentence {number} of {len(sentences)}" if len(sentences) > 1 else "a sentence"
            if action == "error":
                raise LineError(
                    line,
                    f"{which} has {len(found):,} tokens, expected at most {limit:,}; "
                    'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it',
                )
            warnings.append(f"truncated: {which} had {len(found):,} tokens and was cut to {limit:,}")
        pieces.append(Piece(ids=tuple(found[:limit]), text=text, spacing=spacing, first=number == 1))
    return LinePlan(line=line, pieces=tuple(pieces), warnings=tuple(warnings))


WINDOW_LINES = 4096
"""Maximum number of lines that are read before the first of them is returned."""
WINDOW_CHARACTERS = 2_000_000
"""Maximum number of characters in a window, unless a single line has more."""
MIN_COUNTED_TOKENS = 16
"""Tokens that a shorter text counts as: the logits of thousands of single words would take gigabytes."""
FULL_BATCH_WIDTH = 2
"""Beam width up to which a batch may hold `max_tokens` source tokens. With wider beams it holds proportionally less.

Some hundred rows keep a core busy. The states of more rows no longer fit the processor's cache.
"""

T = TypeVar("T")


def windows(
    items: Iterable[tuple[T, int]], *, lines: int = WINDOW_LINES, characters: int = WINDOW_CHARACTERS
) -> Iterator[list[T]]:
    """Yield lists of consecutive items.  items: each with its size in characters.

    If reading the items raises an error, such as for a line that is not UTF-8, it is raised after the items before it
    were yielded.
    """
    window: list[T] = []
    total, broken = 0, None
    try:
        for item, size in items:
            if window and (len(window) == lines or total + size > characters):
                yield window
                window, total = [], 0
            window.append(item)
            total += size
    except TranslumeError as error:
        broken = error
    if window:
        yield window
    if broken is not None:
        raise broken


def batches(lengths: Sequence[int], max_tokens: int, *, shortest: int = 1) -> Iterator[list[int]]:
    """Yield all positions in `lengths`, the longest first, in batches of at most `max_tokens` tokens with padding.

    A length below `shortest` counts as `shortest`. One longer than `max_tokens` gets a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batch: list[int] = []
    for index in order:
        if batch and (len(batch) + 1) * max(lengths[batch[0]], shortest) > max_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def numbered_lines(
    texts: Iterable[str], constraints: Iterable[Iterable[str]] | None = None
) -> Iterator[tuple[Line, int]]:
    """Number texts as lines from 1, with their sizes, for `windows`. A line break at the end of a text is removed.

    constraints: a list for each text.  Raises TranslationError if their number is not that of the texts.
    """
    if constraints is None:
        for number, text in enumerate(texts, start=1):
            yield Line(number=number, text=without_line_break(text, number)), len(text)
        return
    nothing: Any = object()
    for number, (text, wanted) in enumerate(zip_longest(texts, constraints, fillvalue=nothing), start=1):
        if text is nothing or wanted is nothing:
            missing = "no text for the constraints" if text is nothing else "no constraints for the text"
            raise TranslationError(f"line {number}: found {missing}, expected as many lists of constraints as texts")
        if isinstance(wanted, str):
            raise TypeError("constraints: found one text, expected a list of texts")
        yield Line(number=number, text=without_line_break(text, number), constraints=tuple(wanted)), len(text)


def without_line_break(text: str, number: int) -> str:
    """A line of a file without its line break. Raises TypeError for anything but str."""
    if not isinstance(text, str):
        raise TypeError(f"line {number}: found {type(text).__name__}, expected a text (str)")
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Lists of ids as one tensor [B, S] padded with `pad`, and the mask [B, S] that is True at the lists' own ids."""
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(width)[None] < lengths[:, None]
    return ids.to(device), mask.to(device)
