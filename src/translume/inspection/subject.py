"""What is looked at: a source and a target as ids, found by the model or given, and what decoding asks of it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from translume.checkpoint import Checkpoint
from translume.config import DecodingSettings
from translume.decoding import Rule
from translume.errors import SettingsError, TranslationError
from translume.inspection.passes import Sentence
from translume.translator import TextHypothesis, Translator
from translume.translator.searching import limit_of, rules_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A sentence and its target.

    given: the source as it was given.  source: its ids, with the end mark.  target: ids, the end mark among them where
    `finished_by` is "eos".  settings: of the search that found the target, or would have.
    """

    checkpoint: Checkpoint
    settings: DecodingSettings
    given: str
    source: tuple[int, ...]
    target: tuple[int, ...]
    origin: Literal["search", "given"]
    finished_by: Literal["eos", "length"]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.checkpoint.model.parameters()).device

    def sentence(self) -> Sentence:
        """The ids as tensors."""

        def tensor(ids: tuple[int, ...]) -> Tensor:
            return torch.tensor(ids, device=self.device)

        return Sentence(tensor(self.source), tensor(self.target), self.checkpoint.target_tokenizer.specials.bos)

    def rules(self) -> list[Rule]:
        """What [decoding] forbids and forces."""
        return rules_for(self.checkpoint, [self._prefix()], self.settings)

    def limit(self) -> int:
        """The most tokens that a search allows, or that the target has if these are more."""
        longest = self.checkpoint.config.model.max_positions
        found = limit_of(len(self.source) - 1, len(self._prefix()), self.settings, longest)
        return max(found, len(self.target))

    def _prefix(self) -> list[int]:
        return self.checkpoint.target_tokenizer.encode(self.settings.prefix)


def subject_of(
    translator: Translator, source: str, target: str | TextHypothesis | None, settings: DecodingSettings | None
) -> Subject:
    """The source with a target: a text with its end mark, a hypothesis as found, or (None) the model's translation.

    Raises TranslationError where there is nothing to look at or a side is longer than the model reads: a line is
    inspected whole, never in parts.
    """
    check_alone(translator)
    checkpoint = translator.checkpoint
    chosen = settings or translator.config.decoding
    translator.check(chosen)
    ids = encoded_source(checkpoint, source)
    origin: Literal["search", "given"] = "given"
    if target is None:
        origin = "search"
        target = translator.translate(source, settings=chosen).hypotheses[0]
    eos = checkpoint.target_tokenizer.specials.eos
    if not isinstance(target, str | TextHypothesis):
        raise TypeError(f"target: found {type(target).__name__}, wanted a text, a hypothesis or None")
    labels = (*checkpoint.target_tokenizer.encode(target), eos) if isinstance(target, str) else target.ids
    if not labels or eos in labels[:-1]:
        raise TranslationError("target: the hypothesis was joined from parts, wanted one of a single sentence")
    check_length(checkpoint, "target", labels)
    return Subject(
        checkpoint=checkpoint,
        settings=chosen,
        given=source,
        source=ids,
        target=labels,
        origin=origin,
        finished_by="eos" if labels[-1] == eos else "length",
    )


def check_alone(translator: Translator) -> None:
    """Raise SettingsError unless the translator goes by one model alone: beliefs are looked at one model at a time."""
    if not isinstance(translator, Translator):
        raise TypeError(f"wanted a Translator, found {type(translator).__name__}; load gives one of a folder")
    if len(translator.models) > 1:
        raise SettingsError(
            f"inspection: found {len(translator.models)} models that translate together, wanted one; "
            "inspect each by itself"
        )
    if translator.fusion is not None:
        raise SettingsError("inspection: found a language model beside the translator, wanted the translator alone")


def encoded_source(checkpoint: Checkpoint, text: str) -> tuple[int, ...]:
    """The ids of a source with its end mark; TranslationError where it is blank or longer than the model reads."""
    ids = checkpoint.source_tokenizer.encode("" if isinstance(text, str) and text.isspace() else text)
    if not ids:
        raise TranslationError("source: found a blank text, wanted one to translate")
    whole = (*ids, checkpoint.source_tokenizer.specials.eos)
    check_length(checkpoint, "source", whole)
    return whole


def check_length(checkpoint: Checkpoint, side: str, ids: tuple[int, ...]) -> None:
    """Raise TranslationError where a side is longer than the model reads."""
    longest = checkpoint.config.model.max_positions
    if len(ids) > longest:
        raise TranslationError(
            f"{side}: found {len(ids):,} tokens with the end mark, wanted at most {longest:,}; "
            "inspect one sentence at a time"
        )
