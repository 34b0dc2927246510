"""Speculation, as settings ask for it: what drafts for which sentences, and what it was worth."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import functional

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import (
    BlockStepper,
    Drafter,
    Greedy,
    Hypothesis,
    SourceDrafts,
    Speculation,
    Stepper,
    Strategy,
    TableDrafts,
)
from translume.errors import SettingsError


def table_of(checkpoint: Checkpoint, targets: Iterable[str]) -> TableDrafts:
    """What follows what in some targets."""
    tokenizer = checkpoint.target_tokenizer
    ids = tokenizer.encode_all(list(targets))
    return TableDrafts.of(ids, bos=tokenizer.specials.bos, eos=tokenizer.specials.eos, size=len(tokenizer))


def speculates(settings: DecodingSettings, strategy: Strategy) -> bool:
    """Whether a search drafts: where it is asked to and takes the likeliest token every time, a beam of 1 included."""
    return settings.speculation != "none" and isinstance(strategy, Greedy)


def refuse_undraftable(
    settings: DecodingSettings, strategy: Strategy, checkpoint: Checkpoint, steps: Stepper, table: TableDrafts | None
) -> None:
    """SettingsError where a search is to draft and cannot."""
    if not speculates(settings, strategy):
        return
    place = f"decoding.speculation: found '{settings.speculation}'"
    if strategy.coverage is not None:
        # A block says what its last token read of the source, not what each of them did.
        found = f"coverage_penalty = {settings.coverage_penalty}"
        raise SettingsError(f"{place} with {found}, wanted coverage_penalty = 0")
    if not isinstance(steps, BlockStepper):
        raise SettingsError(f"{place} with an ensemble, wanted one model")
    if settings.speculation == "copy" and checkpoint.source_tokenizer is not checkpoint.target_tokenizer:
        raise SettingsError(f"{place} for a model with a vocabulary for each side, wanted one for both, or 'ngram'")
    if settings.speculation == "ngram" and table is None:
        raise SettingsError(f"{place} without targets to draft from, wanted some: --draft FILE, Translator.draft_from")


def speculation_of(
    settings: DecodingSettings, checkpoint: Checkpoint, steps: Stepper, source: tuple[Tensor, Tensor],
    table: TableDrafts | None,
) -> Speculation[Any]:  # fmt: skip
    """What drafts for the sentences of a source, ids and mask [B, S]; `refuse_undraftable` has nothing against it."""
    assert isinstance(steps, BlockStepper)
    specials = checkpoint.target_tokenizer.specials
    ids, mask = source
    drafter: Drafter | None = table
    if settings.speculation == "copy":
        drafter = SourceDrafts(functional.pad(ids.masked_fill(~mask, -1), (1, 0), value=specials.bos))
    assert drafter is not None
    size = len(checkpoint.target_tokenizer)
    return Speculation(steps.steps, drafter, eos=specials.eos, size=size, length=settings.draft_length)


def counted(found: Sequence[Hypothesis], calls: int) -> list[Hypothesis]:
    """The hypotheses of a sentence with how many calls of the model it took."""
    return [replace(hypothesis, model_calls=calls) for hypothesis in found]
