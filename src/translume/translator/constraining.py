"""Searches whose targets must hold phrases: which piece of a line must hold which, and what is said if one cannot."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import Fusion, Hypothesis, SearchError, Stepper
from translume.translator.constraints import Constraint, constraint_of, cost_of, unmet_by, width_of
from translume.translator.placeholders import placeholders_of
from translume.translator.plan import LineError, Piece, Plan
from translume.translator.searching import forbidding, limit_of, search_pieces
from translume.translator.terminology import Terminology, Words, words_of

UNMET = "constraint_unmet"
"""What warnings about constraints begin with."""
_UNWRITABLE = "the target's vocabulary cannot write it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found for a piece, best first, and what it was not able to do."""

    hypotheses: list[Hypothesis]
    warnings: tuple[str, ...] = ()


def constrained(
    plan: Plan, checkpoint: Checkpoint, settings: DecodingSettings, terminology: Terminology | None
) -> Plan:
    """The plan with the constraints of each piece, and warnings about those that cannot be met.

    A term goes to the first piece that holds it; a phrase asked for goes to the first piece whose source holds it
    itself (names, numbers), else to the first piece; a placeholder belongs to its own piece.
    """
    filled = [number for number, piece in enumerate(plan.pieces) if piece.ids]
    if not filled:
        return plan
    source, target = checkpoint.source_tokenizer, checkpoint.target_tokenizer
    texts = [source.normalise(piece.text) for piece in plan.pieces]
    asked: list[tuple[int, tuple[str, ...], Constraint | None]] = []
    for text in plan.line.constraints:
        if not target.normalise(text).strip():
            raise LineError(plan.line, f"found a constraint without a word, {text!r}, wanted a word or a phrase")
        words = words_of(source.normalise(text))
        holders = [number for number in filled if _holds(words_of(texts[number]), words)]
        asked.append(((holders or filled)[0], (text,), constraint_of([text], target)))
    terms: dict[Words, tuple[int, tuple[str, ...], Constraint | None]] = {}
    for number in filled:
        for term in terminology.found_in(texts[number]) if terminology else ():
            terms.setdefault(term.source, (number, term.targets, term.constraint))
        for text in placeholders_of(plan.pieces[number].text, settings.placeholders):
            asked.append((number, (text,), constraint_of([text], target)))
    wanted: list[list[Constraint]] = [[] for _ in plan.pieces]
    warnings = []
    for number, names, constraint in (*asked, *terms.values()):
        if constraint is None:
            warnings.append(f"{UNMET}: {' or '.join(map(repr, names))}: {_UNWRITABLE}")
        else:
            wanted[number].append(constraint)
    pieces = []
    for piece, constraints in zip(plan.pieces, wanted, strict=True):
        fitted, said = _fitted(replace(piece, constraints=tuple(constraints)), checkpoint, settings)
        pieces.append(fitted)
        warnings += said
    return replace(plan, pieces=tuple(pieces), warnings=(*plan.warnings, *warnings))


def width(piece: Piece, checkpoint: Checkpoint, settings: DecodingSettings) -> int:
    """How many hypotheses the search of a constrained piece keeps."""
    return width_of(cost_of(piece.constraints, checkpoint.target_tokenizer), settings)


def search_constrained(
    checkpoint: Checkpoint,
    pieces: Sequence[Piece],
    settings: DecodingSettings,
    stepper: Stepper | None = None,
    fusion: Fusion | None = None,
) -> list[Found]:
    """What `search_pieces` finds; what no target can meet is left out, with a warning, and the piece searched anew."""
    found: dict[int, Found] = {}
    warnings: list[list[str]] = [[] for _ in pieces]
    current = list(pieces)
    while rest := [number for number in range(len(pieces)) if number not in found]:
        rest.sort(key=lambda number: width(current[number], checkpoint, settings))
        for _, group in groupby(rest, key=lambda number: width(current[number], checkpoint, settings)):
            numbers = list(group)
            try:
                chosen = [current[each] for each in numbers]
                results = search_pieces(checkpoint, chosen, settings, stepper, fusion)
            except SearchError as error:
                raise SearchError(error.reason, sentence=numbers[error.sentence], token=error.token) from None
            for number, hypotheses in zip(numbers, results, strict=True):
                left = relaxed(current[number], hypotheses, checkpoint, settings)
                if left is None:
                    found[number] = Found(hypotheses=hypotheses, warnings=tuple(warnings[number]))
                else:
                    current[number], warning = left
                    warnings[number].append(warning)
    return [found[number] for number in range(len(pieces))]


def relaxed(
    piece: Piece, found: Sequence[Hypothesis], checkpoint: Checkpoint, settings: DecodingSettings
) -> tuple[Piece, str] | None:
    """None where the best of what was found for a piece meets its constraints.

    Else the piece without one that no target can meet, with a warning, for another search.
    """
    unmet = unmet_by(checkpoint.target_tokenizer.decode(found[0].tokens), piece.constraints)
    return _without_one(piece, unmet, checkpoint, settings) if unmet else None


def _fitted(piece: Piece, checkpoint: Checkpoint, settings: DecodingSettings) -> tuple[Piece, list[str]]:
    """The piece with as many of its constraints as its limit has room for, and warnings about the others."""
    kept, warnings = list(piece.constraints), []
    tokenizer = checkpoint.target_tokenizer
    prefix = len(tokenizer.encode(settings.prefix)) if piece.first else 0
    while kept:
        cost = cost_of(kept, tokenizer)
        limit = limit_of(len(piece.ids), prefix, settings, checkpoint.config.model.max_positions, cost)
        if prefix + cost <= limit:
            break
        warnings.append(f"{UNMET}: {kept.pop().name}: the limit of {limit:,} tokens leaves no room for it")
    return replace(piece, constraints=tuple(kept)), warnings[::-1]


def _without_one(
    piece: Piece, unmet: Sequence[Constraint], checkpoint: Checkpoint, settings: DecodingSettings
) -> tuple[Piece, str]:
    """The piece without one of the constraints that a search did not meet, best one that a rule forbids; a warning.

    One at a time: without it the others may be met.
    """
    names = [[forbidding(checkpoint, piece, settings, phrase.ids) for phrase in each.phrases] for each in unmet]
    place = next((number for number, rules in enumerate(names) if all(rules)), None)
    if place is None:
        constraint, reason = unmet[-1], "within the limit nothing that is possible and allowed leads to it"
    else:
        rules = dict.fromkeys(name for name in names[place] if name)
        constraint, reason = unmet[place], f"a rule forbids it ({', '.join(rules)})"
    kept = list(piece.constraints)
    kept.remove(constraint)
    return replace(piece, constraints=tuple(kept)), f"{UNMET}: {constraint.name}: {reason}"


def _holds(words: Sequence[str], wanted: Sequence[str]) -> bool:
    size = len(wanted)
    return any(tuple(words[place : place + size]) == tuple(wanted) for place in range(len(words) - size + 1))
