"""The models behind a translator: one, or an ensemble whose distributions are averaged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from translume.belief import NextToken
from translume.checkpoint import Checkpoint
from translume.data.lengths import Lengths
from translume.decoding import AttentionStepper, Average, Averaged, Ensemble, Stepper
from translume.engine import Engine
from translume.engine.packing import Dtype
from translume.errors import SettingsError
from translume.lazy import Tensor, no_grad, torch
from translume.text import Tokenizer
from translume.translator.loading import engine_of
from translume.translator.planning import tensors_of

Forced = tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]
"""What forced decoding reads: sources and their mask [B, S]; target ids, labels and their mask [B, T]."""
ELEMENTS = 1 << 22
"""Maximum number of log-probabilities in memory while an ensemble scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A model, and what searches in its place, if anything does: an engine, a GPU or an `OnnxStepper`."""

    checkpoint: Checkpoint
    engine: Stepper | None = None

    def stepper(self, *, attentive: bool) -> Stepper:
        """The engine, or the plain model where there is none or it cannot return the attention that is needed."""
        if self.engine is not None and (not attentive or _reports_attention(self.engine)):
            return self.engine
        return self.checkpoint.model


def _reports_attention(stepper: Stepper) -> bool:
    return stepper.reports_attention if isinstance(stepper, Engine) else isinstance(stepper, AttentionStepper)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleMembers:
    """The models that a translator searches and scores with; several are averaged at each step, with equal weights."""

    members: tuple[Member, ...]
    average: Average = "probability"

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, engine: Stepper | None = None) -> Self:
        """One model."""
        return cls(members=(Member(checkpoint=checkpoint, engine=engine),))

    def __len__(self) -> int:
        return len(self.members)

    def stepper(self, *, attentive: bool) -> Stepper:
        """The stepper of a search.  attentive: whether its states must return attention."""
        steppers = [member.stepper(attentive=attentive) for member in self.members]
        return steppers[0] if len(steppers) == 1 else Ensemble(steppers, self.average)

    def compiled(self, dtype: Dtype) -> "EnsembleMembers":
        """The same models, each with an engine."""
        members = (replace(each, engine=engine_of(each.checkpoint, dtype)) for each in self.members)
        return replace(self, members=tuple(members))

    @no_grad()
    def score(self, forced: Forced) -> NDArray[np.float32]:
        """The log-probabilities [B, T], fp32, of labels [B, T]; zero where their mask is False.

        An engine of one model scores what it searches; else the plain models do.
        """
        engine = self.members[0].engine
        if len(self.members) == 1 and isinstance(engine, Engine) and engine.head is not None:
            return engine.score(*forced)
        models = [member.checkpoint.model for member in self.members]
        tensors = tensors_of(forced, self.members[0].checkpoint.device)
        if len(models) == 1:
            return models[0].score(*tensors).float().cpu().numpy()
        rows = max(1, ELEMENTS // len(self.members[0].checkpoint.target_tokenizer))
        chosen = [belief.log_prob_of(wanted[:, None])[:, 0].float() for belief, wanted in self.beliefs(tensors, rows)]
        scores = torch.zeros(forced[3].shape)
        scores[models[0].predicted(tensors[4]).cpu()] = torch.cat(chosen).cpu()
        return scores.numpy()

    def beliefs(self, forced: Sequence[Tensor], rows: int) -> Iterator[tuple[NextToken, Tensor]]:
        """The distributions for the labels, sentence after sentence, and these labels; see `Transformer`.

        forced: what `tensors_of` returned.
        """
        source, mask, target, labels, target_mask = forced
        streams = [
            member.checkpoint.model.beliefs(source, mask, target, labels, target_mask, rows) for member in self.members
        ]
        if len(streams) == 1:
            yield from streams[0]
            return
        for parts in zip(*streams, strict=True):
            yield Averaged([belief for belief, _ in parts], self.average), parts[0][1]


def combine(every: Sequence[EnsembleMembers], average: Average) -> EnsembleMembers:
    """An ensemble of all members; SettingsError unless all have the same vocabularies and device."""
    members = tuple(member for models in every for member in models.members)
    first = members[0].checkpoint
    for number, member in enumerate(members[1:], start=2):
        checkpoint = member.checkpoint
        _refuse_another("source", first.source_tokenizer, checkpoint.source_tokenizer, number)
        _refuse_another("target", first.target_tokenizer, checkpoint.target_tokenizer, number)
        for name in ("source", "context"):
            if getattr(checkpoint.config.data, name) != getattr(first.config.data, name):
                raise SettingsError(f"ensemble: model {number} has another data.{name} than model 1, expected the same")
        tags, wanted_tags = (each.config.model.language_tags for each in (checkpoint, first))
        if tags != wanted_tags:
            raise SettingsError(
                f"ensemble: model {number} has model.language_tags = '{tags}', expected '{wanted_tags}' as model 1"
            )
        if _pooling(checkpoint) != _pooling(first):
            what = "model.segment_pooling or another separator"
            raise SettingsError(f"ensemble: model {number} has another {what} than model 1, expected the same")
        if not (checkpoint.on_cpu and first.on_cpu) and checkpoint.device != first.device:
            raise SettingsError(
                f"ensemble: model {number} is on {checkpoint.device}, expected {first.device} as model 1"
            )
    return EnsembleMembers(members=members, average=average)


def _pooling(checkpoint: Checkpoint) -> tuple[str, ...]:
    """The settings that say which tokens of a text are one position."""
    model = checkpoint.config.model
    return () if model.segment_pooling == "none" else (model.segment_pooling, model.segment_separator)


def ensemble_checkpoint(models: EnsembleMembers) -> Checkpoint:
    """The first member's checkpoint with the shortest maximum length of all members and without a temperature.

    Its lengths allow what those of any member allow; there are none if a member has none.
    """
    first = models.members[0].checkpoint
    known = [member.checkpoint.lengths for member in models.members]
    lengths = None if None in known else reduce(Lengths.merged, [each for each in known if each is not None])
    longest = min(member.checkpoint.config.model.max_positions for member in models.members)
    model = first.config.model.model_copy(update={"max_positions": longest})
    sources = min(member.checkpoint.config.model.of_encoder.max_positions for member in models.members)
    if model.of_encoder.max_positions > sources:
        model = model.model_copy(update={"encoder": {**model.encoder, "max_positions": sources}})
    config = first.config.model_copy(update={"model": model})
    return first.in_ensemble(config, lengths)


def _refuse_another(side: str, wanted: Tokenizer, found: Tokenizer, number: int) -> None:
    """Raise SettingsError unless both tokenizers give the same ids, naming the first token that differs."""
    if found is wanted or found.digest == wanted.digest:
        return
    if len(found) != len(wanted):
        raise SettingsError(
            f"ensemble: model {number} has a {side} vocabulary of {len(found):,} tokens, "
            f"expected model 1's of {len(wanted):,}"
        )
    for place, (token, expected) in enumerate(zip(found.pieces(), wanted.pieces(), strict=True)):
        if token != expected:
            raise SettingsError(
                f"ensemble: model {number} has another {side} vocabulary: its token {place} is '{token}', "
                f"expected '{expected}' as in model 1"
            )
    raise SettingsError(
        f"ensemble: model {number} cuts {side} text otherwise with the same tokens, expected the tokenizer of model 1"
    )
