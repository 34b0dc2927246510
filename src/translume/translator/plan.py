"""From lines to the pieces that a model reads, and from the pieces' hypotheses back to lines."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from translume.errors import TranslationError
from translume.text import Tokenizer
from translume.translator.constraints import Constraint
from translume.translator.sentences import split_sentences
from translume.translator.values import TextHypothesis, Translation

_LINE_BREAKS = re.compile(r"[\r\n]+")
UNSPACED = re.compile("[\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
"""Han, Kana and the punctuation that goes with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A text and where it stood, counted from 1; 0 where there is just one text.

    constraints: what its target must hold.
    """

    number: int
    text: str
    constraints: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """What errors about it begin with."""
        return f"line {self.number}" if self.number else "text"


class LineError(TranslationError):
    """One line that cannot be translated, with what came before it untouched."""

    def __init__(self, line: Line, reason: str) -> None:
        super().__init__(f"{line.place}: {reason}")
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is translated at once: the ids of a whole line or of one of its sentences, and the white space after it.

    ids: without an end mark; empty where there is nothing to translate.  text: what they stand for.
    first: whether its line begins with it.  constraints: what its target must hold.
    """

    ids: tuple[int, ...]
    text: str = ""
    spacing: str = ""
    first: bool = True
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A line in pieces."""

    line: Line
    pieces: tuple[Piece, ...]
    warnings: tuple[str, ...] = ()


def plan_line(
    line: Line, ids: Sequence[int], tokenizer: Tokenizer, limit: int, action: Literal["error", "truncate"]
) -> Plan:
    """The line as one piece, or as its sentences if it has more than `limit` tokens.

    ids: of the whole line.  Raises LineError if a single sentence is too long and may not be cut.
    """
    if len(ids) <= limit:
        return Plan(line=line, pieces=(Piece(ids=tuple(ids), text=line.text),))
    sentences = split_sentences(line.text.strip())
    pieces, warnings = [], []
    encoded = tokenizer.encode_all([text for text, _ in sentences]) if len(sentences) > 1 else [list(ids)]
    for number, (found, (text, spacing)) in enumerate(zip(encoded, sentences, strict=True), start=1):
        if len(found) > limit:
            which = f"sentence {number} of {len(sentences)}" if len(sentences) > 1 else "a sentence"
            if action == "error":
                raise LineError(
                    line,
                    f"{which} has {len(found):,} tokens, wanted at most {limit:,}; "
                    'decoding.max_length_action = "truncate" (--max-length-action truncate) cuts it',
                )
            warnings.append(f"truncated: {which} had {len(found):,} tokens and was cut to {limit:,}")
        pieces.append(Piece(ids=tuple(found[:limit]), text=text, spacing=spacing, first=number == 1))
    return Plan(line=line, pieces=tuple(pieces), warnings=tuple(warnings))


def finish(plan: Plan, found: Sequence[Sequence[TextHypothesis]], nbest: int) -> Translation:
    """The translation of a line from the hypotheses of each of its pieces; a piece without any stays empty."""
    hypotheses = tuple(found[0] if len(plan.pieces) == 1 else _join(plan.pieces, found, nbest))
    if not _LINE_BREAKS.search(plan.line.text):
        hypotheses = tuple(_on_one_line(hypothesis) for hypothesis in hypotheses)
    return Translation(
        source=plan.line.text,
        text=hypotheses[0].text if hypotheses else "",
        hypotheses=hypotheses,
        warnings=plan.warnings,
    )


def _join(pieces: Sequence[Piece], found: Sequence[Sequence[TextHypothesis]], nbest: int) -> list[TextHypothesis]:
    """The `nbest` combinations of one hypothesis a piece with the largest sums of scores."""
    joined = [TextHypothesis(text="", tokens=(), ids=(), log_prob=0.0, score=0.0, finished_by="eos")]
    spacing = source = ""
    for piece, hypotheses in zip(pieces, found, strict=True):
        if not hypotheses:
            spacing += piece.spacing
            continue
        longer = [
            TextHypothesis(
                text=before.text
                + between(before.text, spacing, hypothesis.text, source + piece.text[:1])
                + hypothesis.text,
                tokens=before.tokens + hypothesis.tokens,
                ids=before.ids + hypothesis.ids,
                log_prob=before.log_prob + hypothesis.log_prob,
                token_log_probs=before.token_log_probs + hypothesis.token_log_probs,
                score=before.score + hypothesis.score,
                finished_by="length" if before.finished_by == "length" else hypothesis.finished_by,
            )
            for before in joined
            for hypothesis in hypotheses
        ]
        joined = sorted(longer, key=lambda hypothesis: -hypothesis.score)[:nbest]
        spacing, source = piece.spacing, piece.text[-1:]
    return joined


def between(before: str, spacing: str, after: str, source: str) -> str:
    """What parts two translated sentences: the source's white space, unless one script has spaces and the other none.

    Chinese and Japanese write sentences without a space between them.
    source: the last letter of the source's sentence and the first of its next one.
    """
    if not before or not after:
        return spacing
    unspaced = [UNSPACED.match(character) is not None for character in (before[-1], after[0])]
    if unspaced == [UNSPACED.match(character) is not None for character in source]:
        return spacing
    if spacing == "" and not any(unspaced):
        return " "
    return "" if spacing == " " and all(unspaced) else spacing


def _on_one_line(hypothesis: TextHypothesis) -> TextHypothesis:
    """A line stays a line: a line break that the model wrote of itself becomes a space."""
    if "\n" not in hypothesis.text and "\r" not in hypothesis.text:
        return hypothesis
    return replace(hypothesis, text=_LINE_BREAKS.sub(" ", hypothesis.text))
