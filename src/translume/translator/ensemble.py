"""One model, or several that speak as one: what steps, what scores, and who may join."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from translume.belief import NextToken
from translume.checkpoint import Checkpoint
from translume.decoding import AttentionStepper, Average, Averaged, Ensemble, Stepper
from translume.engine import Engine, build_engine
from translume.engine.probe import Dtype
from translume.errors import SettingsError
from translume.text import Tokenizer

ELEMENTS = 1 << 22
"""Log-probabilities that are held at a time while an ensemble scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A model, and the engine that steps in its place if it has one."""

    checkpoint: Checkpoint
    engine: Engine | None = None

    def stepper(self, *, attentive: bool) -> Stepper:
        """The engine, unless attention is asked for and it offers none: then the plain model."""
        if self.engine is not None and (not attentive or isinstance(self.engine, AttentionStepper)):
            return self.engine
        return self.checkpoint.model


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What a translator translates and scores with; several models are averaged token by token, each with one voice."""

    members: tuple[Member, ...]
    average: Average = "probability"

    def __len__(self) -> int:
        return len(self.members)

    def stepper(self, *, attentive: bool) -> Stepper:
        """What a search steps with."""
        steppers = [member.stepper(attentive=attentive) for member in self.members]
        return steppers[0] if len(steppers) == 1 else Ensemble(steppers, self.average)

    def compiled(self, dtype: Dtype) -> "Models":
        """The same with an engine each."""
        return replace(
            self,
            members=tuple(
                replace(member, engine=build_engine(member.checkpoint.model, dtype)) for member in self.members
            ),
        )

    def score(self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor) -> Tensor:
        """[B, T], fp32: the log-probabilities of labels [B, T], zero where target_mask is False; by plain models."""
        models = [member.checkpoint.model for member in self.members]
        if len(models) == 1:
            return models[0].score(source, source_mask, target, labels, target_mask)
        rows = max(1, ELEMENTS // len(self.members[0].checkpoint.target_tokenizer))
        found = [
            belief.log_prob_of(wanted[:, None])[:, 0].float()
            for belief, wanted in self.beliefs(source, source_mask, target, labels, target_mask, rows)
        ]
        scores = torch.zeros(labels.shape, device=labels.device)
        scores[target_mask] = torch.cat(found)  # sentence after sentence, as `beliefs` gives them
        return scores

    def beliefs(
        self, source: Tensor, source_mask: Tensor, target: Tensor, labels: Tensor, target_mask: Tensor,
        rows: int,
    ) -> Iterator[tuple[NextToken, Tensor]]:  # fmt: skip
        """What is believed about each of labels [B, T] where target_mask is True, and these; see `Transformer`."""
        each = [
            member.checkpoint.model.beliefs(source, source_mask, target, labels, target_mask, rows)
            for member in self.members
        ]
        if len(each) == 1:
            yield from each[0]
            return
        for parts in zip(*each, strict=True):
            yield Averaged([belief for belief, _ in parts], self.average), parts[0][1]


def together(every: Sequence[Models], average: Average) -> Models:
    """All members in one; SettingsError where two of them do not read or write the same ids."""
    members = tuple(member for models in every for member in models.members)
    first = members[0].checkpoint
    for number, member in enumerate(members[1:], start=2):
        other = member.checkpoint
        _refuse_another("source", first.source_tokenizer, other.source_tokenizer, number)
        _refuse_another("target", first.target_tokenizer, other.target_tokenizer, number)
        place, wanted = (next(each.model.parameters()).device for each in (other, first))
        if place != wanted:
            raise SettingsError(f"ensemble: model {number} is on {place}, wanted {wanted} as model 1")
    return Models(members=members, average=average)


def face_of(models: Models) -> Checkpoint:
    """The first member's checkpoint as an ensemble shows it: it counts as far as all can, and has no temperature."""
    first = models.members[0].checkpoint
    longest = min(member.checkpoint.config.model.max_positions for member in models.members)
    model = first.config.model.model_copy(update={"max_positions": longest})
    return replace(first, config=first.config.model_copy(update={"model": model}), temperature=None)


def _refuse_another(side: str, wanted: Tokenizer, found: Tokenizer, number: int) -> None:
    """SettingsError unless both cut text into the same ids, naming the first token that is another."""
    if found is wanted or found.digest == wanted.digest:
        return
    if len(found) != len(wanted):
        raise SettingsError(
            f"ensemble: model {number} has a {side} vocabulary of {len(found):,} tokens, "
            f"wanted model 1's of {len(wanted):,}"
        )
    for place, (one, other) in enumerate(zip(found.pieces(), wanted.pieces(), strict=True)):
        if one != other:
            raise SettingsError(
                f"ensemble: model {number} has another {side} vocabulary: its token {place} is '{one}', "
                f"wanted '{other}' as in model 1"
            )
    raise SettingsError(
        f"ensemble: model {number} cuts {side} text otherwise with the same tokens, wanted the tokenizer of model 1"
    )
