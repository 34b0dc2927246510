"""Compare an exported or imported model with its original: teacher-forced log-probabilities of random sentences."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from translume.checkpoint import Checkpoint
from translume.errors import TranslumeError
from translume.model import Transformer

SENTENCES, LONGEST = 50, 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
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

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as a JSON object."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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

    def certificate(self, found: Sequence[Sequence[float]], dtype: str) -> Certificate:
        """Compare the log-probabilities `found` with ours.

        Raises TranslumeError if one is NaN, or infinite in one model only; ValueError if their number differs.
        """
        pairs = [
            pair
            for ours, theirs in zip(self.log_probs, found, strict=True)
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
            sentences=len(found),
            tokens=len(pairs),
            difference=max(differences),
            mean_difference=sum(differences) / len(differences),
            dtype=dtype,
        )


@torch.no_grad()
def forced_targets(checkpoint: Checkpoint, count: int = SENTENCES) -> ForcedTargets:
    """Score random sentences of 1 to LONGEST tokens, drawn from the vocabulary without special tokens.

    For a model that reads no text, sources are random frames.
    """
    generator = torch.Generator().manual_seed(1)
    settings = checkpoint.config.model
    longest = min(LONGEST, settings.max_positions - 1 - max(settings.source_tags, settings.target_tags))
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
    eos, frames, together = checkpoint.source_tokenizer.specials.eos, tuple[Tensor, ...](), count
    read = [torch.tensor([*source, eos]) for source in sources]
    if checkpoint.config.data.source.reader:
        one = torch.ones(1, 1, dtype=torch.bool)
        frames = tuple(checkpoint.model.encoder.embedding.example(one, generator)[0] for _ in targets)
        sources, read, together = [], [each[0] for each in frames], 1  # a window of sound has 1,500 positions
    return ForcedTargets(
        given=settings.target_tags,
        sources=sources,
        targets=targets,
        log_probs=[
            row
            for start in range(0, count, together)
            for row in _log_probs(checkpoint, read[start : start + together], targets[start : start + together])
        ],
        frames=frames,
    )


def _log_probs(checkpoint: Checkpoint, sources: list[Tensor], targets: list[list[int]]) -> list[list[float]]:
    """Return the log-probabilities of each target and its EOS, given sources [S] or [L, F]."""
    model: Transformer = checkpoint.model
    device = next(model.parameters()).device
    specials = checkpoint.target_tokenizer.specials
    read, mask = _padded(sources)
    given, target_mask = _padded([torch.tensor([specials.bos, *target]) for target in targets])
    labels, _ = _padded([torch.tensor([*target, specials.eos]) for target in targets])
    scores = model.score(*(each.to(device) for each in (read, mask, given, labels, target_mask)))
    return [row[: len(target) + 1] for row, target in zip(scores.tolist(), targets, strict=True)]


def _padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of different lengths as one tensor [B, N, …], and the mask [B, N] of what they contain."""
    lengths = torch.tensor([len(row) for row in rows])
    return pad_sequence(rows, batch_first=True), torch.arange(int(lengths.max())) < lengths[:, None]
