"""What a model must have in common with its export or original: settings, log-probabilities of random sentences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from translume.checkpoint import Checkpoint
from translume.config import ModelSettings
from translume.errors import SettingsError, TranslumeError
from translume.json_values import JsonValue

SENTENCES, MAX_TOKENS = 50, 31
TOLERANCE = 1e-3
"""Largest accepted |Δ log p| of a token in float32, in nats. For other formats it is reported but not limited."""


def require_settings(settings: ModelSettings, possible: Mapping[str, Sequence[object]], target: str) -> None:
    """Raise SettingsError naming the first [model] setting that has another value than those that a target has."""
    for name, values in possible.items():
        value = getattr(settings, name)
        if value not in values:
            wanted = " or ".join(map(repr, values))
            raise SettingsError(f"model.{name}: found {value!r}, expected {wanted} for {target}")


def require_linear_head(checkpoint: Checkpoint, target: str) -> None:
    """Raise SettingsError for a head that is not one linear map and a softmax."""
    if not checkpoint.model.head.plain():
        kind = checkpoint.config.model.head.kind
        raise SettingsError(f"model.head.kind: found {kind!r}, expected a linear map and a softmax for {target}")


class DifferenceError(TranslumeError):
    """Log-probabilities differ by more than TOLERANCE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(JsonValue):
    """The result of comparing two models.

    sentences, tokens: how many were compared.  difference: largest |Δ log p| of a token, in nats.
    mean_difference: the mean.  dtype: the format of the written weights.
    same_translations: sentences whose greedy translations are equal; None if they were not compared.
    """

    sentences: int
    tokens: int
    difference: float
    mean_difference: float
    dtype: str
    same_translations: int | None = None

    def __str__(self) -> str:
        """Return the differences as one phrase."""
        return (
            f"{self.tokens} tokens of {self.sentences} random sentences differ by at most {self.difference:.2g} nats, "
            f"{self.mean_difference:.2g} on average"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTargets:
    """Pairs of ids, and our log-probabilities of each target's tokens, EOS last.

    Ids include the tags of languages, but no other special tokens.
    given: the number of tokens at the beginning of each target that are tags, whose log-probabilities do not count.
    frames: the sources [1, L, F] of a model that reads no text, instead of `sources`.
    """

    given: int
    sources: list[list[int]]
    targets: list[list[int]]
    log_probs: list[list[float]]
    frames: tuple[Tensor, ...] = ()

    def examples(self, checkpoint: Checkpoint) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the source [1, S] or [1, L, F], what the decoder reads [1, T], and the labels [T], of each pair."""
        specials, end = checkpoint.target_tokenizer.specials, checkpoint.source_tokenizer.specials.source_end
        sources = self.frames or [torch.tensor([[*source, *end]]) for source in self.sources]
        for source, target in zip(sources, self.targets, strict=True):
            yield source, torch.tensor([[specials.bos, *target]]), torch.tensor([*target, specials.eos])

    def certificate(self, log_probs: Sequence[Sequence[float]], dtype: str) -> Certificate:
        """Compare the log-probabilities of the other toolkit with ours.

        Raises TranslumeError if one is NaN, or infinite in one model only; ValueError if their number differs.
        """
        pairs = [
            pair
            for ours, theirs in zip(self.log_probs, log_probs, strict=True)
            for pair in list(zip(ours, theirs, strict=True))[self.given :]
        ]
        differences = [0.0 if ours == theirs else abs(ours - theirs) for ours, theirs in pairs]
        for pair, difference in zip(pairs, differences, strict=True):
            if not math.isfinite(difference):  # NaN would pass every comparison with a limit
                raise TranslumeError(
                    f"certificate: found log-probabilities {pair[0]:.4g} here and {pair[1]:.4g} in the other toolkit "
                    "for one token, expected finite numbers in both"
                )
        return Certificate(
            sentences=len(log_probs),
            tokens=len(pairs),
            difference=max(differences),
            mean_difference=sum(differences) / len(differences),
            dtype=dtype,
        )

    def compare(
        self, log_probs: Sequence[Sequence[float]], toolkit: str, place: Path, dtype: str = "float32"
    ) -> Certificate:
        """As `certificate`; raises TranslumeError also if weights in float32 differ by more than TOLERANCE."""
        certificate = self.certificate(log_probs, dtype)
        if dtype == "float32" and certificate.difference > TOLERANCE:
            raise DifferenceError(
                f"{place}: {toolkit} differs by {certificate.difference:.2g} nats a token, expected at most {TOLERANCE}"
            )
        return certificate


def label_log_probs(logits: Tensor, labels: Tensor) -> list[float]:
    """Return the log-probabilities of labels [T] for logits [1, T, V]."""
    log_probs: list[float] = (
        logits[0]
        .to(torch.promote_types(logits.dtype, torch.float32))
        .log_softmax(-1)
        .gather(1, labels[:, None])[:, 0]
        .tolist()
    )
    return log_probs


@torch.no_grad()
def forced_targets(checkpoint: Checkpoint, count: int = SENTENCES) -> ForcedTargets:
    """Score random sentences of 1 to MAX_TOKENS tokens, drawn from the vocabulary without special tokens.

    For a model that reads no text, sources are random frames.
    """
    generator = torch.Generator().manual_seed(1)
    settings = checkpoint.config.model
    longest = min(MAX_TOKENS, settings.max_positions - 1 - max(settings.source_tags, settings.target_tags))
    sides = []
    for tokenizer, tags in (
        (checkpoint.source_tokenizer, settings.source_tags),
        (checkpoint.target_tokenizer, settings.target_tags),
    ):
        specials = {tokenizer.specials.pad, tokenizer.specials.bos, tokenizer.specials.eos, tokenizer.specials.unk}
        ids = torch.tensor([number for number in range(len(tokenizer)) if number not in specials])
        lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
        rows = [ids[torch.randint(len(ids), (length,), generator=generator)].tolist() for length in lengths]
        codes = [*tokenizer.languages.values()] or ids.tolist()
        sides.append([[codes[place % len(codes)]] * tags + row for place, row in enumerate(rows)])
    sources, targets = sides
    frames, together = tuple[Tensor, ...](), count
    if checkpoint.config.data.source.reader:
        mask, dtype = torch.ones(1, 1, dtype=torch.bool), next(checkpoint.model.parameters()).dtype
        frames = tuple(checkpoint.model.encoder.embedding.example(mask, generator)[0].to(dtype) for _ in targets)
        sources, together = [], 1  # a window of sound has 1,500 positions
    unscored = ForcedTargets(given=settings.target_tags, sources=sources, targets=targets, log_probs=[], frames=frames)
    examples = list(unscored.examples(checkpoint))
    log_probs = [
        row for start in range(0, count, together) for row in _score(checkpoint, examples[start : start + together])
    ]
    return replace(unscored, log_probs=log_probs)


def _score(checkpoint: Checkpoint, examples: Sequence[tuple[Tensor, Tensor, Tensor]]) -> list[list[float]]:
    """Return the log-probabilities of the labels of some examples, in one batch."""
    sources, read, labels = zip(*examples, strict=True)
    source, mask = padded([each[0] for each in sources])
    target, target_mask = padded([each[0] for each in read])
    device = next(checkpoint.model.parameters()).device
    batch = (source, mask, target, padded(labels)[0], target_mask)
    scores = checkpoint.model.score(*(each.to(device) for each in batch))
    return [row[: len(each)] for row, each in zip(scores.tolist(), labels, strict=True)]


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of different lengths as one tensor [B, N, …], and the mask [B, N] of what they contain."""
    lengths = torch.tensor([len(row) for row in rows])
    return pad_sequence(list(rows), batch_first=True), torch.arange(int(lengths.max())) < lengths[:, None]
