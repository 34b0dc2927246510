"""From what was found for pieces to translations of lines, with what is to be said about them."""

from collections.abc import Sequence
from dataclasses import replace

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.translator.alignment import alignments
from translume.translator.batching import batches
from translume.translator.placeholders import lost_placeholders, placeholders_of
from translume.translator.plan import Plan, finish
from translume.translator.remarks import remarks_on
from translume.translator.values import TextHypothesis, Translation

Found = tuple[list[TextHypothesis], tuple[str, ...]]
"""The hypotheses of a piece, and warnings about them."""


def finished(
    checkpoint: Checkpoint, plans: Sequence[Plan], found: Sequence[Found], settings: DecodingSettings
) -> list[Translation]:
    """The translations of the lines of `plans`, from what was found for all their pieces, in order."""
    rest = iter(found)
    translations = [_finished(checkpoint, plan, [next(rest) for _ in plan.pieces], settings) for plan in plans]
    return aligned(checkpoint, plans, translations, settings.max_tokens) if settings.alignment else translations


def _finished(checkpoint: Checkpoint, plan: Plan, found: Sequence[Found], settings: DecodingSettings) -> Translation:
    whole = finish(plan, [hypotheses for hypotheses, _ in found], settings.nbest)
    said = [warning for _, warnings in found for warning in warnings]
    if whole.hypotheses:
        wanted = map(checkpoint.target_tokenizer.normalise, placeholders_of(whole.source, settings.placeholders))
        said += [
            f"placeholder_lost: {text!r} is not in the target" for text in lost_placeholders([*wanted], whole.text)
        ]
        cut = whole.hypotheses[0].finished_by == "length"
        whole = replace(whole, remarks=tuple(remarks_on(whole.source, whole.text, cut=cut)))
    return replace(whole, warnings=(*whole.warnings, *said)) if said else whole


def aligned(
    checkpoint: Checkpoint, plans: Sequence[Plan], translations: Sequence[Translation], max_tokens: int
) -> list[Translation]:
    """The translations with the alignments of all their hypotheses; lines in several pieces have none."""
    places, pairs = [], []
    for number, (plan, translation) in enumerate(zip(plans, translations, strict=True)):
        if len(plan.pieces) == 1:
            piece = plan.pieces[0]
            places += [(number, rank) for rank in range(len(translation.hypotheses))]
            pairs += [(piece.text or plan.line.text, piece.ids, each.ids) for each in translation.hypotheses]
    made = {}
    for batch in batches([max(len(source) + 1, len(target)) for _, source, target in pairs], max_tokens):
        for index, alignment in zip(batch, alignments(checkpoint, [pairs[index] for index in batch]), strict=True):
            made[places[index]] = alignment
    return [
        replace(
            translation,
            hypotheses=tuple(
                replace(each, alignment=made.get((number, rank))) for rank, each in enumerate(translation.hypotheses)
            ),
        )
        for number, translation in enumerate(translations)
    ]
